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


"""Placement that fails or was changed by somebody else.

Nova asks Placement the same, and has no report while it gets no answer at
all. What is tested is that the pools do not add to that.
"""

import types
from typing import Any, NoReturn

import fixtures
from keystoneauth1 import exceptions as keystone_exceptions
from nova import context as nova_context
from nova import exception
from nova import objects
from oslo_utils.fixture import uuidsentinel

from nova_gpu_passthru import placement as package
from tests.functional import base
from tests.functional import placement

# Nova's fake libvirt tells MiB where its HostInfo says kB.
MORE_MEMORY = 64 * 2 ** 20


class FailingClient:
    """Does not tell what is allocated."""

    def __init__(self, client: Any, error: Exception) -> None:
        self._client = client
        self._error = error

    def _fails(self, *args: Any) -> NoReturn:
        raise self._error

    get_allocations_for_resource_provider = _fails
    get_allocs_for_consumer = _fails

    def get_allocations_for_consumer(self, *args: Any) -> dict[str, Any]:
        # Nova's own catches the error.
        return {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class FailuresTestCase(placement.PlacementTestCase):

    def _let_placement_fail(self, host: str, error: Exception) -> None:
        """Lets it fail for the pools, not for Nova."""
        pools = self.computes[host].driver._allocation._pools
        client = FailingClient(pools._virtapi.reportclient, error)
        self.useFixture(fixtures.MockPatchObject(
            pools, '_virtapi', types.SimpleNamespace(reportclient=client)))

    def _check_host_is_reported(self, host: str) -> None:
        """What the host reports of its memory arrives."""
        self._prepared[host].host_info.kB_mem = MORE_MEMORY
        self.run_periodic(host)
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            nova_context.get_admin_context(), host)
        self.assertEqual(MORE_MEMORY, node.memory_mb)
        root = self._get_provider_inventory(self.compute_rp_uuids[host])
        self.assertEqual(MORE_MEMORY, root['MEMORY_MB']['total'])


class SilenceTest(FailuresTestCase):

    def test_what_is_allocated_is_not_told(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        server = self.create_pgpu_server()
        before = self.pools('host1')
        for error in (
                keystone_exceptions.ConnectFailure('no answer'),
                exception.ResourceProviderAllocationRetrievalFailed(
                    rp_uuid=uuidsentinel.pool, error='503')):
            self._let_placement_fail('host1', error)
            self.run_periodic()
            self.assertEqual(before, self.pools('host1'))
        self._check_host_is_reported('host1')
        self.assertFree(1, 'host1')
        self.assertGPUs(server, base.CARD_1)

    def test_the_guest_has_no_other_model_than_it_asked_for(self) -> None:
        """Which Placement allocated the host cannot know now."""
        self.add_host('host1', placement.TWO_OF_TWO_MODELS)
        self.run_periodic()
        self._let_placement_fail(
            'host1', exception.ConsumerAllocationRetrievalFailed(
                consumer_uuid=uuidsentinel.any, error='503'))
        self.create_server({'resources:PGPU': '1',
                            f'trait:{placement.H100_TRAIT}': 'required'},
                           state='ERROR')
        self.assertEqual([], self._prepared['host1'].domains)


class ConflictsTest(FailuresTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.add_host('host1', base.TWO_CARDS)
        self.interferences: list[str] = []
        update = package.Pools.update

        def interfering(*args: Any) -> None:
            update(*args)
            if self.interferences:
                getattr(self, self.interferences.pop())()

        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.placement.Pools.update', interfering))

    def _change_pool(self) -> None:
        """Between reading and writing the generation goes up."""
        uuid = self.pool_uuids('host1')[base.T400]
        inventory = self._get_provider_inventory(uuid)['PGPU']
        self._update_inventory(uuid, {
            'resource_provider_generation': self._generation(uuid),
            'inventories': {'PGPU': {**inventory, 'max_unit': 1}}})

    def _allocate(self) -> None:
        uuid = self.pool_uuids('host1')[base.T400]
        self.placement.put(
            f'/allocations/{uuidsentinel.consumer}',
            version='1.28', body={
                'allocations': {uuid: {'resources': {'PGPU': 1}}},
                'project_id': uuidsentinel.project,
                'user_id': uuidsentinel.user, 'consumer_generation': None})

    def _generation(self, uuid: str) -> int:
        shown = self.placement.get(f'/resource_providers/{uuid}').body
        generation: int = shown['generation']
        return generation

    def test_a_change_at_the_same_time_is_overcome(self) -> None:
        self.create_gpu_server()
        self.interferences = ['_change_pool'] * 2
        self._check_host_is_reported('host1')
        self.assertEqual([], self.interferences)
        self.assertPool('host1', 2, reserved=1)

    def test_an_allocation_from_a_pool_that_goes(self) -> None:
        for address in base.CARD_1 + base.CARD_2:
            self.sysfs['host1'].remove(address)
            del self._prepared['host1'].original_drivers[address]
        self.interferences = ['_allocate']
        self.run_periodic()
        self.assertEqual([], self.interferences)
        self._check_host_is_reported('host1')
        self.assertPool('host1', 1, used=1)
        self.placement.delete(f'/allocations/{uuidsentinel.consumer}')
        self.run_periodic()
        self.assertEqual({}, self.pools('host1'))

    def test_a_pool_that_somebody_deleted_comes_back(self) -> None:
        uuid = self.pool_uuids('host1')[base.T400]
        self.placement.delete(f'/resource_providers/{uuid}')
        self.restart_compute_service('host1')
        self.assertPool('host1', 2)


class NameTakenTest(FailuresTestCase):

    def test_the_host_starts_without_that_pool(self) -> None:
        """Such as what is left of a host of the same name."""
        self.placement.post('/resource_providers', version='1.20', body={
            'name': 'host1_gpu_10de_1ff2', 'uuid': uuidsentinel.left})
        self.add_host('host1', base.TWO_CARDS)
        self._check_host_is_reported('host1')
        self.assertFree(2, 'host1')
        self.placement.delete(f'/resource_providers/{uuidsentinel.left}')
        self.run_periodic()
        self.assertPool('host1', 2)
