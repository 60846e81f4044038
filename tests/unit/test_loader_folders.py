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

"""The driver loads where it is installed in another folder than Nova."""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

import fixtures
import testtools

import nova_gpu_passthru

_LOAD = """
import importlib
import os_vif
os_vif.initialize()
module = importlib.import_module('nova.virt.nova_gpu_passthru.releases')
import nova_gpu_passthru.releases
assert module is nova_gpu_passthru.releases
print(module.__file__)
"""


class LoaderFoldersTest(testtools.TestCase):
    def test_package_in_a_folder_of_its_own(self) -> None:
        folder = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path).resolve()
        package = pathlib.Path(nova_gpu_passthru.__file__).parent
        shutil.copytree(package, folder / package.name)
        metadata = folder / 'nova_gpu_passthru-0.dist-info'
        metadata.mkdir()
        distribution = importlib.metadata.distribution('nova-gpu-passthru')
        for name in ('METADATA', 'PKG-INFO', 'entry_points.txt'):
            text = distribution.read_text(name)
            if text is not None:
                (metadata / name.replace('PKG-INFO', 'METADATA')).write_text(
                    text)
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', _LOAD],
            cwd=folder, capture_output=True, text=True, timeout=100,
            env={**os.environ, 'PYTHONPATH': str(folder)})
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        self.assertEqual(str(folder / package.name / 'releases.py'),
                         done.stdout.splitlines()[-1])
