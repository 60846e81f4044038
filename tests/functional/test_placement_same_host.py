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


"""Placement's records of a guest that is resized where it is.

Nova leaves what the guest had with the migration until it is confirmed, so
Placement counts the guest twice meanwhile.
"""

from tests.functional import base
from tests.functional import placement
from tests.functional import test_moves
from tests.functional import test_placement_actions

FOUR_CARDS = test_moves.ON_HOST_2 + """
0000:81:00.0 030000 10de:1ff2 driver=nvidia group=35
0000:82:00.0 030000 10de:1ff2 driver=nvidia group=36
"""


class SameHostTestCase(test_placement_actions.ActionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)


class SameModelTest(SameHostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.add_host('host1', FOUR_CARDS)

    def test_to_more_and_confirm(self) -> None:
        server = self.create_pgpu_server(1)
        self._resize_server(server, self.pgpu_flavor(2))
        self.run_periodic()
        self.assertPool('host1', 4, used=3)
        self._confirm_resize(server)
        self.run_periodic()
        self.assertGiven(server, 'host1', 2)
        self.assertPool('host1', 4, used=2)

    def test_to_more_and_revert(self) -> None:
        server = self.create_pgpu_server(1)
        self._resize_server(server, self.pgpu_flavor(2))
        self._revert_resize(server)
        self.run_periodic()
        self.assertGiven(server, 'host1', 1)
        self.assertPool('host1', 4, used=1)

    def test_to_fewer_and_confirm(self) -> None:
        server = self.create_pgpu_server(2)
        self._resize_server(server, self.pgpu_flavor(1))
        self.run_periodic()
        self.assertPool('host1', 4, used=3)
        self._confirm_resize(server)
        self.run_periodic()
        self.assertGiven(server, 'host1', 1)
        self.assertPool('host1', 4, used=1)

    def test_to_fewer_and_revert(self) -> None:
        server = self.create_pgpu_server(2)
        self._resize_server(server, self.pgpu_flavor(1))
        self._revert_resize(server)
        self.run_periodic()
        self.assertGiven(server, 'host1', 2)
        self.assertPool('host1', 4, used=2)

    def test_to_none_and_back(self) -> None:
        server = self.create_pgpu_server(1)
        self._resize_server(server, self.create_flavor())
        self.run_periodic()
        self.assertPool('host1', 4, used=1)
        self._revert_resize(server)
        self.run_periodic()
        self.assertPool('host1', 4, used=1)

    def test_to_a_flavor_that_does_not_ask(self) -> None:
        server = self.create_pgpu_server(1)
        self._resize_server(server, self.gpu_flavor(2))
        self.run_periodic()
        # Of its two the migration has one on record.
        self.assertPool('host1', 4, reserved=1, used=1)
        self._confirm_resize(server)
        self.run_periodic()
        self.assertPool('host1', 4, reserved=2)

    def test_what_fits_only_once_is_refused(self) -> None:
        server = self.create_pgpu_server(3)
        self.api.post_server_action(
            server['id'], {'resize': {'flavorRef': self.pgpu_flavor(2)}})
        self._wait_for_migration_status(server, ['error'])
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertGiven(server, 'host1', 3)
        self.assertPool('host1', 4, used=3)


class OtherModelTest(SameHostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.add_host('host1', placement.TWO_OF_TWO_MODELS)
        self.server = self.create_server(
            {'resources:PGPU': '1',
             f'trait:{placement.T400_TRAIT}': 'required'})
        self.assertGPUs(self.server, base.CARD_1)
        self._resize_server(self.server, self.pgpu_flavor(
            2, **{f'trait:{placement.H100_TRAIT}': 'required'}))

    def test_and_confirm(self) -> None:
        self.assertGPUs(self.server, placement.TWO_H100S)
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self.assertPool('host1', 2, used=2, model=base.H100)
        self._confirm_resize(self.server)
        self.run_periodic()
        self.assertPool('host1', 2)
        self.assertGiven(self.server, 'host1', 2, base.H100)

    def test_and_revert(self) -> None:
        self._revert_resize(self.server)
        self.run_periodic()
        self.assertGPUs(self.server, base.CARD_1)
        self.assertPool('host1', 2, used=1)
        self.assertPool('host1', 2, model=base.H100)
