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

import fixtures

from tests.unit import base
from tests.unit.cmd import command


class MainTest(base.TestCase):
    def test_help_names_the_commands(self) -> None:
        one = self.useFixture(command.Command())
        text = one.run('help')
        for name in ('list', 'check'):
            self.assertIn(name, text)
        self.assertEqual(0, one.status)

    def test_unknown_command_is_an_error(self) -> None:
        one = self.useFixture(command.Command())
        one.run('offer')
        self.assertNotEqual(0, one.status)

    def test_novas_own_files_are_read_by_default(self) -> None:
        asked = []

        def find(project: str, program: str, extension: str = '.conf'
                 ) -> list[str]:
            asked.append((project, program, extension))
            return []

        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.cmd.main.cfg.find_config_files', find))
        self.useFixture(fixtures.MonkeyPatch(
            'libvirt.openReadOnly', lambda uri: _NoDomains()))
        one = self.useFixture(command.Command())
        one.run('list')
        self.assertIn(('nova', 'nova-compute', '.conf'), asked)
        self.assertEqual(0, one.status)


class _NoDomains:
    def listAllDomains(self) -> list[object]:
        return []
