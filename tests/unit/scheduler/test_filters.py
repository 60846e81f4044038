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

import json
from typing import Any

import ddt
from nova import objects
from nova.scheduler.filters import aggregate_instance_extra_specs
from nova.scheduler.filters import compute_capabilities_filter
from nova import test

from nova_gpu_passthru.scheduler import filters
from nova_gpu_passthru.scheduler import reports
from tests.unit import base
from tests.unit.scheduler import hosts

NONSENSE = (
    'not JSON', '', '[]', '[4]', 'null', 'true', '4', '"4"', 'NaN', '{}',
    '{"free_gpus": 4}', '{"free_by_model": {"10de:2330": 4}}',
    '{"free_gpus": -1, "total_gpus": 8, "free_by_model": {"10de:2330": -1}}',
    '{"free_gpus": true, "total_gpus": 8, "free_by_model": {}}',
    '{"free_gpus": "4", "total_gpus": 8, "free_by_model": {}}',
    '{"free_gpus": 4.0, "total_gpus": 8, "free_by_model": {}}',
    '{"free_gpus": null, "total_gpus": 8, "free_by_model": {}}',
    '{"free_gpus": [4], "total_gpus": 8, "free_by_model": {}}',
    '{"free_gpus": 4, "total_gpus": 8, "free_by_model": [4]}',
    '{"free_gpus": 4, "total_gpus": 8, "free_by_model": {"10de:2330": "4"}}',
    '{"free_gpus": 4, "total_gpus": -8, "free_by_model": {}}',
    '{"free_gpus": 4, "total_gpus": 3, "free_by_model": {}}')

# Not data for ddt, which would name tests by them.
HUGE = ('{"free_gpus": 1' + '0' * 5000 + '}', '[' * 100000, json.dumps(
    {'free_gpus': 10 ** 400, 'total_gpus': 10 ** 400, 'free_by_model': {}}))


class TestCase(test.NoDBTestCase):
    def passing(self, all_hosts: list[Any],
                spec: objects.RequestSpec) -> list[str]:
        """Names the hosts that our filter and Nova's own let through."""
        for one in (filters.FreeGPUsFilter(),
                    compute_capabilities_filter.ComputeCapabilitiesFilter()):
            all_hosts = list(one.filter_all(all_hosts, spec))
        return [host.host for host in all_hosts]


@ddt.ddt
class FreeGPUsFilterTest(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.hosts = [
            hosts.host('plain'), hosts.host('other', cpu='x86'),
            hosts.gpu_host('none', 0), hosts.gpu_host('one', 1),
            hosts.gpu_host('four', 4, m10de_2330=3, m1002_74a1=1)]

    # With Nova's ComputeCapabilitiesFilter, which is on by default, and
    # takes '>=2' for a text (nova.scheduler.filters.extra_specs_ops).
    @ddt.data('free_gpus', 'gpu_passthru:free_gpus')
    def test_every_spelling_selects_hosts_with_enough(self, key: str
                                                      ) -> None:
        for text in ('1', '>=1', '>= 1'):
            self.assertEqual(['one', 'four'], self.passing(
                self.hosts, hosts.request({key: text})))
        for text in ('2', '>=2', '>= 2'):
            self.assertEqual(['four'], self.passing(
                self.hosts, hosts.request({key: text})))
        self.assertEqual([], self.passing(self.hosts,
                                          hosts.request({key: '>=5'})))

    def test_resource_alone_selects_hosts_with_enough(self) -> None:
        self.assertEqual(['four'], self.passing(
            self.hosts, hosts.request({'resources:PGPU': '2'})))

    def test_model_selects_hosts_that_have_it(self) -> None:
        for model, count, expected in (
                ('10de:2330', '1', ['one', 'four']),
                ('1002:74A1', '1', ['four']), ('1002:74a1', '2', []),
                ('10de:2330', '3', ['four']), ('10de:2330', '4', []),
                ('10de:ffff', '1', [])):
            self.assertEqual(expected, self.passing(
                self.hosts, hosts.request({'free_gpus': count,
                                           'gpu_passthru:model': model})))

    @ddt.data(None, {}, {'hw:mem_page_size': 'large'})
    def test_other_flavors_pass_every_host(self, specs: dict[str, str] | None
                                           ) -> None:
        self.assertEqual([host.host for host in self.hosts],
                         self.passing(self.hosts, hosts.request(specs)))

    @ddt.data('= 1', '== 1', '>=x', '0', '')
    def test_flavor_that_makes_no_sense_passes_none_and_is_logged_once(
            self, text: str) -> None:
        self.assertEqual([], self.passing(
            self.hosts, hosts.request({'free_gpus': text})))
        self.assertEqual(1, self.stdlog.logger.output.count('No host fits'))
        self.assertIn(f'free_gpus = {text!r}', self.stdlog.logger.output)

    def test_flavor_that_makes_no_sense_is_named(self) -> None:
        log = self.useFixture(base.operators_log())
        self.passing(self.hosts, hosts.request({'free_gpus': '>=x'}))
        self.assertIn("No host fits flavor small (g1): The flavor has "
                      "free_gpus = '>=x'", log.output)
        self.assertEqual(1, log.output.count('>=x'), log.output)

    @ddt.data(*NONSENSE)
    def test_statistics_that_make_no_sense_cost_one_host(self, text: str
                                                         ) -> None:
        strange = hosts.host('strange', gpu_passthru=text)
        self.assertEqual(['one'], self.passing(
            [strange, hosts.gpu_host('one', 1)],
            hosts.request({'free_gpus': '1'})))

    def test_huge_statistics_cost_one_host(self) -> None:
        strange = [hosts.host('strange', gpu_passthru=text) for text in HUGE]
        self.assertEqual(['one'], self.passing(
            [*strange, hosts.gpu_host('one', 1)],
            hosts.request({'free_gpus': '1'})))

    def test_statistics_that_make_no_sense_are_logged(self) -> None:
        self.passing([hosts.host('strange', gpu_passthru='[]')],
                     hosts.request({'free_gpus': '1'}))
        self.assertIn('strange', self.stdlog.logger.output)
        self.assertIn('make no sense', self.stdlog.logger.output)

    def test_host_that_has_not_reported_yet_does_not_pass(self) -> None:
        self.assertEqual(['one'], self.passing(
            [hosts.unreported('new'), hosts.gpu_host('one', 1)],
            hosts.request({'free_gpus': '1'})))

    def test_nulled_statistics_do_not_pass(self) -> None:
        self.assertEqual([], self.passing(
            [hosts.host('old', gpu_passthru=None)],
            hosts.request({'free_gpus': '1'})))

    def test_host_passes_agrees_with_filter_all(self) -> None:
        one = filters.FreeGPUsFilter()
        self.assertEqual(
            [False, False, False, True, True],
            [one.host_passes(host, hosts.request({'free_gpus': '1'}))
             for host in self.hosts])

    # https://bugs.launchpad.net/nova/+bug/1482019 is why the compute host
    # looks again; a rebuild has to stay where it is.
    def test_rebuild_stays_on_its_host(self) -> None:
        full = hosts.gpu_host('full', 0)
        spec = hosts.request({'free_gpus': '1'},
                             {'_nova_check_type': ['rebuild']})
        self.assertEqual(['full'], self.passing([full], spec))
        spec = hosts.request({'free_gpus': '1'}, {'group': ['web']})
        self.assertEqual([], self.passing([full], spec))


class SeveralInstancesTest(TestCase):
    """Nova places all instances of one request on the same statistics."""

    def setUp(self) -> None:
        super().setUp()
        self.spec = hosts.request({'free_gpus': '2'})
        self.host = hosts.gpu_host('four', 4)

    def place(self) -> None:
        # What HostState.consume_from_request does to the count.
        self.host.num_instances += 1

    def test_those_that_are_placed_already_are_taken_off(self) -> None:
        for expected in (['four'], ['four'], []):
            self.assertEqual(expected, self.passing([self.host], self.spec))
            self.place()

    def test_nova_counts_them(self) -> None:
        # Or the filter would count in vain.
        before = self.host.num_instances
        self.host.consume_from_request(self.spec)
        self.assertEqual(before + 1, self.host.num_instances)

    def test_instances_that_were_there_are_not_taken_off(self) -> None:
        busy = hosts.host('busy', num_instances='7',
                          gpu_passthru=hosts.report(2))
        self.assertEqual(7, busy.num_instances)
        self.assertEqual(['busy'], self.passing([busy], self.spec))


class OtherFiltersTest(TestCase):
    # https://github.com/IFCA-Advanced-Computing/caso/issues/41
    def test_only_the_key_with_a_namespace_passes_aggregates(self) -> None:
        one = (aggregate_instance_extra_specs.
               AggregateInstanceExtraSpecsFilter())
        host = hosts.gpu_host('one', 1)
        for key, passes in (('free_gpus', False),
                            ('gpu_passthru:free_gpus', True)):
            self.assertIs(passes, one.host_passes(
                host, hosts.request({key: '>=1'})))

    def test_capabilities_filter_can_read_the_count(self) -> None:
        key = 'capabilities:stats:gpu_passthru:free_gpus'
        stock = compute_capabilities_filter.ComputeCapabilitiesFilter()
        for text, passes in (('>= 4', True), ('>= 5', False)):
            self.assertIs(passes, stock.host_passes(
                hosts.gpu_host('four', 4), hosts.request({key: text})))


class CandidatesTest(test.NoDBTestCase):
    """Placement does not know gpu_passthru:model."""

    def candidates(self, extra_specs: dict[str, str], *models: str,
                   free: int = 4, m10de_2330: int = 2,
                   m10de_1eb8: int = 2) -> list[str]:
        """From pools of which models Placement may still take the card."""
        host = hosts.gpu_host('one', free, m10de_2330=m10de_2330,
                              m10de_1eb8=m10de_1eb8)
        pools = {reports.pool_uuid(host.uuid, model): model
                 for model in models}
        host.allocation_candidates = [
            {'allocations': {'root': {'resources': {'VCPU': 1}},
                             pool: {'resources': {'PGPU': 1}}}}
            for pool in pools]
        passes = filters.FreeGPUsFilter().host_passes(
            host, hosts.request(extra_specs))
        left = [pools[pool] for candidate in host.allocation_candidates
                for pool in candidate['allocations'] if pool != 'root']
        self.assertEqual(bool(left), passes)
        return left

    ASKS = {'resources:PGPU': '1', 'gpu_passthru:model': '10de:1eb8'}

    def test_pools_of_other_models_are_dropped(self) -> None:
        self.assertEqual(['10de:1eb8'], self.candidates(
            self.ASKS, '10de:2330', '10de:1eb8'))

    def test_a_host_with_other_pools_only_does_not_pass(self) -> None:
        self.assertEqual([], self.candidates(self.ASKS, '10de:2330'))

    def test_without_a_model_any_pool_will_do(self) -> None:
        self.assertEqual(['10de:2330', '10de:1eb8'], self.candidates(
            {'resources:PGPU': '1'}, '10de:2330', '10de:1eb8'))

    def test_placement_knows_better_than_the_report(self) -> None:
        """A guest has gone since; a host without candidates is as reported."""
        full = {'m10de_2330': 0, 'm10de_1eb8': 0}
        asks = {'resources:PGPU': '1', 'free_gpus': '>=1'}
        self.assertEqual(['10de:2330'], self.candidates(
            asks, '10de:2330', free=0, **full))
        self.assertEqual([], self.candidates(asks, free=0, **full))
        self.assertFalse(filters.FreeGPUsFilter().host_passes(
            hosts.gpu_host('none', 0), hosts.request(asks)))

    def test_providers_that_are_no_pools_are_dropped(self) -> None:
        """PGPU is what Cyborg reports its GPUs as, too."""
        self.assertEqual([], self.candidates(
            {'resources:PGPU': '1'}, '10de:ffff'))
