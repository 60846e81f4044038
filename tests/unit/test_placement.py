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

"""Pools in Nova's provider tree, with Placement's allocations made up."""

import collections
from collections.abc import Collection, Mapping

from keystoneauth1 import exceptions as keystone_exceptions
from nova.compute import provider_tree
from nova import exception
from nova import objects
from nova import test

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import pools
from nova_gpu_passthru import placement

NODE, ROOT = 'node1', 'aaaaaaaa-0000-4000-8000-000000000000'
ELSEWHERE = 'bbbbbbbb-0000-4000-8000-000000000000'
A, B, MIGRATION = 'instance-a', 'instance-b', 'migration-of-a'
NAME, MODEL = 'node1_gpu_10de_2330', '10de:2330'

Allocations = collections.namedtuple('Allocations', ['allocations'])


class ReportClient:
    """Nova's client of Placement, with one provider.

    :ivar given: how many GPUs each consumer has
    :ivar failure: what Placement answers with
    :ivar taken: the name of a provider that is not of this host
    :ivar status: the code with which it answers about names
    """

    def __init__(self) -> None:
        self.given: dict[str, int] = {}
        self.failure: Exception | None = None
        self.provider = ''
        self.taken = ''
        self.status = 200

    def get_allocations_for_resource_provider(
            self, context: object, uuid: str) -> Allocations:
        if self.failure is not None:
            raise self.failure
        return Allocations({
            consumer: {'resources': {'PGPU': number}}
            for consumer, number in self.given.items()})

    def get_allocs_for_consumer(
            self, context: object, consumer: str
    ) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
        if self.failure is not None:
            raise self.failure
        return {'allocations': {
            ROOT: {'resources': {'VCPU': 8}},
            self.provider: {'resources': {'PGPU': self.given[consumer]}},
            # While an instance is evacuated it has a part on both hosts.
            ELSEWHERE: {'resources': {'PGPU': 1}}
        } if consumer in self.given else {}}

    def get_resource_provider_name(self, context: object, uuid: str) -> str:
        return {self.provider: NAME, ELSEWHERE: 'node2_gpu_10de_2330'}[uuid]

    def get(self, url: str) -> 'Response':
        return Response([{'uuid': 'of-somebody-else'}]
                        if url.endswith(f'?name={self.taken}') else [],
                        self.status)


class Response:
    """What requests gives, which is false when it failed."""

    def __init__(self, providers: list[dict[str, str]], status: int) -> None:
        self._providers = providers
        self._status = status

    def __bool__(self) -> bool:
        return self._status < 400

    def json(self) -> dict[str, list[dict[str, str]]]:
        return {'resource_providers': self._providers}


class VirtAPI:
    def __init__(self, reportclient: ReportClient) -> None:
        self.reportclient = reportclient


class TestCase(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = ReportClient()
        self.pools = placement.Pools(VirtAPI(self.client))
        self.providers = provider_tree.ProviderTree()
        self.providers.new_root(NODE, ROOT)
        self.stub_out('nova.objects.Migration.get_by_uuid', self.migration)

    def migration(self, *args: object) -> objects.Migration:
        if args[-1] != MIGRATION:
            raise exception.MigrationNotFound(migration_id=args[-1])
        return objects.Migration(instance_uuid=A)

    def update(self, *all_pools: pools.Pool) -> None:
        self.pools.update(self.providers, NODE, all_pools)
        if self.providers.exists(NAME):
            self.client.provider = self.providers.data(NAME).uuid

    def inventory(self) -> tuple[int, int]:
        """Total and reserved."""
        inventory = self.providers.data(NAME).inventory['PGPU']
        self.assertEqual(1.0, inventory['allocation_ratio'])
        return inventory['total'], inventory['reserved']


class UpdateTest(TestCase):
    def test_pool_is_a_provider_below_the_host(self) -> None:
        self.update(pools.Pool(MODEL, total=8))
        data = self.providers.data(NAME)
        self.assertEqual(ROOT, data.parent_uuid)
        self.assertEqual({'CUSTOM_GPU_10DE_2330'}, data.traits)
        self.assertEqual((8, 0), self.inventory())

    def test_each_model_has_its_own(self) -> None:
        self.update(pools.Pool(MODEL, total=8),
                    pools.Pool('1002:74a1', total=1))
        self.assertTrue(self.providers.exists(NAME))
        self.assertTrue(self.providers.exists('node1_gpu_1002_74a1'))

    def test_cards_of_guests_that_asked_placement_are_not_reserved(
            self) -> None:
        self.update(pools.Pool(MODEL, total=8))
        self.client.given = {A: 3}
        self.update(pools.Pool(MODEL, total=8, held={A: 3}))
        self.assertEqual((8, 0), self.inventory())

    def test_cards_of_guests_that_did_not_ask_are_reserved(self) -> None:
        self.update(pools.Pool(MODEL, total=8, held={A: 3, B: 1}))
        self.assertEqual((8, 4), self.inventory())
        self.client.given = {A: 2}
        self.update(pools.Pool(MODEL, total=8, held={A: 3, B: 1}))
        self.assertEqual((8, 2), self.inventory())

    def test_cards_that_nobody_can_have_are_reserved(self) -> None:
        self.update(pools.Pool(MODEL, total=8, held={A: 1}, blocked=2))
        self.assertEqual((8, 3), self.inventory())

    def test_allocation_of_a_migration_is_its_instances(self) -> None:
        self.update(pools.Pool(MODEL, total=8))
        self.client.given = {MIGRATION: 2}
        self.update(pools.Pool(MODEL, total=8, held={A: 2}))
        self.assertEqual((8, 0), self.inventory())

    # https://bugs.launchpad.net/nova/+bug/2115905
    def test_what_is_allocated_stays_in_the_inventory(self) -> None:
        self.update(pools.Pool(MODEL, total=8))
        self.client.given = {A: 2}
        self.update()
        self.assertEqual(2, self.inventory()[0])

    # Placement refuses an inventory of nothing:
    # https://bugs.launchpad.net/nova/+bug/1901120
    def test_pool_that_is_empty_goes(self) -> None:
        self.update(pools.Pool(MODEL, total=8))
        self.update()
        self.assertFalse(self.providers.exists(NAME))
        self.update(pools.Pool(MODEL, total=0))
        self.assertFalse(self.providers.exists(NAME))

    def test_other_providers_are_left_alone(self) -> None:
        self.providers.new_child('node1_vgpu', NODE)
        self.update()
        self.assertTrue(self.providers.exists('node1_vgpu'))
        self.assertEqual({}, self.providers.data(NODE).inventory)

    def test_while_placement_does_not_tell_the_pool_stays_as_it_is(
            self) -> None:
        self.update(pools.Pool(MODEL, total=8, held={A: 1}))
        for failure in (
                keystone_exceptions.ConnectFailure('no answer'),
                exception.ResourceProviderAllocationRetrievalFailed(
                    rp_uuid=ROOT, error='503')):
            self.client.failure = failure
            self.update()
            self.assertEqual((8, 1), self.inventory())
        self.assertIn('no answer', self.stdlog.logger.output)


class AllocatedTest(TestCase):
    def test_models_that_placement_gave_an_instance(self) -> None:
        self.update(pools.Pool(MODEL, total=8))
        self.client.given = {A: 2}
        self.assertEqual({MODEL: 2}, self.allocated(A))
        self.assertEqual({}, self.allocated(B))

    def test_pools_are_known_before_they_are_updated(self) -> None:
        self.update(pools.Pool(MODEL, total=8))
        self.client.given = {A: 2}
        self.pools = placement.Pools(VirtAPI(self.client))
        self.assertEqual({MODEL: 2}, self.allocated(A))

    def test_silence_does_not_matter_where_all_cards_are_alike(self) -> None:
        self.client.failure = keystone_exceptions.ConnectFailure('down')
        self.assertEqual({}, self.allocated(A))

    def test_silence_refuses_where_there_are_several_models(self) -> None:
        self.client.failure = keystone_exceptions.ConnectFailure('down')
        two = (MODEL, '1002:74a1')
        error = self.assertRaises(exceptions.NotEnoughGPUs, self.allocated, A,
                                  models=two)
        self.assertIn('down', str(error))
        self.assertIn(A, str(error))
        # One that has its cards goes on with them, and with no others.
        self.assertEqual({MODEL: 2}, self.allocated(
            A, models=two, had={MODEL: 2}))

    def test_name_of_another_host_is_left_alone(self) -> None:
        self.client.taken = NAME
        self.update(pools.Pool(MODEL, total=8),
                    pools.Pool('1002:74a1', total=1))
        self.assertFalse(self.providers.exists(NAME))
        self.assertTrue(self.providers.exists('node1_gpu_1002_74a1'))
        self.assertIn('resource provider delete of-somebody-else',
                      self.stdlog.logger.output)

    def test_silence_about_a_name(self) -> None:
        self.client.status = 503
        self.update(pools.Pool(MODEL, total=8))
        self.assertFalse(self.providers.exists(NAME))
        self.client.status = 200
        self.update(pools.Pool(MODEL, total=8))
        self.assertTrue(self.providers.exists(NAME))

    def allocated(self, consumer: str, models: Collection[str] = (MODEL,),
                  had: Mapping[str, int] | None = None) -> dict[str, int]:
        return dict(self.pools.allocated_to(
            consumer, flavor.GPURequest(2, asks_placement=True), NODE,
            models, had or {}).allocated)
