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

import prometheus_client

from nova_gpu_passthru.host import metrics as host_metrics
from nova_gpu_passthru.host import pools
from tests.unit import base
from tests.unit import metrics


class ReportTest(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics = host_metrics.Report(self.registry)

    def report(self, description: str, *counted: pools.Pool) -> None:
        self.metrics.update(self.cards(description), counted)
        self.found = metrics.scrape(self.registry)

    def test_pools_are_told_by_what_guests_can_have(self) -> None:
        self.report('', pools.Pool('10de:2330', 8, {'a': 2, 'b': 1}, 1))
        self.assertEqual({'free': 4, 'claimed': 3, 'blocked': 1}, {
            dict(labels)['state']: value
            for (name, labels), value in self.found.items()
            if name == 'reported_cards'})

    def test_card_that_something_is_wrong_with_comes_with_the_reason(
            self) -> None:
        self.report("""
            0000:65:00.0 030000 10de:1ff2 driver=vfio-pci
            0000:66:00.0 030000 1a03:2000 driver=ast group=2
            0000:67:00.0 030000 10de:1ff2 driver=vfio-pci group=3""")
        row, = metrics.named(self.found, 'compute_withheld_info')
        self.assertEqual('0000:65:00.0', row['address'])
        self.assertIn('in no IOMMU group', row['reason'])

    def test_card_that_was_mended_is_told_no_more(self) -> None:
        self.report('0000:65:00.0 030000 10de:1ff2 driver=vfio-pci')
        self.report('0000:65:00.0 030000 10de:1ff2 driver=vfio-pci group=1')
        self.assertEqual([], metrics.named(self.found,
                                           'compute_withheld_info'))
