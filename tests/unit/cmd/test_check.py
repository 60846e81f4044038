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

import json

import fixtures
import libvirt

from nova_gpu_passthru.cmd import findings
from nova_gpu_passthru.host import pci
from tests.unit import base
from tests.unit.cmd import command

GOOD = f'[DEFAULT]\ncompute_driver = {findings.DRIVER}\n'


class Connection:
    """A virConnect without domains."""

    def listAllDomains(self) -> list[object]:
        return []


class CheckTest(base.TestCase):
    def check(self, config: str, host: str) -> list[dict[str, str]]:
        file = f'{self.useFixture(fixtures.TempDir()).path}/nova.conf'
        with open(file, 'w') as stream:
            stream.write(config)
        sysfs = pci.Sysfs(self.tree(host).root)
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.pci.Sysfs', lambda: sysfs))
        self.command = self.useFixture(command.Command())
        return json.loads(self.command.run(
            '--config-file', file, 'check', '--format', 'json'))

    def with_libvirt(self, connect: object) -> None:
        self.useFixture(fixtures.MonkeyPatch('libvirt.openReadOnly',
                                             connect))

    def test_host_where_all_is_well_says_so(self) -> None:
        self.with_libvirt(lambda uri: Connection())
        self.assertEqual([], self.check(
            GOOD, '0000:65:00.0 030200 10de:2330 driver=vfio-pci group=1'))
        self.assertEqual(0, self.command.status)
        self.assertIn('Nothing stands in the way', self.command.stderr)

    def test_every_problem_has_a_row_and_the_status_is_1(self) -> None:
        def refuse(uri: str | None) -> None:
            raise libvirt.libvirtError('no socket')

        self.with_libvirt(refuse)
        rows = self.check('', '0000:65:00.0 030200 10de:2330 '
                              'driver=vfio-pci')
        self.assertEqual(['nova.conf', 'IOMMU', 'GPU 0000:65:00.0', 'GPUs',
                          'libvirt'], [row['subject'] for row in rows])
        self.assertEqual([], [row for row in rows if not row['cure']])
        self.assertEqual(1, self.command.status)

    def test_malformed_entry_ends_the_check_with_a_row(self) -> None:
        rows = self.check(GOOD + '[gpu_passthru]\nexclude = 0b::00.1\n',
                          '0000:65:00.0 030200 10de:2330 driver=vfio-pci '
                          'group=1')
        self.assertEqual(['nova.conf'], [row['subject'] for row in rows])
        self.assertIn("'0b::00.1'", rows[0]['problem'])
        self.assertEqual(1, self.command.status)
