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


"""Many requests at once, for more cards than there are.

GPU_PASSTHRU_SCALE_HOSTS=25 makes it 200 requests for 240 cards, of which there
are 200. That takes long in one process.
"""

import collections
import os
import time
from typing import Any

import fixtures
from nova import context as nova_context

from tests.functional import base
from tests.functional import placement

CARDS = 8
HOSTS = int(os.environ.get('GPU_PASSTHRU_SCALE_HOSTS', '3'))
# Seconds that one request may take; with them grows what all may.
PATIENCE = 15


class ScaleTest(placement.PlacementTestCase):

    # The services work on several requests at a time.
    CAST_AS_CALL = False
    # Of OS_TEST_TIMEOUT.
    TIMEOUT_SCALING_FACTOR = HOSTS

    def setUp(self) -> None:
        target_cell = nova_context.target_cell
        super().setUp()
        # Nova's fixture lets one thread at a time look into a cell, by a lock
        # that is not fair. There is one cell with hosts here.
        self.useFixture(fixtures.MonkeyPatch('nova.context.target_cell',
                                             target_cell))
        self.flags(instances=-1, cores=-1, ram=-1, group='quota')
        for number in range(HOSTS):
            self.add_host(f'host{number:02}', ''.join(
                f'0000:{bus:02x}:00.0 030200 10de:2330 driver=nvidia '
                f'group={bus}\n' for bus in range(0x40, 0x40 + CARDS)))

    def test_the_last_card_is_given_once(self) -> None:
        flavors = {count: self.pgpu_flavor(count) for count in (1, 2)}
        asked = {}
        for count in self._counts():
            server = self.api.post_server({'server': self._build_server(
                flavor_id=flavors[count], networks='none')})
            asked[server['id']] = count
        servers = self._wait_until_built(len(asked))
        active = {s['id']: asked[s['id']] for s in servers
                  if s['status'] == 'ACTIVE'}
        self.assertEqual(HOSTS * CARDS, sum(active.values()))
        self._check_cards(active)
        for server in servers:
            if server['id'] in active:
                self.assertNeverRescheduled(server)
            else:
                self.assertNoHost(self.api.get_server(server['id']))
        for host in self.computes:
            self.assertPool(host, CARDS, used=CARDS, model=base.H100)

    def _counts(self) -> list[int]:
        """How many cards each request is for.

        Those for one, which come last, fit wherever those for two left one.
        """
        twos = HOSTS * CARDS // 5
        return [1, 2] * twos + [1] * (HOSTS * CARDS - 2 * twos)

    def _check_cards(self, active: dict[str, int]) -> None:
        """Each guest has its number of cards, each card one guest."""
        held: collections.Counter[tuple[str, str]] = collections.Counter()
        for host in self.computes:
            for domain in self._prepared[host].domains:
                self.assertEqual(active[domain.UUIDString()],
                                 len(domain.functions))
                held.update((host, a) for a in domain.functions)
        self.assertEqual(HOSTS * CARDS, len(held))
        self.assertEqual({1}, set(held.values()))

    def _wait_until_built(self, count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE * count
        while True:
            servers: list[dict[str, Any]] = self.api.get_servers()
            if all(server['status'] != 'BUILD' for server in servers):
                self.assertEqual(count, len(servers))
                return servers
            self.assertLess(time.monotonic(), deadline, 'still in BUILD')
            time.sleep(1)
