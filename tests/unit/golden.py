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

"""Compares what the package makes with files of tests/data.

With UPDATE_GOLDEN set in the environment the files are written anew, and
"git diff tests/data" shows what changed: see tests/data/README.rst.
"""

import os
import pathlib

import testtools

DATA = pathlib.Path(__file__).parents[1] / 'data'


def check(test: testtools.TestCase, path: pathlib.Path, text: str) -> None:
    """Fails a test where a text is not what a file has."""
    if os.environ.get('UPDATE_GOLDEN'):
        path.write_text(text)
    test.assertEqual(path.read_text(), text)
