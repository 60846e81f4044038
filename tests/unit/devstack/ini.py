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

"""Reads and writes nova.conf for what stands for DevStack's functions.

python ini.py get FILE SECTION OPTION prints the values, a line each;
python ini.py set FILE SECTION OPTION VALUE... replaces them.
"""

import pathlib
import sys


def _find(lines: list[str], section: str, option: str) -> list[int]:
    found, current = [], ''
    for number, line in enumerate(lines):
        if line.startswith('['):
            current = line.strip('[]')
        elif current == section and line.partition('=')[0].strip() == option:
            found.append(number)
    return found


def main(verb: str, file: str, section: str, option: str,
         *values: str) -> None:
    path = pathlib.Path(file)
    lines = path.read_text().splitlines()
    numbers = _find(lines, section, option)
    if verb == 'get':
        for number in numbers:
            print(lines[number].partition('=')[2].strip())
        return
    lines = [line for number, line in enumerate(lines)
             if number not in numbers]
    if f'[{section}]' not in lines:
        lines.append(f'[{section}]')
    after = lines.index(f'[{section}]') + 1
    lines[after:after] = [f'{option} = {value}' for value in values]
    path.write_text('\n'.join(lines) + '\n')


if __name__ == '__main__':
    main(*sys.argv[1:])
