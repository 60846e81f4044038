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

from typing import Any

import ddt
from nova import objects
from nova import test

from nova_gpu_passthru.scheduler import weights
from tests.unit.scheduler import hosts
from tests.unit.scheduler import test_filters


class TestCase(test.NoDBTestCase):
    def best_first(self, weigher: Any, all_hosts: list[Any],
                   spec: objects.RequestSpec) -> list[str]:
        """Names the hosts in the order that one weigher gives them."""
        raw = weigher.weigh_objects(
            [Weighed(host) for host in all_hosts], spec)
        order = sorted(zip(raw, all_hosts), key=lambda pair: -pair[0])
        return [host.host for _, host in order]


class Weighed:
    """What Nova's weight handler wraps a host in."""

    def __init__(self, obj: object) -> None:
        self.obj = obj


@ddt.ddt
class AvoidanceTest(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.weigher = weights.GPUHostAvoidanceWeigher()
        self.hosts = [hosts.gpu_host('eight', 8), hosts.gpu_host('one', 1),
                      hosts.host('plain'), hosts.gpu_host('full', 0)]

    def test_guest_without_gpus_goes_to_hosts_without_free_ones(
            self) -> None:
        self.assertEqual(['plain', 'full', 'one', 'eight'], self.best_first(
            self.weigher, self.hosts, hosts.request({})))

    def test_any_free_gpu_weighs_nearly_as_much_as_many(self) -> None:
        # Else a host with one would look like a plain one beside one with
        # sixteen.
        full, many, one = (
            weight for weight in self.weigher.weigh_objects(
                [Weighed(hosts.host('plain')),
                 Weighed(hosts.gpu_host('many', 16)),
                 Weighed(hosts.gpu_host('one', 1))], hosts.request({})))
        self.assertLess((one - many) * 100, full - one)

    @ddt.data({'free_gpus': '1'}, {'gpu_passthru:free_gpus': '1'})
    def test_guest_with_gpus_has_no_preference(self, specs: dict[str, str]
                                               ) -> None:
        self.assertEqual([0.0] * 4, list(self.weigher.weigh_objects(
            [Weighed(host) for host in self.hosts], hosts.request(specs))))


class PackingTest(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.weigher = weights.GPUPackingWeigher()
        self.hosts = [hosts.gpu_host('eight', 8), hosts.gpu_host('two', 2),
                      hosts.gpu_host('mixed', 5, m10de_2330=1,
                                     m1002_74a1=4)]

    def test_guest_goes_where_the_fewest_are_free(self) -> None:
        self.assertEqual(['two', 'mixed', 'eight'], self.best_first(
            self.weigher, self.hosts, hosts.request({'free_gpus': '1'})))

    def test_instances_of_the_request_that_are_placed_are_taken_off(
            self) -> None:
        # As HostState.consume_from_request does for each: four of eight.
        self.hosts[0].num_instances += 2
        self.assertEqual(['two', 'eight', 'mixed'], self.best_first(
            self.weigher, self.hosts, hosts.request({'free_gpus': '2'})))

    def test_only_its_own_model_counts(self) -> None:
        self.assertEqual(['mixed', 'two', 'eight'], self.best_first(
            self.weigher, self.hosts, hosts.request(
                {'free_gpus': '1', 'gpu_passthru:model': '10de:2330'})))

    def test_guest_without_gpus_has_no_preference(self) -> None:
        self.assertEqual([0.0] * 3, list(self.weigher.weigh_objects(
            [Weighed(host) for host in self.hosts], hosts.request({}))))


@ddt.ddt
class BothTest(TestCase):
    def test_nova_gets_both(self) -> None:
        self.assertEqual([weights.GPUHostAvoidanceWeigher,
                          weights.GPUPackingWeigher], weights.all_weighers())

    @ddt.data(*weights.all_weighers())
    def test_nonsense_breaks_no_request(self, weigher: type) -> None:
        # A filter tells of it.
        strange = [hosts.host('strange', gpu_passthru=text)
                   for text in (*test_filters.NONSENSE, *test_filters.HUGE)]
        for specs in ({}, {'free_gpus': '1'}):
            self.assertEqual([0.0] * len(strange), list(
                weigher().weigh_objects([Weighed(host) for host in strange],
                                        hosts.request(specs))))
        self.assertEqual(1, len(list(weigher().weigh_objects(
            [Weighed(hosts.gpu_host('one', 1))],
            hosts.request({'free_gpus': '>=x'})))))

    @ddt.data(*weights.all_weighers())
    def test_host_that_has_not_reported_yet_has_none_free(
            self, weigher: type) -> None:
        for specs in ({}, {'free_gpus': '1'}):
            self.assertEqual([0.0], list(weigher().weigh_objects(
                [Weighed(hosts.unreported('new'))], hosts.request(specs))))

    def test_multipliers_are_the_options(self) -> None:
        host = hosts.gpu_host('one', 1)
        for weigher, name in (
                (weights.GPUHostAvoidanceWeigher,
                 'gpu_host_avoidance_weight_multiplier'),
                (weights.GPUPackingWeigher, 'gpu_packing_weight_multiplier')):
            self.flags(group='gpu_passthru', **{name: 2.5})
            self.assertEqual(2.5, weigher().weight_multiplier(host))
