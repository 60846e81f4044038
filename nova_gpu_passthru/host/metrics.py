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

"""What nova-compute makes of its host, as metrics."""

from collections.abc import Iterable, Iterator

import prometheus_client
from prometheus_client import core

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pools as host_pools
from nova_gpu_passthru import telemetry


class Report:
    """A collector of prometheus_client.

    Gauges would keep the cards and reasons that were seen once.

    :param registry: what it is collected in
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._cards: tuple[host_cards.Card, ...] = ()
        self._pools: tuple[host_pools.Pool, ...] = ()
        registry.register(self)

    def update(self, cards: Iterable[host_cards.Card],
               pools: Iterable[host_pools.Pool]) -> None:
        """Takes note of the cards and of what the scheduler is told."""
        self._cards, self._pools = tuple(cards), tuple(pools)

    def collect(self) -> Iterator[core.Metric]:
        counts = core.GaugeMetricFamily(
            f'{telemetry.PREFIX}_reported_cards',
            'Cards as the scheduler is told of them.',
            labels=['model', 'state'])
        for pool in self._pools:
            for state, number in (('free', pool.free),
                                  ('claimed', sum(pool.held.values())),
                                  ('blocked', pool.blocked)):
                counts.add_metric([pool.model, state], number)
        yield counts
        withheld = core.GaugeMetricFamily(
            f'{telemetry.PREFIX}_compute_withheld_info',
            'Cards that guests could have if something was mended.',
            labels=['address', 'model', 'reason'])
        for card in self._cards:
            if not (card.offered or card.stays_with_host):
                withheld.add_metric(
                    [str(card.address), card.model, card.reason], 1)
        yield withheld
