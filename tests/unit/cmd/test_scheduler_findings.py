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

import ddt
from oslo_config import cfg
from oslo_config import fixture as config_fixture

from nova_gpu_passthru.cmd import cloud
from nova_gpu_passthru.cmd import findings
from nova_gpu_passthru.cmd import scheduler_findings
from nova_gpu_passthru.scheduler import reports
from tests.unit import base

ALL = 'nova.scheduler.filters.all_filters'
ALL_WEIGHERS = 'nova.scheduler.weights.all_weighers'


class TestCase(base.TestCase):
    def config(self, **options: object) -> cfg.ConfigOpts:
        config = cfg.ConfigOpts()
        scheduler_findings.register_opts(config)
        config([], default_config_files=[], default_config_dirs=[])
        self.useFixture(config_fixture.Config(config)).config(
            group='filter_scheduler', **options)
        return config


class FiltersTest(TestCase):
    def found(self, available: list[str], enabled: list[str]
              ) -> list[findings.Finding]:
        return list(scheduler_findings.of_filters(self.config(
            available_filters=available, enabled_filters=enabled)))

    def test_enabled_and_available_filter_is_no_problem(self) -> None:
        self.assertEqual([], self.found(
            [ALL, scheduler_findings.FILTER],
            ['ComputeFilter', 'FreeGPUsFilter']))

    def test_novas_default_lacks_the_filter(self) -> None:
        finding, = scheduler_findings.of_filters(self.config())
        self.assertEqual(('enabled_filters', findings.FAILURE),
                         (finding.subject, finding.code))
        self.assertIn(f'available_filters = {scheduler_findings.FILTER}',
                      finding.cure)

    def test_filter_that_is_only_enabled_keeps_the_scheduler_down(
            self) -> None:
        finding, = self.found([ALL], ['ComputeFilter', 'FreeGPUsFilter'])
        self.assertEqual('available_filters', finding.subject)
        self.assertIn(scheduler_findings.FILTER, finding.cure)

    # The first line of a MultiOpt replaces the default.
    def test_novas_own_filters_can_be_missing_too(self) -> None:
        finding, = self.found([scheduler_findings.FILTER],
                              ['ComputeFilter', 'FreeGPUsFilter'])
        self.assertIn('ComputeFilter', finding.problem)
        self.assertIn(ALL, finding.cure)

    def test_name_that_cannot_be_loaded_is_quoted(self) -> None:
        for name in ('nova_gpu_passthru.scheduler.filters.FreeGPUFilter',
                     'nova_gpu_passthru.scheduler.filter.FreeGPUsFilter',
                     'nova_gpu_passthru.scheduler.reports.Report'):
            found = self.found([ALL, name], ['FreeGPUsFilter'])
            self.assertIn(name, found[0].problem)

    def test_slow_filter_before_ours_is_a_warning(self) -> None:
        finding, = self.found(
            [ALL, scheduler_findings.FILTER],
            ['ComputeFilter', 'NUMATopologyFilter', 'FreeGPUsFilter',
             'PciPassthroughFilter'])
        self.assertEqual(findings.WARNING, finding.code)
        self.assertIn('NUMATopologyFilter stand', finding.problem)


class WeighersTest(TestCase):
    def found(self, *classes: str) -> list[findings.Finding]:
        return list(scheduler_findings.of_weighers(
            self.config(weight_classes=list(classes))))

    def test_both_are_enabled_by_one_line(self) -> None:
        self.assertEqual([], self.found(ALL_WEIGHERS,
                                        scheduler_findings.WEIGHERS))

    def test_missing_weighers_are_a_warning(self) -> None:
        finding, = self.found(ALL_WEIGHERS)
        self.assertEqual(findings.WARNING, finding.code)
        self.assertIn(scheduler_findings.WEIGHERS, finding.cure)

    # What two lines in nova.conf come to.
    def test_novas_own_can_be_missing(self) -> None:
        finding, = self.found(scheduler_findings.WEIGHERS)
        self.assertIn("Nova's own", finding.problem)
        self.assertIn(f'{ALL_WEIGHERS},', finding.cure)

    def test_one_of_them_can_be_missing(self) -> None:
        finding, = self.found(
            ALL_WEIGHERS,
            'nova_gpu_passthru.scheduler.weights.GPUPackingWeigher')
        self.assertIn('GPUHostAvoidanceWeigher', finding.problem)
        self.assertNotIn('GPUPackingWeigher', finding.problem)

    def test_name_that_cannot_be_loaded_is_quoted(self) -> None:
        finding, = self.found(ALL_WEIGHERS, scheduler_findings.WEIGHERS,
                              'nova.weights.all')
        self.assertIn('nova.weights.all', finding.problem)

    def test_multiplier_that_is_no_number_is_quoted(self) -> None:
        config = self.config(weight_classes=[ALL_WEIGHERS,
                                             scheduler_findings.WEIGHERS])
        self.useFixture(config_fixture.Config(config)).load_raw_values(
            group='gpu_passthru', gpu_packing_weight_multiplier='much')
        finding, = scheduler_findings.of_weighers(config)
        self.assertIn('gpu_packing_weight_multiplier', finding.problem)
        self.assertIn("'much'", finding.problem)


@ddt.ddt
class FlavorTest(TestCase):
    def found(self, specs: dict[str, str], **options: object
              ) -> list[findings.Finding]:
        return list(scheduler_findings.of_flavor(
            cloud.NamedFlavor('g1', specs), self.config(**options)))

    @ddt.data(
        {}, {'hw:cpu_policy': 'dedicated'}, {'free_gpus': '>=2'},
        {'gpu_passthru:free_gpus': '2', 'resources:PGPU': '2'},
        {'resources:PGPU': '1', 'trait:CUSTOM_GPU_10DE_2330': 'required',
         'gpu_passthru:model': '10de:2330'},
        {'free_gpus': '1', 'trait:CUSTOM_GPU_10DE_2330': 'forbidden'})
    def test_no_problem(self, specs: dict[str, str]) -> None:
        self.assertEqual([], self.found(specs))

    @ddt.data(
        ({'free_gpus': '> 1'}, "'> 1'"),
        ({'free_gpus': '1', 'resources:PGPU': '2'}, 'contradicts itself'),
        ({'free_gpus': '1', 'trait:CUSTOM_GPU_10DE_2330': 'required'},
         'no PGPU'),
        ({'trait:CUSTOM_GPU_10DE_2330': 'required'}, 'no PGPU'),
        ({'resources:PGPU': '1', 'trait:CUSTOM_GPU_10DE_2330': 'required',
          'gpu_passthru:model': '10de:1ff2'}, '10de:2330'))
    @ddt.unpack
    def test_never_fits(self, specs: dict[str, str], words: str) -> None:
        finding, = self.found(specs)
        self.assertEqual(('flavor g1', findings.FAILURE),
                         (finding.subject, finding.code))
        self.assertIn(words, finding.problem)
        self.assertNotEqual('', finding.cure)

    def test_key_that_nobody_reads_is_a_warning(self) -> None:
        finding, = self.found({'gpu_passthru:count': '2'})
        self.assertIn('gpu_passthru:count', finding.problem)
        self.assertEqual(findings.WARNING, finding.code)

    def test_bare_key_is_refused_for_missing_in_the_aggregates(self) -> None:
        filters = ['AggregateInstanceExtraSpecsFilter', 'FreeGPUsFilter']
        finding, = self.found({'free_gpus': '1'}, enabled_filters=filters)
        self.assertIn('rename', finding.cure)
        self.assertEqual([], self.found({'gpu_passthru:free_gpus': '1'},
                                        enabled_filters=filters))


class HostsTest(TestCase):
    TOLD = [reports.Report(0, 2, {'10de:2330': 0}),
            reports.Report(1, 1, {'10de:1ff2': 1})]

    def found(self, specs: dict[str, str], told: list[reports.Report]
              ) -> list[findings.Finding]:
        return list(scheduler_findings.of_hosts(
            [cloud.NamedFlavor('g1', specs)], told))

    def test_what_some_host_has_is_no_problem_even_when_taken(self) -> None:
        self.assertEqual([], self.found(
            {'free_gpus': '2', 'gpu_passthru:model': '10de:2330'},
            self.TOLD))
        self.assertEqual([], self.found({}, self.TOLD))

    def test_more_than_the_largest_host_has_is_a_warning(self) -> None:
        finding, = self.found({'free_gpus': '3'}, self.TOLD)
        self.assertIn('has 2', finding.problem)
        self.assertEqual(findings.WARNING, finding.code)

    def test_model_that_no_host_has_is_a_warning_with_those_there_are(
            self) -> None:
        finding, = self.found(
            {'free_gpus': '1', 'gpu_passthru:model': '10de:2331'}, self.TOLD)
        self.assertIn('10de:1ff2, 10de:2330', finding.cure)

    def test_cloud_without_gpus_is_a_warning(self) -> None:
        finding, = self.found({'free_gpus': '1'}, [])
        self.assertEqual('hosts', finding.subject)
