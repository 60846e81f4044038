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
import pathlib

import fixtures
import libvirt

from nova_gpu_passthru.cmd import host_findings
from nova_gpu_passthru.cmd import scheduler_findings
from nova_gpu_passthru.host import pci
from tests.unit import base
from tests.unit.cmd import command

GOOD = f'[DEFAULT]\ncompute_driver = {host_findings.DRIVER}\n'


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

    def test_warning_alone_is_status_1(self) -> None:
        self.with_libvirt(lambda uri: Connection())
        row, = self.check(
            GOOD, """0000:65:00.0 030200 10de:2330 driver=vfio-pci group=1
                     0000:66:00.0 030200 10de:2330 group=2 dead""")
        self.assertEqual(('warning', 'GPU 0000:66:00.0'),
                         (row['result'], row['subject']))
        self.assertEqual(1, self.command.status)

    def test_every_problem_has_a_row_and_a_failure_is_status_2(self) -> None:
        def refuse(uri: str | None) -> None:
            raise libvirt.libvirtError('no socket')

        self.with_libvirt(refuse)
        rows = self.check('', '0000:65:00.0 030200 10de:2330 '
                              'driver=vfio-pci')
        self.assertEqual(['nova.conf', 'IOMMU', 'libvirt', 'GPU 0000:65:00.0',
                          'GPUs'], [row['subject'] for row in rows])
        self.assertEqual(['failure', 'failure', 'failure', 'warning',
                          'failure'], [row['result'] for row in rows])
        self.assertEqual([], [row for row in rows if not row['cure']])
        self.assertEqual(2, self.command.status)

    def test_malformed_entry_ends_the_check_with_a_row(self) -> None:
        rows = self.check(GOOD + '[gpu_passthru]\nexclude = 0b::00.1\n',
                          '0000:65:00.0 030200 10de:2330 driver=vfio-pci '
                          'group=1')
        self.assertEqual(['nova.conf'], [row['subject'] for row in rows])
        self.assertIn("'0b::00.1'", rows[0]['problem'])
        self.assertEqual(2, self.command.status)

    def test_value_of_another_kind_ends_the_check_with_a_row(self) -> None:
        rows = self.check(GOOD + '[gpu_passthru]\nboot_vga = never\n',
                          '0000:65:00.0 030200 10de:2330 driver=vfio-pci '
                          'group=1')
        self.assertEqual(['nova.conf'], [row['subject'] for row in rows])
        self.assertIn("'never'", rows[0]['problem'])
        self.assertEqual(2, self.command.status)

    # As "nova-status upgrade check" does.
    def test_what_cannot_be_found_out_is_status_255(self) -> None:
        self.command = self.useFixture(command.Command())
        self.command.run('--config-file', '/does/not/exist', 'check')
        self.assertEqual(255, self.command.status)
        self.assertIn('/does/not/exist', self.command.stderr)


class SchedulerTest(base.TestCase):
    FREE_GPUS = {'Name': 'g1.small', 'Properties': {'free_gpus': '>=1'}}

    def check(self, *flavors: object, filters: str = '',
              more: tuple[str, ...] = ()) -> list[dict[str, str]]:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (folder / 'nova.conf').write_text(
            f'[filter_scheduler]\n'
            f'available_filters = nova.scheduler.filters.all_filters\n'
            f'available_filters = {scheduler_findings.FILTER}\n'
            f'enabled_filters = ComputeFilter,FreeGPUsFilter{filters}\n'
            f'weight_classes = nova.scheduler.weights.all_weighers,'
            f'{scheduler_findings.WEIGHERS}\n')
        (folder / 'flavors.json').write_text(json.dumps(flavors))
        self.command = self.useFixture(command.Command())
        return json.loads(self.command.run(
            '--config-file', folder / 'nova.conf', 'check', '--scheduler',
            '--flavors', folder / 'flavors.json', '--format', 'json') or '0')

    def test_good_configuration_and_flavor_are_no_problem(self) -> None:
        self.assertEqual([], self.check(self.FREE_GPUS))
        self.assertEqual(0, self.command.status)

    def test_flavor_that_a_filter_refuses_is_a_failure(self) -> None:
        row, = self.check(self.FREE_GPUS,
                          filters=',AggregateInstanceExtraSpecsFilter')
        self.assertEqual('flavor g1.small', row['subject'])
        self.assertIn('gpu_passthru:free_gpus', row['cure'])
        self.assertEqual(2, self.command.status)

    def test_file_of_something_else_cannot_be_read(self) -> None:
        self.check({'Name': 'g1.small'})
        self.assertEqual(255, self.command.status)
        self.assertIn('openstack flavor list --all --long',
                      self.command.stderr)

    def test_flavors_are_for_the_scheduler(self) -> None:
        one = self.useFixture(command.Command())
        one.run('check', '--flavors', 'x')
        self.assertEqual(255, one.status)
        self.assertIn('--scheduler', one.stderr)
