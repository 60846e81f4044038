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

"""Names of PCI devices, from the machine's pci.ids if it has one.

The format is described in the file itself (https://pci-ids.ucw.cz): a line
for each vendor and, after a tab, one for each of its devices.
"""

from collections.abc import Collection, Iterable
import pathlib

_FILES = (pathlib.Path('/usr/share/misc/pci.ids'),
          pathlib.Path('/usr/share/hwdata/pci.ids'))


def names(models: Collection[str],
          files: Iterable[pathlib.Path] | None = None) -> dict[str, str]:
    """Looks up device names.

    :param models: vendor and device ids, such as 10de:2330
    :param files: the first that can be read is used; None for those of the
        machine
    :returns: the names that are known, by model
    """
    for file in _FILES if files is None else files:
        try:
            with file.open(encoding='utf-8', errors='replace') as lines:
                return _read(lines, models)
        except OSError:
            continue
    return {}


def _read(lines: Iterable[str], models: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    vendor = ''
    for line in lines:
        if line.startswith('C '):
            break  # the classes follow, which look like vendors
        if not line.strip() or line.startswith(('#', '\t\t')):
            continue
        number, _, name = line.strip().partition('  ')
        if line.startswith('\t'):
            if f'{vendor}:{number}' in models:
                found[f'{vendor}:{number}'] = name.strip()
        else:
            vendor = number
    return found
