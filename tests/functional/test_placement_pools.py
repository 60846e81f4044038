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


"""The cards of a host as Placement has them on record."""

from typing import NoReturn

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from oslo_utils.fixture import uuidsentinel

from tests.functional import base
from tests.functional import gpu_libvirt
from tests.functional import libvirt_errors
from tests.functional import placement


class PoolsTest(placement.PlacementTestCase):

    def test_a_pool_is_a_provider_below_its_host(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        root = self.compute_rp_uuids['host1']
        uuid = self._get_provider_uuid_by_name('host1_gpu_10de_1ff2')
        shown = self.placement.get(f'/resource_providers/{uuid}',
                                   version='1.14').body
        self.assertEqual(root, shown['parent_provider_uuid'])
        self.assertEqual(
            {'PGPU': {'total': 2, 'reserved': 0, 'min_unit': 1,
                      'max_unit': 2, 'step_size': 1,
                      'allocation_ratio': 1.0}},
            self._get_provider_inventory(uuid))
        self.assertEqual([placement.T400_TRAIT],
                         self._get_provider_traits(uuid))
        self.assertEqual({'VCPU', 'MEMORY_MB', 'DISK_GB'},
                         set(self._get_provider_inventory(root)))
        self.assertNotIn(placement.T400_TRAIT,
                         self._get_provider_traits(root))

    def test_each_model_is_a_pool(self) -> None:
        self.add_host('host1', placement.TWO_OF_TWO_MODELS)
        self.assertEqual({base.T400: placement.Pool(2),
                          base.H100: placement.Pool(2)}, self.pools('host1'))

    def test_a_host_without_cards_has_no_pool(self) -> None:
        self.add_host('host1', base.NO_CARD)
        self.assertEqual({}, self.pools('host1'))
        self.assertEqual([self.compute_rp_uuids['host1']],
                         [p['uuid'] for p in self._get_all_providers()])

    def test_a_withheld_card_is_in_no_pool(self) -> None:
        self.flags(exclude=['0000:17:00.0'], group='gpu_passthru')
        self.add_host('host1', base.TWO_CARDS)
        self.assertPool('host1', 1)

    def test_a_host_of_withheld_cards_has_no_pool(self) -> None:
        self.flags(exclude=[base.T400], group='gpu_passthru')
        self.add_host('host1', base.TWO_CARDS)
        self.assertEqual({}, self.pools('host1'))

    def test_a_restart_changes_nothing(self) -> None:
        self.add_host('host1', placement.TWO_OF_TWO_MODELS)
        self.create_pgpu_server(2)
        self.create_gpu_server()
        self.run_periodic()
        before = self.pool_uuids('host1'), self.pools('host1')
        self.restart_compute_service('host1')
        self.assertEqual(
            before, (self.pool_uuids('host1'), self.pools('host1')))

    def test_a_period_without_news_writes_nothing(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        self.create_pgpu_server()
        self.run_periodic()
        before = self._generation('host1')
        self.run_periodic()
        self.assertEqual(before, self._generation('host1'))

    def _generation(self, host: str) -> int:
        uuid = self.pool_uuids(host)[base.T400]
        shown = self.placement.get(f'/resource_providers/{uuid}').body
        generation: int = shown['generation']
        return generation


class ReservedTest(placement.PlacementTestCase):
    """What Placement does not know of, it must not give."""

    def test_a_guest_that_did_not_ask_placement(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        server = self.create_gpu_server()
        self.run_periodic()
        self.assertPool('host1', 2, reserved=1)
        self.assertEqual({}, self.given(server['id']))
        self._delete_server(server)
        self.assertPool('host1', 2)

    def test_a_guest_that_did_is_not_reserved(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        server = self.create_pgpu_server()
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self._delete_server(server)
        self.assertPool('host1', 2)

    def test_a_guest_that_an_operator_made(self) -> None:
        connection = self.add_host('host1', base.TWO_CARDS)
        domain = connection.defineXML(gpu_libvirt.hand_made(
            'by-hand', uuidsentinel.by_hand, base.CARD_1))
        self.run_periodic()
        self.assertPool('host1', 2, reserved=1)
        server = self.create_pgpu_server()
        self.assertGPUs(server, base.CARD_2)
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))
        domain.undefineFlags(0)
        # It may be missing from one list by mistake.
        for reserved in (1, 0):
            self.run_periodic()
            self.assertPool('host1', 2, reserved, used=1)

    def test_a_card_whose_group_is_taken(self) -> None:
        self.add_host('host1', placement.ONE_GROUP)
        self.assertPool('host1', 2)
        server = self.create_pgpu_server()
        self.run_periodic()
        self.assertPool('host1', 2, reserved=1, used=1)
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))
        self._delete_server(server)
        self.run_periodic()
        self.create_gpu_server()
        self.run_periodic()
        self.assertPool('host1', 2, reserved=2)
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))

    def test_all_cards_while_nobody_knows_who_holds_them(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        server = self.create_pgpu_server()
        with fixtures.MonkeyPatch(
                'nova_gpu_passthru.nova_host.NovaHypervisor.domains',
                _fails):
            self.restart_compute_service('host1')
            self.assertPool('host1', 2, reserved=2, used=1)
            self.assertNoHost(self.create_pgpu_server(state='ERROR'))
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self.assertGPUs(server, base.CARD_1)


def _fails(hypervisor: object) -> NoReturn:
    raise libvirt_errors.error('internal error: cannot read domains',
                               fakelibvirt.VIR_ERR_INTERNAL_ERROR)


class ShrinkTest(placement.PlacementTestCase):
    """Cards that go, while they are free and while a guest has them."""

    def setUp(self) -> None:
        super().setUp()
        self.add_host('host1', base.TWO_CARDS)

    def _lose(self, functions: list[str]) -> None:
        for address in functions:
            self.sysfs['host1'].remove(address)
            # It is no part of the host any more.
            del self._prepared['host1'].original_drivers[address]
        self.run_periodic()

    def test_a_free_card_leaves_its_pool(self) -> None:
        self._lose(base.CARD_1)
        self.assertPool('host1', 1)

    def test_a_pool_that_is_empty_goes_and_comes_back(self) -> None:
        self._lose(base.CARD_1 + base.CARD_2)
        self.assertEqual({}, self.pools('host1'))
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))
        self.sysfs['host1'].add(base.ONE_CARD.replace(
            '0000:04:00.0', '0000:05:00.0'))
        self.run_periodic()
        self.assertPool('host1', 1)
        self.assertGPUs(self.create_pgpu_server(), base.CARD_1)

    def test_what_is_allocated_stays_until_it_is_not(self) -> None:
        server = self.create_pgpu_server(2)
        self._stop_server(server)
        self._lose(base.CARD_1 + base.CARD_2)
        self.assertPool('host1', 2, used=2)
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))
        self._delete_server(server)
        self.run_periodic()
        self.assertEqual({}, self.pools('host1'))

    def test_a_card_that_a_guest_has_lost_is_not_given_again(self) -> None:
        server = self.create_pgpu_server()
        self.assertGPUs(server, base.CARD_1)
        self._lose(base.CARD_1)
        # It is its holder's until that is gone, so the other one is free.
        self.assertPool('host1', 2, used=1)
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)
        self.create_pgpu_server(state='ERROR')
        self._delete_server(server)
        self.run_periodic()
        self.assertPool('host1', 1, used=1)
        self.create_pgpu_server(state='ERROR')

    def test_a_sick_card_is_not_given(self) -> None:
        self.sysfs['host1'].set_dead(base.CARD_1[0])
        self.run_periodic()
        self.assertPool('host1', 1)
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))
        self.sysfs['host1'].set_dead(base.CARD_1[0], False)
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
