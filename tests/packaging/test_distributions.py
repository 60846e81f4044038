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

"""The sdist and the wheel work beside a Nova.

They are installed into the environment that runs this, which is tox's own
and has Nova but not this package.
"""

import configparser
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import typing
import unittest

import fixtures
import testtools

from tests import sysfs_tree

ROOT = pathlib.Path(__file__).parents[2]
# tox says where they were built, and with what they may be installed.
DIST = pathlib.Path(os.environ['DIST'])
CONSTRAINTS = os.environ['CONSTRAINTS']
COMMAND = str(pathlib.Path(sys.executable).with_name('nova-gpu-passthru'))

_ENTRY_POINTS = """
import importlib.metadata, json
entry_points = importlib.metadata.distribution(
    'nova-gpu-passthru').entry_points
for one in entry_points:
    if one.group == 'os_vif':
        one.load()  # the others are found as nova-compute finds them
for one in entry_points:
    one.load()
print(json.dumps([[one.group, one.name, one.value] for one in entry_points]))
"""
_LOADING = """
import os_vif
os_vif.initialize()
import nova.virt.nova_gpu_passthru.driver
import nova_gpu_passthru.driver
assert (nova.virt.nova_gpu_passthru.driver is nova_gpu_passthru.driver)
from nova.virt.libvirt import driver
assert issubclass(nova_gpu_passthru.driver.GPUPassthruDriver,
                  driver.LibvirtDriver)
print(nova_gpu_passthru.driver.__file__)
"""

_SCHEDULING = """
from nova.api.validation.extra_specs import validators
from nova.scheduler import filters, weights
validators.load_validators()
filters.HostFilterHandler().get_matching_classes(
    ['nova_gpu_passthru.scheduler.filters.FreeGPUsFilter'])
weights.HostWeightHandler().get_matching_classes(
    ['nova_gpu_passthru.scheduler.weights.all_weighers'])
print(validators.VALIDATORS['free_gpus'].name)
"""


def run(*command: str, check: bool = True
        ) -> 'subprocess.CompletedProcess[str]':
    """Runs a program of this environment, away from the source."""
    done = subprocess.run(command, capture_output=True, text=True, cwd='/',
                          env={**os.environ, 'PYTHONWARNINGS': 'ignore',
                               'OS_NOVA_DISABLE_EVENTLET_PATCHING': '1'})
    if check and done.returncode:
        raise AssertionError(f'{command}: {done.stdout}{done.stderr}')
    return done


def pip(*words: str) -> str:
    return run(sys.executable, '-I', '-m', 'pip',
               '--disable-pip-version-check', '--no-input', *words).stdout


# Its tests are not to run by themselves.
if typing.TYPE_CHECKING:
    _TestCase = unittest.TestCase
else:
    _TestCase = object


class Distribution(_TestCase):
    """What holds for both.

    :cvar PATTERN: matches the one file that is installed
    """

    PATTERN = ''
    file: pathlib.Path
    nova: str

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.file, = DIST.glob(cls.PATTERN)
        cls.nova = importlib.metadata.version('nova')
        pip('install', '-c', CONSTRAINTS, str(cls.file))

    @classmethod
    def tearDownClass(cls) -> None:
        pip('uninstall', '-y', 'nova-gpu-passthru')
        super().tearDownClass()

    def command(self, *words: str, check: bool = True
                ) -> 'subprocess.CompletedProcess[str]':
        return run(COMMAND, *words, check=check)

    def test_nothing_is_missing_and_nova_is_as_it_was(self) -> None:
        self.assertIn('No broken requirements', pip('check'))
        self.assertIn(f'nova=={self.nova}\n', pip('freeze'))

    def test_entry_points_are_those_of_setup_cfg_and_load(self) -> None:
        parser = configparser.ConfigParser()
        parser.read(ROOT / 'setup.cfg')
        expected = [[group, *line.split(' = ')]
                    for group, lines in parser['entry_points'].items()
                    for line in lines.strip().splitlines()]
        found = json.loads(run(sys.executable, '-I', '-c',
                               _ENTRY_POINTS).stdout)
        self.assertEqual(sorted(expected), sorted(found))

    def test_nova_loads_the_driver_after_os_vif(self) -> None:
        said = run(sys.executable, '-I', '-c', _LOADING).stdout
        self.assertIn('site-packages', said)
        self.assertFalse(said.startswith(str(ROOT / 'nova_gpu_passthru')))

    def test_list_reads_a_host(self) -> None:
        with sysfs_tree.SysfsTree('0000:65:00.0 030200 10de:2330 '
                                  'driver=nvidia group=34') as tree:
            row, = json.loads(self.command(
                'list', '--sysfs', str(tree.root), '-f', 'json').stdout)
        self.assertEqual(('0000:65:00.0', 'offered'),
                         (row['address'], row['verdict']))

    def test_command_has_the_version_of_the_file(self) -> None:
        version = self.command('--version').stdout.split()[-1]
        self.assertIn(f'-{version}', self.file.name)

    def test_commands_that_are_documented_are_there(self) -> None:
        for name in ('check', 'exporter', 'list', 'offer', 'topology',
                     'withhold'):
            self.assertIn(f'nova-gpu-passthru {name}',
                          self.command('help', name).stdout)

    def test_sample_and_dashboard_are_installed_whole(self) -> None:
        for name, target in (
                ('etc/nova-gpu-passthru.conf.sample', 'etc/nova-gpu-passthru'),
                ('etc/grafana/nova-gpu-passthru.json',
                 'share/nova-gpu-passthru')):
            source = ROOT / name
            self.assertEqual(
                source.read_text(),
                pathlib.Path(sys.prefix, target, source.name).read_text())


class WheelTest(Distribution, testtools.TestCase):
    PATTERN = '*.whl'


class ControllerTest(testtools.TestCase):
    """The wheel beside a Nova that has no libvirt, as a scheduler's."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        file, = DIST.glob('*.whl')
        pip('uninstall', '-y', 'libvirt-python')
        pip('install', '--no-deps', str(file))

    @classmethod
    def tearDownClass(cls) -> None:
        pip('uninstall', '-y', 'nova-gpu-passthru')
        super().tearDownClass()

    def test_nova_loads_what_schedules_and_validates(self) -> None:
        self.assertEqual('free_gpus', run(
            sys.executable, '-I', '-c', _SCHEDULING).stdout.strip())

    def test_check_reads_flavors(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        config, flavors = folder / 'nova.conf', folder / 'flavors.json'
        config.write_text('[DEFAULT]\n')
        flavors.write_text('[]')
        done = run(COMMAND, '--config-file', str(config), 'check',
                   '--scheduler', '--flavors', str(flavors), check=False)
        self.assertEqual((2, ''), (done.returncode, done.stderr))
        self.assertIn('FreeGPUsFilter is not among them', done.stdout)


class SdistTest(Distribution, testtools.TestCase):
    PATTERN = '*.tar.gz'

    def test_it_has_what_a_packager_needs(self) -> None:
        folder = self.useFixture(fixtures.TempDir()).path
        run('tar', '-xzf', str(self.file), '-C', folder)
        top, = pathlib.Path(folder).iterdir()
        for name in ('LICENSE', 'README.rst', 'SECURITY.rst', 'setup.cfg',
                     'tests/sysfs_tree.py', 'doc/source/install.rst',
                     'releasenotes/notes', 'devstack/plugin.sh', 'tox.ini'):
            self.assertTrue((top / name).exists(), name)
