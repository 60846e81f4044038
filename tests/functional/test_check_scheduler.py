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

"""The command reads a cloud's flavors and hosts from Nova's databases."""

import json
import os
import pathlib
import subprocess
import sys

import fixtures
import testtools

from nova_gpu_passthru.cmd import scheduler_findings

# What an installation and its services do, with Nova's own objects.
_SET_UP = """
import sys
from nova import config, context, objects
from nova.db import migration
config.parse_args(['nova-manage', '--config-file', sys.argv[1]])
for database in ('api', 'main'):
    migration.db_sync(database=database)
objects.register_all()
context = context.get_admin_context()
cell = objects.CellMapping(
    context, uuid='cb5d0e4e-7d2c-4b0e-8f0e-5a6a0b0c0d0e', name='cell1',
    transport_url='fake:///', database_connection=sys.argv[2],
    disabled=False)
cell.create()
for name, specs in (('g1', {'free_gpus': '>=1'}), ('g9', {'free_gpus': '9'}),
                    ('bad', {'free_gpus': 'many'})):
    objects.Flavor(context, name=name, flavorid=name, memory_mb=1, vcpus=1,
                   root_gb=1, ephemeral_gb=0, swap=0, rxtx_factor=1.0,
                   is_public=False, disabled=False, extra_specs=specs,
                   vcpu_weight=0).create()
objects.ComputeNode(
    context, uuid='7d2c0e4e-cb5d-4b0e-8f0e-5a6a0b0c0d0e', host='gpu1',
    hypervisor_hostname='gpu1', vcpus=1, memory_mb=1, local_gb=1,
    vcpus_used=0, memory_mb_used=0, local_gb_used=0, hypervisor_type='QEMU',
    hypervisor_version=1, cpu_info='', service_id=None,
    stats={'gpu_passthru': sys.argv[3]}).create()
"""
_COMMAND = ('import sys; from nova_gpu_passthru.cmd import main; '
            'sys.exit(main.main())')


class CheckSchedulerTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.configuration = self.folder / 'nova.conf'

    def configure(self, api: str, cell: str) -> None:
        self.configuration.write_text(
            f'[api_database]\nconnection = {api}\n'
            f'[database]\nconnection = {cell}\n'
            f'[filter_scheduler]\n'
            f'available_filters = nova.scheduler.filters.all_filters\n'
            f'available_filters = {scheduler_findings.FILTER}\n'
            f'enabled_filters = ComputeFilter,FreeGPUsFilter\n'
            f'weight_classes = nova.scheduler.weights.all_weighers,'
            f'{scheduler_findings.WEIGHERS}\n')

    def python(self, code: str, *argv: str
               ) -> 'subprocess.CompletedProcess[str]':
        # In a process of its own, for Nova's configuration is global.
        return subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', code, *argv],
            capture_output=True, text=True, cwd=self.folder,
            env={**os.environ, 'OS_NOVA_DISABLE_EVENTLET_PATCHING': '1'})

    def check(self, status: int) -> list[tuple[str, str]]:
        done = self.python(_COMMAND, '--config-file',
                           str(self.configuration), 'check', '--scheduler',
                           '--format', 'json')
        self.assertEqual(status, done.returncode, done.stderr)
        return [(row['result'], row['subject'])
                for row in json.loads(done.stdout)]

    def test_flavors_and_hosts_are_those_of_the_databases(self) -> None:
        cell = f'sqlite:///{self.folder}/cell.sqlite'
        self.configure(f'sqlite:///{self.folder}/api.sqlite', cell)
        done = self.python(
            _SET_UP, str(self.configuration), cell,
            '{"free_gpus": 8, "total_gpus": 8, '
            '"free_by_model": {"10de:2330": 8}}')
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual([('failure', 'flavor bad'),
                          ('warning', 'flavor g9')], self.check(2))

    def test_databases_that_cannot_be_read_are_a_warning(self) -> None:
        self.configure('sqlite:////does/not/exist/api',
                       'sqlite:////does/not/exist/cell')
        self.assertEqual([('warning', 'flavors')], self.check(1))
