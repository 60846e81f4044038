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

"""What nova-compute writes for Prometheus."""

from tests.functional import base
from tests.functional import sysfs
from tests.unit import metrics


class MetricsTest(base.GPUTestCase):
    def value(self, name: str, **labels: str) -> float:
        return metrics.samples(self.metrics_file.read_text()).get(
            metrics.key(name, **labels), 0)

    def test_file_follows_what_happens(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        self.create_gpu_server()
        self.run_periodic()
        self.assertGreater(self.value('action_duration_seconds_count',
                                      action='claim'), 0)
        self.assertEqual(2, self.value(
            'action_duration_seconds_count', action='detach'))
        for state in ('claimed', 'free'):
            self.assertEqual(1, self.value('reported_cards', state=state,
                                           model=base.T400))

    def test_claim_that_loses_is_counted(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        lost = {'action': 'claim', 'reason': 'NotEnoughGPUs'}
        # The scheduler does not see the second one before the next report.
        self.create_gpu_server()
        self.create_gpu_server(state='ERROR')
        self.run_periodic()
        self.assertEqual(1, self.value('action_failures_total', **lost))

    def test_last_card_that_is_gone_is_not_told_as_free(self) -> None:
        tree = self.add_host('host1', base.ONE_CARD).sysfs
        free = {'state': 'free', 'model': base.T400}
        self.assertEqual(1, self.value('reported_cards', **free))
        for address in sysfs.addresses(tree):
            tree.remove(address)
        for _ in range(2):
            self.run_periodic()
            self.assertEqual(0, self.value('reported_cards', **free))

    def test_host_without_gpus_writes_nothing(self) -> None:
        self.add_host('host1', base.NO_CARD)
        self.assertFalse(self.metrics_file.exists())
