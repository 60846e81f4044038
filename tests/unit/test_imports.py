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

"""What has to work where there is no libvirt: on controllers."""

import subprocess
import sys

import ddt

from tests.unit import base

_WITHOUT_LIBVIRT = """
import importlib, sys
sys.modules['libvirt'] = None
importlib.import_module(sys.argv[1])
"""


@ddt.ddt
class ControllerTest(base.TestCase):
    @ddt.data('nova_gpu_passthru.api.extra_specs',
              'nova_gpu_passthru.cmd.check',
              'nova_gpu_passthru.cmd.main',
              'nova_gpu_passthru.cmd.scheduler_findings',
              'nova_gpu_passthru.conf',
              'nova_gpu_passthru.scheduler.filters',
              'nova_gpu_passthru.scheduler.weights')
    def test_no_libvirt_is_needed(self, module: str) -> None:
        result = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', _WITHOUT_LIBVIRT, module],
            capture_output=True, text=True)
        self.assertEqual('', result.stderr if result.returncode else '')
