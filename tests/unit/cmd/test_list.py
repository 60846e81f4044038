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

import ddt
import fixtures
import libvirt

from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import pci
from tests import sysfs_tree
from tests.unit import base
from tests.unit.cmd import command
from tests.unit import fakes
from tests.unit import golden

CARD = """
0000:65:00.0 030000 10de:2204 driver=nvidia group=34 numa=1
0000:65:00.1 040300 10de:1aef driver=snd_hda_intel group=35 numa=1
"""
BARE = '0000:66:00.0 030200 10de:1eb8'


class TestCase(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.command = self.useFixture(command.Command())
        # The names are then the same on every machine.
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.cmd.pci_ids._FILES',
            (golden.DATA / 'pci.ids',)))


@ddt.ddt
class GoldenHostTest(TestCase):
    """The verdicts on the hosts of tests/data/hosts."""

    @ddt.data(*sysfs_tree.described_hosts())
    def test_verdicts_are_exactly(self, name: str) -> None:
        tree = self.useFixture(sysfs_tree.SysfsTree.of_host(name))
        rows = self.command.rows('list', '--sysfs', tree.root)
        for row in rows:
            # They depend on the machine; see the other tests for them.
            del row['name'], row['instance']
        golden.check(self, golden.DATA / 'hosts' / f'{name}.json',
                     json.dumps(rows, indent=2) + '\n')

    def test_every_verdict_has_its_host(self) -> None:
        self.assertEqual(sysfs_tree.described_hosts(), sorted(
            path.stem for path in (golden.DATA / 'hosts').glob('*.json')))


class ListTest(TestCase):
    def list(self, description: str, *argv: str) -> list[dict[str, object]]:
        return self.command.rows(*argv, 'list', '--sysfs',
                                 self.tree(description).root)

    def test_row_says_all_of_a_card(self) -> None:
        self.assertEqual([{
            'address': '0000:65:00.0', 'verdict': 'offered',
            'state': 'attached', 'reason': '',
            'companions': ['0000:65:00.1'], 'model': '10de:2204',
            'name': 'GA102 [GeForce RTX 3090]', 'numa_node': 1,
            'iommu_group': 34, 'driver': 'nvidia', 'instance': None,
        }], self.list(CARD))
        self.assertEqual(0, self.command.status)

    def test_what_a_card_does_not_have_is_null(self) -> None:
        row, = self.list(BARE)
        self.assertEqual([None, None, None, []], [
            row[key] for key in ('numa_node', 'iommu_group', 'driver',
                                 'companions')])
        self.assertEqual('withheld', row['verdict'])

    def test_group_is_the_gpus_own(self) -> None:
        row, = self.list(CARD.replace('group=35', 'group=3'))
        self.assertEqual(34, row['iommu_group'])

    def test_people_get_a_table(self) -> None:
        text = self.command.run('list', '--fit-width', '--sysfs',
                                self.tree(CARD + BARE).root)
        self.assertIn('0000:65:00.1', text)
        self.assertNotIn('None', text)

    def test_host_without_gpus_has_no_rows(self) -> None:
        self.assertEqual([], self.list('0000:01:00.0 020000 15b3:101b'))
        self.assertEqual(0, self.command.status)

    def test_folder_that_is_no_sysfs_is_refused(self) -> None:
        empty = self.useFixture(fixtures.TempDir()).path
        self.command.run('list', '--sysfs', empty)
        self.assertNotEqual(0, self.command.status)
        self.assertIn(f'{empty} is not a sysfs', self.command.stderr)


class ConfigTest(TestCase):
    def run_with(self, config: str) -> None:
        folder = self.useFixture(fixtures.TempDir())
        file = f'{folder.path}/nova.conf'
        with open(file, 'w') as stream:
            stream.write(config)
        self.command.run('--config-file', file, 'list', '--format', 'json',
                         '--sysfs', self.tree(CARD).root)

    def test_options_of_the_file_given_decide(self) -> None:
        self.run_with('[gpu_passthru]\nexclude = 0000:65:00.1\n')
        row, = json.loads(self.command.stdout)
        self.assertEqual('[gpu_passthru] exclude names 0000:65:00.1',
                         row['reason'])

    def test_other_options_of_nova_do_no_harm(self) -> None:
        self.run_with('[DEFAULT]\ncompute_driver = x\n[libvirt]\na = b\n')
        self.assertEqual(1, len(json.loads(self.command.stdout)))

    def test_malformed_entry_is_an_error_that_quotes_it(self) -> None:
        self.run_with('[gpu_passthru]\nexclude = 0000:82.0.0\n')
        self.assertNotEqual(0, self.command.status)
        self.assertIn("'0000:82.0.0'", self.command.stderr)


class Connection:
    """A virConnect with one running domain."""

    def __init__(self, *xml: str) -> None:
        self._xml = xml

    def listAllDomains(self) -> list['Connection']:
        return [Connection(xml) for xml in self._xml]

    def XMLDesc(self, flags: int) -> str:
        return self._xml[0]

    def isActive(self) -> int:
        return 1


class HoldersTest(TestCase):
    UUID = '6f70b1a2-9d2c-4c1e-9a0e-0d5f0c6d3d01'

    def setUp(self) -> None:
        super().setUp()
        # Without --sysfs the command reads the machine's own.
        sysfs = pci.Sysfs(self.tree(CARD + BARE).root)
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.pci.Sysfs', lambda root: sysfs))
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.cmd.main.cfg.find_config_files',
            lambda *args, **kwargs: []))

    def test_instance_is_whoever_holds_one_of_the_functions(self) -> None:
        connection = Connection(fakes.domain_xml(self.UUID, '0000:65:00.1'))
        self.useFixture(fixtures.MonkeyPatch('libvirt.openReadOnly',
                                             lambda uri: connection))
        self.assertEqual(
            [(self.UUID, 'claimed'), (None, 'withheld')],
            [(row['instance'], row['state'])
             for row in self.command.rows('list')])

    def test_card_that_is_gone_is_listed_while_somebody_holds_it(
            self) -> None:
        connection = Connection(fakes.domain_xml(
            self.UUID, '0000:99:00.0',
            metadata=f"<g:cards xmlns:g='{domain.NAMESPACE}'>"
                     f"<g:card address='0000:99:00.0' model='10de:2330'/>"
                     f"</g:cards>"))
        self.useFixture(fixtures.MonkeyPatch('libvirt.openReadOnly',
                                             lambda uri: connection))
        gone, = (row for row in self.command.rows('list')
                 if row['address'] == '0000:99:00.0')
        self.assertEqual(('withheld', '10de:2330', self.UUID),
                         (gone['verdict'], gone['model'], gone['instance']))
        self.assertIn('is gone from the bus', gone['reason'])

    def test_without_libvirt_the_list_says_so_and_goes_on(self) -> None:
        def refuse(uri: str | None) -> None:
            raise libvirt.libvirtError('no socket')

        self.useFixture(fixtures.MonkeyPatch('libvirt.openReadOnly', refuse))
        rows = self.command.rows('list')
        self.assertEqual([None, None], [row['instance'] for row in rows])
        self.assertIn('no socket', self.command.stderr)
        self.assertEqual(0, self.command.status)
