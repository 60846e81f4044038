# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Takes out of a text what somebody would put into nova.conf."""

import pathlib
import re
import textwrap

ROOT = pathlib.Path(__file__).parents[3]

# A literal block that begins with a section, indented in a paragraph's place.
_BLOCK = re.compile(r'(?:^|\n)((?:[ ]+\[\w+\]\n)(?:(?:[ ]+[^ \n].*)?\n)*)')


def in_text(name: str) -> list[str]:
    """Reads the configurations that a file of the documentation shows.

    :param name: the file, from the top of the source
    """
    return [textwrap.dedent(block) for block in
            _BLOCK.findall((ROOT / name).read_text())]
