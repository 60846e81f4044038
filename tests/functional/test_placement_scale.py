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

"""Many requests at once, in the end for more cards than there are.

GPU_PASSTHRU_SCALE_HOSTS=25 makes it 200 requests for 240 cards, of which there
are 200: "tox -e scale". That takes minutes in one process.
"""

import collections
from collections.abc import Iterable
import os
import time
from typing import Any

import fixtures
from nova import context as nova_context

from tests.functional import base
from tests.functional import placement

CARDS = 8
HOSTS = int(os.environ.get('GPU_PASSTHRU_SCALE_HOSTS', '3'))
TWOS = HOSTS * CARDS // 5
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
        self._flavors = {count: self.pgpu_flavor(count) for count in (1, 2)}

    def test_every_card_is_given_once(self) -> None:
        # As long as more cards are free than there are hosts, one of them has
        # two, so nothing may be refused.
        room = HOSTS * (CARDS - 1)
        first = self._create([1, 2] * TWOS + [1] * (room - 3 * TWOS))
        self.assertEqual(room, sum(first.values()))
        self.assertEqual(set(first), set(self._active(first)))
        # These are for the rest, and some are too many.
        last = self._create([1] * (HOSTS + TWOS))
        served = self._active(last)
        self.assertEqual(HOSTS, len(served))
        for server in last.keys() - served:
            self.assertNoHost(self.api.get_server(server))
        for server in (*first, *served):
            self.assertNeverRescheduled({'id': server})
        self._check_cards({**first, **dict.fromkeys(served, 1)})
        for host in self.computes:
            self.assertPool(host, CARDS, used=CARDS, model=base.H100)

    def _create(self, counts: Iterable[int]) -> dict[str, int]:
        """Asks for a server for each number of cards, waiting for none.

        :returns: the number by the server's uuid
        """
        asked = {}
        for count in counts:
            server = self.api.post_server({'server': self._build_server(
                flavor_id=self._flavors[count], networks='none')})
            asked[server['id']] = count
        return asked

    def _active(self, asked: dict[str, int]) -> set[str]:
        """Waits until servers are built and tells which have a host."""
        return {server['id'] for server in self._wait_until_built(asked)
                if server['status'] == 'ACTIVE'}

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

    def _wait_until_built(self, asked: dict[str, int]
                          ) -> list[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE * len(asked)
        while True:
            servers = [server for server in self.api.get_servers()
                       if server['id'] in asked]
            if all(server['status'] != 'BUILD' for server in servers):
                self.assertEqual(len(asked), len(servers))
                return servers
            self.assertLess(time.monotonic(), deadline, 'still in BUILD')
            time.sleep(1)
