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


"""nova-gpu-passthru withhold and offer"""

import os
import pathlib
from typing import Any

import ddt
import fixtures
import libvirt

from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import records
from tests.unit.cmd import test_list
from tests.unit import fakes

HOST = """
0000:65:00.0 030000 10de:2204 driver=vfio-pci group=34
0000:65:00.1 040300 10de:1aef driver=vfio-pci group=34
0000:66:00.0 030200 10de:2330 driver=vfio-pci group=35
0000:67:00.0 030200 10de:2330 driver=nvidia
"""
FIRST, AUDIO, SECOND, THIRD = ('0000:65:00.0', '0000:65:00.1',
                               '0000:66:00.0', '0000:67:00.0')
UUID = '6f70b1a2-9d2c-4c1e-9a0e-0d5f0c6d3d01'


class TestCase(test_list.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = self.tree(HOST)
        sysfs = pci.Sysfs(self.host.root)
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.pci.Sysfs', lambda *args: sysfs))
        self.domains()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.records = records.Records(self.folder / 'gpu_passthru')
        self.configure()

    def configure(self, lines: str = '') -> None:
        (self.folder / 'nova.conf').write_text(
            f'[DEFAULT]\nstate_path = {self.folder}\n'
            f'[gpu_passthru]\n{lines}\n')

    def domains(self, *xml: str) -> None:
        connection = test_list.Connection(*xml)
        self.useFixture(fixtures.MonkeyPatch('libvirt.openReadOnly',
                                             lambda uri: connection))

    def run_command(self, *argv: str, status: int = 0) -> str:
        text = self.command.run('--config-file', self.folder / 'nova.conf',
                                *argv)
        self.assertEqual(status, self.command.status, self.command.stderr)
        return text if status == 0 else self.command.stderr

    def record(self, address: str = FIRST) -> records.Record:
        return self.records.read()[pci.PCIAddress.parse(address)]

    def told(self) -> dict[object, object]:
        return {row['address']: row['reason'] for row in self.command.rows(
            '--config-file', self.folder / 'nova.conf', 'list')}


@ddt.ddt
class WithholdTest(TestCase):
    @ddt.data(FIRST, AUDIO, '65:00.1', '00000000:65:00.0')
    def test_any_function_names_the_card(self, address: str) -> None:
        text = self.run_command('withhold', address, '--reason',
                                'a fan\nis loud')
        self.assertEqual('GPU 0000:65:00.0 (10de:2204) is withheld: a fan is '
                         'loud\n', text)
        self.assertEqual(records.Record('10de:2204', 'a fan is loud'),
                         self.record())

    def test_list_shows_it(self) -> None:
        self.run_command('withhold', FIRST, '--reason', 'a fan is loud')
        self.assertIn('an operator withholds it: a fan is loud; '
                      'nova-gpu-passthru offer 0000:65:00.0 gives it back',
                      str(self.told()[FIRST]))

    def test_list_of_another_sysfs_does_not(self) -> None:
        self.run_command('withhold', FIRST, '--reason', 'a fan is loud')
        self.assertNotIn('a fan', self.run_command(
            'list', '--sysfs', str(self.host.root)))

    def test_check_shows_it_with_its_cure(self) -> None:
        self.run_command('withhold', FIRST, '--reason', 'a fan is loud')
        text = self.command.run('--config-file', self.folder / 'nova.conf',
                                'check', '--format', 'json')
        self.assertIn('an operator withholds it: a fan is loud', text)
        self.assertIn('"nova-gpu-passthru offer 0000:65:00.0 gives it back"',
                      text)

    def test_card_in_use_is_taken_out_later_and_it_says_so(self) -> None:
        self.domains(fakes.domain_xml(UUID, AUDIO))
        text = self.run_command('withhold', FIRST, '--reason', 'x')
        self.assertIn(f'Instance {UUID} has it and keeps it until it is gone',
                      text)

    def test_card_that_is_withheld_anyway_is_withheld_too(self) -> None:
        text = self.run_command('withhold', THIRD, '--reason', 'x')
        self.assertIn('It was not offered anyway: 0000:67:00.0 is in no '
                      'IOMMU group', text)
        self.assertEqual('x', self.record(THIRD).withheld)

    def test_second_reason_replaces_the_first(self) -> None:
        self.run_command('withhold', FIRST, '--reason', 'x')
        self.run_command('withhold', FIRST, '--reason', 'y')
        self.assertEqual('y', self.record().withheld)

    def test_unknown_address_is_an_error(self) -> None:
        text = self.run_command('withhold', '0000:01:00.0', '--reason', 'x',
                                status=1)
        self.assertIn('No GPU of this host has the function 0000:01:00.0',
                      text)
        self.assertEqual({}, self.records.read())

    @ddt.data(('65:00', '--reason', 'x'), (FIRST,), (FIRST, '--reason', ' '),
              (FIRST, '--reason', os.fsdecode(b'caf\xe9')))
    def test_what_makes_no_sense_is_refused(self, argv: tuple[str, ...]
                                            ) -> None:
        ended = self.assertRaises(SystemExit, self.run_command, 'withhold',
                                  *argv)
        self.assertEqual(2, ended.code)
        self.assertEqual({}, self.records.read())

    def test_folder_that_cannot_be_written_is_an_error(self) -> None:
        (self.folder / 'gpu_passthru').write_text('a file')
        text = self.run_command('withhold', FIRST, '--reason', 'x', status=1)
        self.assertIn('cannot be changed', text)
        self.assertIn('state_dir', text)
        self.assertIn(FIRST, self.run_command('list'))
        self.assertIn('is not known', self.command.stderr)

    def test_other_folder_can_be_set(self) -> None:
        self.configure(f'state_dir = {self.folder}/other')
        self.run_command('withhold', FIRST, '--reason', 'x')
        self.assertTrue((self.folder / 'other' / f'{FIRST}.json').exists())

    def test_libvirt_that_does_not_answer_is_said(self) -> None:
        def refuse(uri: str | None) -> None:
            raise libvirt.libvirtError('no socket')

        self.useFixture(fixtures.MonkeyPatch('libvirt.openReadOnly', refuse))
        self.run_command('withhold', FIRST, '--reason', 'x')
        self.assertIn('no socket', self.command.stderr)
        self.assertEqual('x', self.record().withheld)


@ddt.ddt
class OfferTest(TestCase):
    def remember(self, address: str = FIRST, model: str = '10de:2204',
                 **values: Any) -> None:
        record = records.Record(model).but(**values)
        folder = self.folder / 'gpu_passthru'
        folder.mkdir(exist_ok=True)
        self.records._write(pci.PCIAddress.parse(address), record)

    @ddt.data({'withheld': 'x'}, {'kept_back': True}, {'failed_start': 'x'},
              {'failed_release': 'x', 'given_to': UUID}, {'fault': 'x'},
              {'withheld': 'x', 'kept_back': True, 'failed_start': 'y'})
    def test_what_sets_a_card_apart_is_dropped(
            self, values: dict[str, Any]) -> None:
        self.remember(**values)
        if 'fault' in values:
            (self.folder / f'gpu_passthru/{FIRST}.json').write_text('{')
        text = self.run_command('offer', AUDIO)
        self.assertIn('GPU 0000:65:00.0 (10de:2204) is offered', text)
        # nova-compute tries again what it gave up, and drops the record.
        self.assertEqual(records.Record('10de:2204', retry=True),
                         self.record())
        self.assertEqual('', self.told()[FIRST])

    def test_release_that_goes_on_is_left_alone(self) -> None:
        self.remember(given_to=UUID, withheld='x')
        self.assertIn(f'was given to {UUID} and is still being released',
                      self.run_command('offer', FIRST))
        self.assertEqual(UUID, self.record().given_to)
        self.assertEqual('', self.record().withheld)

    def test_card_in_use_comes_back_later_and_it_says_so(self) -> None:
        self.domains(fakes.domain_xml(UUID, FIRST))
        self.remember(given_to=UUID, withheld='x')
        self.assertIn(f'Instance {UUID} has GPU', self.run_command('offer',
                                                                   FIRST))
        self.assertEqual(UUID, self.record().given_to)

    def test_what_cannot_be_passed_stays_withheld_with_its_cure(
            self) -> None:
        self.remember(THIRD, '10de:2330', withheld='x')
        text = self.run_command('offer', THIRD, status=1)
        self.assertIn('stays withheld, and this command cannot change that: '
                      '0000:67:00.0 is in no IOMMU group; enable the IOMMU',
                      text)
        self.assertEqual('', self.record(THIRD).withheld)

    def test_what_the_configuration_keeps_stays_withheld(self) -> None:
        self.configure(f'exclude = {SECOND}')
        text = self.run_command('offer', SECOND, status=1)
        self.assertIn(f'exclude names {SECOND}; change that in nova.conf and '
                      f'restart nova-compute', text)

    def test_card_that_is_gone_can_be_forgotten(self) -> None:
        self.remember('0000:01:00.0', '10de:2330', withheld='x')
        self.assertIn('no GPU 0000:01:00.0 any more',
                      self.run_command('offer', '0000:01:00.0'))
        self.assertEqual({}, self.records.read())
        self.assertIn('nothing is remembered of one',
                      self.run_command('offer', '0000:01:00.0', status=1))

    def test_record_of_another_model_is_shown_and_dropped(self) -> None:
        self.remember(FIRST, '10de:1111', withheld='x')
        self.assertEqual('', self.told()[FIRST])
        self.assertIn('the record is about a card of model 10de:1111; now '
                      '10de:2204 is there', self.command.stderr)
        text = self.command.run('--config-file', self.folder / 'nova.conf',
                                'check', '--format', 'json')
        self.assertIn('about a card of model 10de:1111', text)
        self.run_command('offer', FIRST)
        self.assertEqual(records.Record('10de:2204', retry=True),
                         self.record())
