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

import argparse
import pathlib
import subprocess
import sys

import fixtures

from nova_gpu_passthru.cmd import main
from nova_gpu_passthru import conf
from tests.unit import base
from tests.unit.cmd import command


class MainTest(base.TestCase):
    def test_help_names_the_commands(self) -> None:
        one = self.useFixture(command.Command())
        text = one.run('help')
        for name in ('list', 'check'):
            self.assertIn(name, text)
        self.assertEqual(0, one.status)

    def test_unknown_command_is_an_error(self) -> None:
        one = self.useFixture(command.Command())
        one.run('sell')
        self.assertNotEqual(0, one.status)

    def test_what_novas_libraries_say_is_not_shown(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (folder / 'nova.conf').write_text('[DEFAULT]\n')
        (folder / 'flavors.json').write_text('[]')
        # A new process, for what is imported already says nothing.
        result = subprocess.run(
            [sys.executable, '-c',
             'import sys; from nova_gpu_passthru.cmd import main; '
             'sys.exit(main.main())',
             '--config-file', folder / 'nova.conf', 'check', '--scheduler',
             '--flavors', folder / 'flavors.json'],
            capture_output=True, text=True)
        self.assertEqual('', result.stderr)
        self.assertIn('FreeGPUsFilter', result.stdout)

    # What nova-compute itself reads (nova.cmd.compute.main).
    def test_novas_own_files_are_read_by_default(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for name, lines in (
                ('nova.conf', 'exclude = 0000:17:00.0\nboot_vga = offer'),
                ('nova-compute.conf', 'exclude = 0000:65:00.0')):
            (folder / 'nova').mkdir(exist_ok=True)
            (folder / 'nova' / name).write_text(f'[gpu_passthru]\n{lines}\n')
        more = folder / 'nova' / 'nova.conf.d'
        more.mkdir()
        (more / '1.conf').write_text(
            '[gpu_passthru]\ninclude = 0000:00:02.0\n')
        # In the places where oslo.config looks for a project's files.
        self.useFixture(fixtures.MonkeyPatch(
            'oslo_config.cfg._get_config_dirs',
            lambda project=None: [str(folder / 'nova')]))
        one = main.Command()
        one.options = argparse.Namespace(config_file=None)
        policy = conf.read_policy(one.read_config())
        self.assertEqual(['0000:65:00.0'],
                         [str(a) for a in policy.exclude.addresses])
        self.assertEqual('offer', policy.boot_vga.value)
        self.assertEqual(['0000:00:02.0'],
                         [str(a) for a in policy.include.addresses])
