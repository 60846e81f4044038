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

"""The support matrix names tests that show what it says."""

import ast
import pathlib
import re

import testtools

_ROOT = pathlib.Path(__file__).parents[3]
_MATRIX = _ROOT / 'doc' / 'source' / 'support-matrix.rst'


def tests_of(module: str) -> set[str]:
    """Reads the names of a module's tests, without importing it."""
    path = _ROOT / (module.replace('.', '/') + '.py')
    return {f'{module}.{test_case.name}.{test.name}'
            for test_case in ast.parse(path.read_text()).body
            if isinstance(test_case, ast.ClassDef)
            for test in test_case.body if isinstance(test, ast.FunctionDef)}


class SupportMatrixTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.rows = _MATRIX.read_text().split('\n   * - ')[2:]

    def test_every_row_names_a_test_that_exists(self) -> None:
        for row in self.rows:
            named = re.findall(r'``((tests\.[\w.]+)\.\w+\.\w+)``', row)
            self.assertEqual(1, len(named), row)
            test, module = named[0]
            self.assertIn(test, tests_of(module))

    def test_it_has_the_actions_that_move_cards(self) -> None:
        actions = ' '.join(row.splitlines()[0] for row in self.rows).lower()
        for action in ('create', 'delete', 'reboot', 'stop', 'suspend',
                       'rescue', 'rebuild', 'shelve', 'evacuate', 'migrate',
                       'resize', 'live migrate', 'restart of nova-compute',
                       'reboot of the host'):
            self.assertIn(action, actions)
