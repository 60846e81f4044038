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


"""Cards that guests give back by moving are released where they were."""

from tests.functional import base
from tests.functional import test_moves
from tests.functional import test_releases

ON_HOST_2 = """
0000:b1:00.0 030000 10de:1ff2 driver=nvidia group=33
0000:b1:00.1 040300 10de:10fa driver=snd_hda_intel group=33
"""
CARD_ON_2 = ['0000:b1:00.0', '0000:b1:00.1']


class MovesTestCase(test_moves.MovesTestCase):
    """Hosts with a hook that ends at once."""

    def setUp(self) -> None:
        super().setUp()
        self.hook = self.useFixture(test_releases.Hook())
        self.hook.go()
        self.flags(release_hook=str(self.hook.path), group='gpu_passthru')

    def assertReleased(self, *cards: list[str], **free: int) -> None:
        """Checks which cards the hook has had, once that is reported."""
        self._wait_for_assert(lambda: self.assertReported(**free))
        self.assertEqual(sorted(cards),
                         sorted(run[1:] for run in self.hook.runs))


class OtherHostTest(MovesTestCase):

    def setUp(self) -> None:
        super().setUp()
        # Nova compares with CONF.host, which is the last one's.
        self.add_host('host2', ON_HOST_2)
        self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_gpu_server()

    def test_migrate_and_confirm(self) -> None:
        self._migrate_server(self.server)
        self.assertReleased(host1=1, host2=0)
        self._confirm_resize(self.server)
        self.assertReleased(base.CARD_1, host1=2, host2=0)

    def test_migrate_and_revert(self) -> None:
        self._migrate_server(self.server)
        self._revert_resize(self.server)
        self.assertReleased(CARD_ON_2, host1=1, host2=1)
        self.assertGPUs(self.server, base.CARD_1)

    def test_shelve_and_unshelve(self) -> None:
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server)
        self.assertReleased(base.CARD_1, host1=2, host2=1)
        self._unshelve_server(self.server)
        self.assertGPUs(self.server, base.CARD_1)

    def test_shelve_without_offload(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, expected_state='SHELVED')
        self._unshelve_server(self.server)
        self.assertReleased(host1=1, host2=1)
        self.assertGPUs(self.server, base.CARD_1)

    def test_evacuate(self) -> None:
        self.evacuate(self.server)
        self._start_server(self.server)
        self.assertEqual([], self.hook.runs)
        self.restart_compute_service('host1')
        self.assertReleased(base.CARD_1, host1=2, host2=0)


class SameHostTest(MovesTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_gpu_server(2)
        self._resize_server(self.server, self.gpu_flavor(1))
        self.held_without_domain['host1'] = 1
        self.assertReleased(host1=0)

    def test_to_fewer_and_confirm(self) -> None:
        self._confirm_resize(self.server)
        self.held_without_domain.clear()
        self.assertReleased(base.CARD_2, host1=1)

    def test_to_fewer_and_revert(self) -> None:
        self._revert_resize(self.server)
        self.held_without_domain.clear()
        self.assertReleased(host1=0)
        self.assertGPUs(self.server, base.CARD_1 + base.CARD_2)


class HoldTest(MovesTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.flags(hold_after_release=True, group='gpu_passthru')
        self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_gpu_server()

    def test_unshelve_with_another_card(self) -> None:
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server)
        self.withheld['host1'] = 1
        self.assertReleased(base.CARD_1, host1=1)
        self._unshelve_server(self.server)
        self.assertGPUs(self.server, base.CARD_2)
