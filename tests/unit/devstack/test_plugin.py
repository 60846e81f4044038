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

"""Runs the phases of the DevStack plugin, and reads what Nova would."""

import os
import pathlib
import subprocess
import sys

import fixtures
from oslo_config import cfg

from nova_gpu_passthru.cmd import host_findings
from nova_gpu_passthru.cmd import main
from nova_gpu_passthru.cmd import scheduler_findings
from nova_gpu_passthru import conf
from tests.unit import base

HERE = pathlib.Path(__file__).parent
PLUGIN = HERE.parents[2] / 'devstack'
# As lib/nova leaves them.
NOVA_CONF = """[DEFAULT]
compute_driver = libvirt.LibvirtDriver
[filter_scheduler]
enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,SameHostFilter
"""


class PluginTest(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.file, self.calls = folder / 'nova.conf', folder / 'calls'
        self.file.write_text(NOVA_CONF)
        self.calls.touch()

    def run_phase(self, *phase: str, services: str = 'n-api n-sch n-cpu',
                  **settings: str) -> None:
        done = subprocess.run(
            # As stack.sh does, which ends at the first failure.
            ['bash', '-o', 'errexit', '-c',
             'source "$1/functions.sh"; source "$2/settings"; '
             'source "$2/plugin.sh" "${@:3}"',
             'stack.sh', str(HERE), str(PLUGIN), *phase],
            capture_output=True, text=True, env={
                'PATH': os.environ['PATH'], 'PYTHON': sys.executable,
                'INI': str(HERE / 'ini.py'), 'NOVA_CONF': str(self.file),
                'CALLS': str(self.calls), 'SERVICES': services,
                'FLAVOR_IS_MISSING': '1', **settings})
        self.assertEqual((0, ''), (done.returncode, done.stderr))

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()

    def config(self) -> cfg.ConfigOpts:
        config = cfg.ConfigOpts()
        main.register_opts(config)
        scheduler_findings.register_opts(config)
        config([], default_config_files=[str(self.file)],
               default_config_dirs=[])
        return config

    def test_package_is_installed_from_its_clone(self) -> None:
        self.run_phase('stack', 'install')
        self.assertEqual(['setup_develop /opt/stack/nova-gpu-passthru'],
                         self.called())

    def test_nova_conf_is_what_check_wants(self) -> None:
        self.run_phase('stack', 'post-config')
        config = self.config()
        self.assertEqual([], [
            *host_findings.of_configuration(config),
            *scheduler_findings.of_filters(config),
            *scheduler_findings.of_weighers(config)])
        self.assertEqual(
            ['ComputeFilter', 'ComputeCapabilitiesFilter', 'SameHostFilter',
             'FreeGPUsFilter'], config.filter_scheduler.enabled_filters)

    def test_settings_reach_the_options(self) -> None:
        self.run_phase('stack', 'post-config',
                       NOVA_GPU_PASSTHRU_INCLUDE='1234:1111,1af4:1050',
                       NOVA_GPU_PASSTHRU_EXCLUDE='0000:65:00.0',
                       NOVA_GPU_PASSTHRU_BOOT_VGA='withhold')
        policy = conf.read_policy(self.config())
        self.assertEqual({'1234:1111', '1af4:1050'}, policy.include.models)
        self.assertEqual(['0000:65:00.0'],
                         [str(a) for a in policy.exclude.addresses])
        self.assertEqual('withhold', policy.boot_vga.value)

    def test_second_run_changes_nothing(self) -> None:
        self.run_phase('stack', 'post-config')
        once = self.config()
        self.run_phase('stack', 'post-config')
        again = self.config()
        for name in ('available_filters', 'enabled_filters',
                     'weight_classes'):
            self.assertEqual(once.filter_scheduler[name],
                             again.filter_scheduler[name])

    def test_setting_that_is_gone_is_gone_from_the_options(self) -> None:
        self.run_phase('stack', 'post-config',
                       NOVA_GPU_PASSTHRU_INCLUDE='1234:1111')
        self.run_phase('stack', 'post-config')
        self.assertEqual(frozenset(),
                         conf.read_policy(self.config()).include.models)

    def test_other_filters_that_somebody_added_stay(self) -> None:
        with self.file.open('a') as stream:
            stream.write('available_filters = '
                         'nova.scheduler.filters.all_filters\n'
                         'available_filters = blazar.BlazarFilter\n')
        self.run_phase('stack', 'post-config')
        self.assertEqual(
            ['nova.scheduler.filters.all_filters', 'blazar.BlazarFilter',
             scheduler_findings.FILTER],
            self.config().filter_scheduler.available_filters)

    def test_controller_gets_no_driver_and_a_host_no_filter(self) -> None:
        self.run_phase('stack', 'post-config', services='n-sch')
        self.assertEqual('libvirt.LibvirtDriver',
                         self.config().compute_driver)
        self.file.write_text(NOVA_CONF)
        self.run_phase('stack', 'post-config', services='n-cpu')
        self.assertNotIn('FreeGPUsFilter', self.file.read_text())
        self.assertEqual(host_findings.DRIVER, self.config().compute_driver)

    def test_flavor_asks_for_a_gpu_both_ways(self) -> None:
        self.run_phase('stack', 'extra')
        show, create, change = self.called()
        self.assertIn('flavor create', create)
        self.assertIn('--property free_gpus=>=1 --property resources:PGPU=1 '
                      'g1.tiny', change)

    def test_flavor_that_is_there_is_not_made_again(self) -> None:
        self.run_phase('stack', 'extra', FLAVOR_IS_MISSING='0')
        self.assertEqual(2, len(self.called()))

    def test_flavor_without_placement_and_none_at_all(self) -> None:
        self.run_phase('stack', 'extra', NOVA_GPU_PASSTHRU_PLACEMENT='False')
        self.assertNotIn('PGPU', '\n'.join(self.called()))
        self.calls.write_text('')
        self.run_phase('stack', 'extra', services='n-sch n-cpu')
        self.assertEqual([], self.called())

    def test_other_phases_change_nothing_but_clean(self) -> None:
        for phase in (('stack', 'pre-install'), ('stack', 'test-config'),
                      ('unstack',)):
            self.run_phase(*phase)
        self.assertEqual(([], NOVA_CONF),
                         (self.called(), self.file.read_text()))
        self.run_phase('clean')
        self.assertEqual(['pip_uninstall nova-gpu-passthru'], self.called())

    def test_sample_names_settings_that_there_are(self) -> None:
        settings = (PLUGIN / 'settings').read_text()
        for line in (PLUGIN / 'local.conf.sample').read_text().splitlines():
            name = line.lstrip('#').partition('=')[0]
            if name.startswith('NOVA_GPU_PASSTHRU_'):
                self.assertIn(f'\n{name}=', settings)
