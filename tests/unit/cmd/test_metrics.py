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

from collections.abc import Iterable
import os
import pathlib
import threading

import fixtures
import libvirt

from nova_gpu_passthru.cmd import exporter
from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import metrics as host_metrics
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import metrics as compute_metrics
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import pools
from nova_gpu_passthru.host import records as host_records
from nova_gpu_passthru import telemetry
from tests.unit import base
from tests.unit import fakes
from tests.unit import golden
from tests.unit import metrics

UUID = '6f70b1a2-9d2c-4c1e-9a0e-0d5f0c6d3d01'

# One of each state: claimed, stranded by it, free, on its host driver, with
# virtual functions, excluded, a BMC's.
HOST = """
0000:17:00.0 030000 10de:2204 driver=vfio-pci group=1 numa=0
0000:18:00.0 030000 10de:2204 driver=vfio-pci group=1 numa=0
0000:19:00.0 030200 10de:2330 driver=vfio-pci group=3 numa=1
0000:65:00.0 030200 10de:2330 driver=nvidia group=4 numa=1
0000:66:00.0 120000 1002:74a1 driver=gim group=5 numvfs=8
0000:67:00.0 030000 10de:1ff2 driver=nvidia group=6
0000:03:00.0 030000 1a03:2000 driver=ast group=7 boot_vga=1
"""


def held(*addresses: str) -> list[domain.DomainDevices]:
    return [domain.read(fakes.domain_xml(UUID, *addresses))]


class TestCase(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.cmd.pci_ids._FILES',
            (golden.DATA / 'pci.ids',)))
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def host(self, description: str, read: host_view.ReadDomains,
             timeout: float = 30,
             records: host_records.Records | None = None) -> None:
        self.sysfs = self.tree(description)
        self.looked_at = host_view.Host(
            pci.Sysfs(self.sysfs.root),
            base.policy(exclude=['0000:67:00.0']), read, records)
        self.registry = exporter.make_registry(
            self.looked_at, self.folder / 'nova.prom', timeout)
        self.scrape()

    def scrape(self) -> None:
        self.found = metrics.scrape(self.registry)

    def states(self) -> dict[str, str]:
        return {row['address'][5:7]: row['state']
                for row in metrics.named(self.found, 'card_info')}

    def value(self, name: str, **labels: str) -> float:
        return self.found[metrics.key(name, **labels)]


class CardsTest(TestCase):
    def test_each_card_has_the_state_that_it_is_in(self) -> None:
        self.host(HOST, lambda: held('0000:17:00.0'))
        self.assertEqual({
            '17': 'claimed', '18': 'stranded', '19': 'free',
            '65': 'attached', '66': 'withheld', '67': 'host', '03': 'host',
        }, self.states())
        self.assertEqual(1, self.value('libvirt_up'))

    def test_counts_add_up_to_the_cards(self) -> None:
        self.host(HOST, lambda: held('0000:17:00.0'))
        counts = {labels: value for (name, labels), value in
                  self.found.items() if name == 'cards'}
        self.assertEqual(7, sum(counts.values()))
        self.assertEqual(1, self.value(
            'cards', verdict='offered', state='free', model='10de:2330',
            numa_node='1'))

    def test_two_alike_are_one_count(self) -> None:
        self.host("""0000:17:00.0 030000 10de:2204 driver=vfio-pci group=1
                     0000:18:00.0 030000 10de:2204 driver=vfio-pci group=2
                     """, lambda: ())
        self.assertEqual(2, self.value(
            'cards', verdict='offered', state='free', model='10de:2204',
            numa_node=''))

    def test_card_is_named_with_its_place(self) -> None:
        self.host(HOST, lambda: ())
        row, = (row for row in metrics.named(self.found, 'card_info')
                if row['address'] == '0000:17:00.0')
        self.assertEqual({
            'address': '0000:17:00.0', 'verdict': 'offered', 'state': 'free',
            'model': '10de:2204', 'name': 'GA102 [GeForce RTX 3090]',
            'numa_node': '0', 'iommu_group': '1', 'driver': 'vfio-pci'}, row)

    def test_reason_is_told_of_what_is_withheld(self) -> None:
        self.host(HOST, lambda: ())
        reasons = {row['address']: row['reason'] for row in
                   metrics.named(self.found, 'card_withheld_info')}
        self.assertEqual(['0000:03:00.0', '0000:66:00.0', '0000:67:00.0'],
                         sorted(reasons))
        self.assertIn('8 now', reasons['0000:66:00.0'])

    def test_holder_is_the_guest_that_has_any_function(self) -> None:
        self.host("""0000:17:00.0 030000 10de:2204 driver=vfio-pci group=1
                     0000:17:00.1 040300 10de:1aef driver=vfio-pci group=1
                     """, lambda: held('0000:17:00.1'))
        self.assertEqual([{'address': '0000:17:00.0', 'model': '10de:2204',
                           'instance_uuid': UUID}],
                         metrics.named(self.found, 'card_holder_info'))

    def test_what_an_operator_sets_apart_is_told_with_the_reason(
            self) -> None:
        store = host_records.Records(self.folder / 'records')
        self.host(HOST, lambda: (), records=store)
        self.assertEqual('free', self.states()['19'])
        card, = (card for card in self.looked_at.look().own_verdicts
                 if str(card.address) == '0000:19:00.0')
        store.change(card, lambda record: record.but(withheld='fan is loud'))
        self.scrape()
        self.assertEqual('set_apart', self.states()['19'])
        self.assertIn('fan is loud', ' '.join(
            row['reason'] for row in
            metrics.named(self.found, 'card_withheld_info')))

    def test_card_that_a_guest_did_not_start_with_is_withheld(self) -> None:
        store = host_records.Records(self.folder / 'records')
        self.host(HOST, lambda: (), records=store)
        store.change(self.looked_at.look().own_verdicts[3],
                     lambda record: record.but(failed_start='vfio says no'))
        self.scrape()
        self.assertEqual(
            [str(self.looked_at.look().own_verdicts[3].address)],
            [row['address'] for row in
             metrics.named(self.found, 'card_withheld_info')
             if 'vfio says no' in row['reason']])
        self.assertIn('withheld', self.states().values())

    def test_nothing_is_free_while_the_records_cannot_be_read(self) -> None:
        file = self.folder / 'records'
        file.write_text('no folder')
        self.host(HOST, lambda: held('0000:17:00.0'),
                  records=host_records.Records(file))
        self.assertEqual({
            '17': 'claimed', '18': 'unknown', '19': 'unknown',
            '65': 'attached', '66': 'withheld', '67': 'host', '03': 'host',
        }, self.states())

    def test_what_is_kept_for_a_revert_is_claimed(self) -> None:
        kept = domain.DomainDevices(
            UUID, 'a', frozenset(),
            frozenset([pci.PCIAddress.parse('0000:19:00.0')]))
        self.host(HOST, lambda: [kept])
        self.assertEqual('claimed', self.states()['19'])

    def test_host_is_read_anew_at_each_scrape(self) -> None:
        self.host(HOST, lambda: ())
        self.sysfs.set_driver('0000:65:00.0', 'vfio-pci')
        self.sysfs.add('0000:68:00.0 030200 10de:1eb8 group=9')
        self.scrape()
        self.assertEqual('free', self.states()['65'])
        self.assertEqual('attached', self.states()['68'])


class LibvirtTest(TestCase):
    def test_nothing_is_free_while_libvirt_is_down(self) -> None:
        def refuse() -> Iterable[domain.DomainDevices]:
            raise libvirt.libvirtError('no socket')

        self.host(HOST, refuse)
        self.assertEqual({
            '17': 'unknown', '18': 'unknown', '19': 'unknown',
            '65': 'attached', '66': 'withheld', '67': 'host', '03': 'host',
        }, self.states())
        self.assertEqual(0, self.value('libvirt_up'))

    def test_scrape_ends_while_libvirt_hangs_and_asks_it_once(self) -> None:
        answer, calls = threading.Event(), []
        self.addCleanup(answer.set)

        def hang() -> Iterable[domain.DomainDevices]:
            calls.append(1)
            answer.wait()
            return held('0000:17:00.0')

        self.host(HOST, hang, timeout=.01)
        self.scrape()
        self.assertEqual(0, self.value('libvirt_up'))
        self.assertEqual(1, len(calls))

    def test_what_libvirt_says_at_last_is_told(self) -> None:
        answer, begun = threading.Event(), threading.Event()

        def hang() -> Iterable[domain.DomainDevices]:
            begun.set()
            answer.wait()
            return held('0000:17:00.0')

        limited = host_metrics.TimeLimited(hang, .01)
        self.assertRaises(libvirt.libvirtError, limited)
        begun.wait()
        answer.set()
        limited._limit = 30
        self.assertEqual([UUID], [one.uuid for one in limited()])

    def test_description_that_is_no_xml_is_no_answer(self) -> None:
        self.host(HOST, lambda: [domain.read('<domain')])
        self.assertEqual(0, self.value('libvirt_up'))


class ComputeTest(TestCase):
    FILE = metrics.PREFIX + 'action_failures_total{action="a",reason="b"} 3\n'

    def test_what_nova_compute_wrote_is_handed_on_with_its_time(self) -> None:
        (self.folder / 'nova.prom').write_text(self.FILE)
        os.utime(self.folder / 'nova.prom', (1000, 1000))
        self.host(HOST, lambda: ())
        self.assertEqual(3, self.value('action_failures_total', action='a',
                                       reason='b'))
        self.assertEqual(1000, self.value('compute_report_timestamp_seconds'))

    def test_time_is_missing_where_nothing_was_written(self) -> None:
        self.host(HOST, lambda: ())
        self.assertEqual([], metrics.named(
            self.found, 'compute_report_timestamp_seconds'))

    def test_time_is_missing_where_the_file_makes_no_sense(self) -> None:
        (self.folder / 'nova.prom').write_text('a{b=')
        self.host(HOST, lambda: ())
        self.assertEqual([], metrics.named(
            self.found, 'compute_report_timestamp_seconds'))
        self.assertEqual(7, len(self.states()))

    def test_all_that_nova_compute_writes_is_handed_on(self) -> None:
        compute = telemetry.Telemetry()
        compute_metrics.Report(compute.registry).update(
            self.cards(HOST), [pools.Pool('10de:2204', 1)])
        with compute.timed('detach'):
            pass
        compute.failed('detach', 'timeout')
        compute.write(str(self.folder / 'nova.prom'))
        self.host(HOST, lambda: ())
        self.assertGreaterEqual(self.value('action_duration_seconds_count',
                                           action='detach'), 1)
        written = {one: value for one, value in
                   metrics.scrape(compute.registry).items()
                   if not one[0].endswith('_created')}
        self.assertEqual(written, {
            one: value for one, value in self.found.items()
            if one[0].startswith(('action_', 'reported_', 'compute_with'))})
