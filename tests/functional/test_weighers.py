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


"""Guests go where they spare the most for guests with GPUs."""

from typing import Any

from tests.functional import base
from tests.functional import placement
from tests.functional import test_moves

FOUR_CARDS = test_moves.ON_HOST_2 + """
0000:81:00.0 030000 10de:1ff2 driver=nvidia group=35
0000:82:00.0 030000 10de:1ff2 driver=nvidia group=36
"""


class WeighersTestCase(base.GPUTestCase):
    """Nova's weighers at their defaults, and ours."""

    def _setup_scheduler_service(self) -> Any:
        self.flags(
            weight_classes=[
                'nova.scheduler.weights.all_weighers',
                'nova_gpu_passthru.scheduler.weights.all_weighers'],
            group='filter_scheduler')
        return super()._setup_scheduler_service()

    def hosts_of(self, servers: list[dict[str, Any]]) -> list[str | None]:
        return [self.host_of(server) for server in servers]

    def create_in_turn(self, count: int,
                       specs: dict[str, str]) -> list[dict[str, Any]]:
        servers = []
        for _ in range(count):
            servers.append(self.create_server(specs))
            self.run_periodic()
        return servers

    def disable(self, host: str) -> None:
        service, = self.admin_api.get_services(host=host,
                                               binary='nova-compute')
        self.admin_api.put_service(service['id'], {'status': 'disabled'})


class PlainGuestTest(WeighersTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.add_host('host1', base.TWO_CARDS)
        self.add_host('host2', base.NO_CARD)
        self.add_host('host3', base.ONE_CARD)

    def test_it_goes_to_a_host_without_gpus(self) -> None:
        """Although Nova's weighers prefer hosts with more left."""
        flavor_id = self._create_flavor(memory_mb=4096, vcpu=2, disk=1,
                                        ephemeral=0)
        servers = [self.create_server(flavor_id=flavor_id)
                   for _ in range(3)]
        self.assertEqual(['host2'] * 3, self.hosts_of(servers))

    def test_else_to_the_one_with_the_fewest_free(self) -> None:
        self.disable('host2')
        self.assertEqual(['host3'] * 2,
                         self.hosts_of(self.create_in_turn(2, {})))

    def test_a_host_whose_gpus_are_all_taken_is_as_good(self) -> None:
        self.disable('host2')
        self.create_server({'free_gpus': '2'})
        self.run_periodic()
        self.assertFree(0, 'host1')
        self.assertEqual('host1', self.host_of(self.create_server()))

    def test_the_multiplier_switches_it_off(self) -> None:
        self.flags(gpu_host_avoidance_weight_multiplier=0.0,
                   group='gpu_passthru')
        flavor_id = self._create_flavor(memory_mb=4096, vcpu=2, disk=1,
                                        ephemeral=0)
        servers = [self.create_server(flavor_id=flavor_id)
                   for _ in range(3)]
        self.assertEqual({'host1', 'host2', 'host3'},
                         set(self.hosts_of(servers)))


class PackingTest(WeighersTestCase):

    def _check_packed(self, specs: dict[str, str]) -> None:
        for name in ('host1', 'host2'):
            self.add_host(name, FOUR_CARDS)
        hosts = self.hosts_of(self.create_in_turn(5, specs))
        self.assertEqual([hosts[0]] * 4, hosts[:4])
        self.assertNotEqual(hosts[0], hosts[4])

    def test_one_host_is_filled_before_the_next(self) -> None:
        self._check_packed({'free_gpus': '1'})

    def test_with_placement_too(self) -> None:
        self._check_packed({'resources:PGPU': '1'})

    def test_two_servers_of_one_request(self) -> None:
        for name in ('host1', 'host2'):
            self.add_host(name, base.TWO_CARDS)
        servers = self.create_at_once(
            2, self.create_flavor({'free_gpus': '1'}))
        first, second = self.hosts_of(servers)
        self.assertEqual(first, second)

    def test_the_fullest_host_that_fits(self) -> None:
        self.add_host('host1', base.NO_CARD)
        self.add_host('host2', FOUR_CARDS)
        self.add_host('host3', base.ONE_CARD)
        self.add_host('host4', base.TWO_CARDS)
        for count, host in ((1, 'host3'), (2, 'host4'), (1, 'host2'),
                            (3, 'host2')):
            server = self.create_gpu_server(count)
            self.assertEqual(host, self.host_of(server), f'{count} GPUs')
            self.run_periodic()

    def test_by_the_model_that_is_asked_for(self) -> None:
        """Of all models host1 has more free than host2, of T400s fewer."""
        self.add_host('host1', base.ONE_CARD + """
0000:81:00.0 030200 10de:2330 driver=nvidia group=41
0000:82:00.0 030200 10de:2330 driver=nvidia group=42
""")
        self.add_host('host2', base.TWO_CARDS)
        for model, host in ((base.T400, 'host1'), (base.H100, 'host1'),
                            (base.T400, 'host2')):
            server = self.create_server(
                {'free_gpus': '1', 'gpu_passthru:model': model})
            self.assertEqual(host, self.host_of(server), model)
            self.run_periodic()

    def test_a_negative_multiplier_spreads(self) -> None:
        self.flags(gpu_packing_weight_multiplier=-100.0,
                   group='gpu_passthru')
        for name in ('host1', 'host2'):
            self.add_host(name, base.TWO_CARDS)
        hosts = self.hosts_of(self.create_in_turn(2, {'free_gpus': '1'}))
        self.assertEqual({'host1', 'host2'}, set(hosts))


class PackingWithPlacementTest(placement.PlacementTestCase,
                               WeighersTestCase):

    def test_the_other_models_of_a_host_do_not_count(self) -> None:
        """A trait names the model, as gpu_passthru:model does."""
        self.add_host('host1', placement.TWO_OF_TWO_MODELS)
        self.add_host('host2', test_moves.ON_HOST_2)
        servers = self.create_in_turn(2, {
            'resources:PGPU': '1',
            f'trait:{placement.T400_TRAIT}': 'required'})
        self.assertEqual(['host2'] * 2, self.hosts_of(servers))
