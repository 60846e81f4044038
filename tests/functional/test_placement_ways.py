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

"""Placement's records of moves, for each way in which a flavor may ask.

What it allocated is used; what guests have that did not ask it is reserved.
"""

from typing import Any

from tests.functional import base
from tests.functional import test_moves
from tests.functional import test_placement_actions


class WaysTestCase(test_placement_actions.ActionsTestCase):
    """The scheduler's first choice, host1, is where guests come from."""

    # The keys that say the number.
    KEYS: tuple[str, ...] = ()

    def setUp(self) -> None:
        super().setUp()
        # Nova compares with CONF.host, which is the last one's.
        self.add_host('host2', test_moves.ON_HOST_2)
        self.add_host('host1', base.TWO_CARDS)

    def flavor_of(self, count: int) -> str:
        return self.create_flavor(
            dict.fromkeys(self.KEYS, str(count)) if count else None)

    def create(self, count: int) -> dict[str, Any]:
        return self.create_server(flavor_id=self.flavor_of(count))

    def assertPools(self, host1: int, host2: int) -> None:
        """Checks how many cards of each host somebody has or may have."""
        self.run_periodic()
        by_placement = 'resources:PGPU' in self.KEYS
        for host, count in (('host1', host1), ('host2', host2)):
            if by_placement:
                self.assertPool(host, 2, used=count)
            else:
                self.assertPool(host, 2, reserved=count)

    def assertHas(self, server: dict[str, Any], host: str,
                  count: int) -> None:
        """Checks what a server has on record and in its domain."""
        self.assertEqual(host, self.host_of(server))
        if count and 'resources:PGPU' in self.KEYS:
            self.assertGiven(server, host, count)
        else:
            self.assertEqual({}, self.given(server['id']))
        self.assertGPUs(server, (base.CARD_1 + base.CARD_2)[:2 * count])


class ByPlacementTest(WaysTestCase):

    KEYS: tuple[str, ...] = ('resources:PGPU',)

    def test_resize_to_none(self) -> None:
        server = self.create(1)
        self._resize_server(server, self.flavor_of(0))
        self.assertPools(1, 0)
        self._revert_resize(server)
        self.assertPools(1, 0)
        self.assertHas(server, 'host1', 1)
        self._resize_server(server, self.flavor_of(0))
        self._confirm_resize(server)
        self.assertPools(0, 0)
        self.assertHas(server, 'host2', 0)

    def test_resize_from_none(self) -> None:
        server = self.create(0)
        self._resize_server(server, self.flavor_of(1))
        self.assertPools(0, 1)
        self._revert_resize(server)
        self.assertPools(0, 0)
        self.assertHas(server, 'host1', 0)
        self._resize_server(server, self.flavor_of(1))
        self._confirm_resize(server)
        self.assertPools(0, 1)
        self.assertHas(server, 'host2', 1)

    def test_resize_to_more(self) -> None:
        server = self.create(1)
        self._resize_server(server, self.flavor_of(2))
        self.assertPools(1, 2)
        self._revert_resize(server)
        self.assertPools(1, 0)
        self.assertHas(server, 'host1', 1)
        self._resize_server(server, self.flavor_of(2))
        self._confirm_resize(server)
        self.assertPools(0, 2)
        self.assertHas(server, 'host2', 2)

    def test_migrate(self) -> None:
        server = self.create(1)
        self._migrate_server(server)
        self.assertPools(1, 1)
        self._revert_resize(server)
        self.assertPools(1, 0)
        self.assertHas(server, 'host1', 1)
        self._migrate_server(server)
        self._confirm_resize(server)
        self.assertPools(0, 1)
        self.assertHas(server, 'host2', 1)

    def test_shelve_and_unshelve(self) -> None:
        self.flags(shelved_offload_time=0)
        server = self.create(1)
        self._shelve_server(server)
        self.assertPools(0, 0)
        self.assertEqual({}, self.given(server['id']))
        self._unshelve_server(server)
        self.assertPools(1, 0)
        self.assertHas(server, 'host1', 1)

    def test_evacuate(self) -> None:
        server = self.create(1)
        self.evacuate(server)
        self.restart_compute_service('host1')
        self._start_server(server)
        self.assertPools(0, 1)
        self.assertHas(server, 'host2', 1)


class ByCountTest(ByPlacementTest):

    KEYS = ('free_gpus',)


class ByBothTest(ByPlacementTest):

    KEYS = ('free_gpus', 'resources:PGPU')
