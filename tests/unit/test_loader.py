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

"""The loader, each time in a Python of its own."""

import subprocess
import sys
import textwrap

from tests.unit import base


class LoaderTest(base.TestCase):
    def python(self, code: str) -> None:
        """Runs a program that must end well and say nothing."""
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', textwrap.dedent(code)],
            capture_output=True, text=True, timeout=120)
        self.assertEqual((0, ''), (done.returncode, done.stdout),
                         done.stdout + done.stderr)

    def test_os_vif_makes_our_modules_novas(self) -> None:
        # What nova-compute does, in this order: nova.cmd.compute.main and
        # nova.virt.driver.load_compute_driver.
        self.python("""
            import os_vif
            os_vif.initialize()
            from oslo_utils import importutils
            driver = importutils.import_class(
                'nova.virt.nova_gpu_passthru.driver.GPUPassthruDriver')
            import sys
            import nova_gpu_passthru
            import nova_gpu_passthru.driver
            import nova_gpu_passthru.host.pci
            import nova.virt.nova_gpu_passthru.host.pci
            assert driver is nova_gpu_passthru.driver.GPUPassthruDriver
            for name in ('', '.driver', '.host', '.host.pci'):
                assert sys.modules['nova.virt.nova_gpu_passthru' + name] is \\
                    sys.modules['nova_gpu_passthru' + name], name
            assert nova_gpu_passthru.driver.__name__ == \\
                'nova_gpu_passthru.driver'
            """)

    def test_either_name_may_come_first(self) -> None:
        self.python("""
            import nova_gpu_passthru.host.pci as first
            import nova_gpu_passthru.loader
            import nova.virt.nova_gpu_passthru.host.pci as second
            assert first is second
            from nova.virt.nova_gpu_passthru.host import cards
            import nova_gpu_passthru.host.cards
            assert cards is nova_gpu_passthru.host.cards
            """)

    def test_without_the_loader_nova_does_not_find_us(self) -> None:
        # Or the other tests would show nothing.
        self.python("""
            try:
                import nova.virt.nova_gpu_passthru
            except ModuleNotFoundError:
                pass
            else:
                raise AssertionError('found')
            """)

    def test_it_imports_nothing_of_nova_and_no_options(self) -> None:
        # Neutron's agents load os-vif too.
        self.python("""
            import sys
            import os_vif
            before = set(sys.modules)
            import nova_gpu_passthru.loader
            new = set(sys.modules) - before
            bad = [name for name in sys.modules
                   if name == 'nova' or name.startswith('nova.')]
            assert not bad, bad
            ours = {name for name in new if name.startswith('nova_gpu')}
            assert ours == {'nova_gpu_passthru',
                            'nova_gpu_passthru.loader'}, ours
            from oslo_config import cfg
            assert 'gpu_passthru' not in cfg.CONF._groups
            """)

    def test_missing_module_is_reported_as_usual(self) -> None:
        self.python("""
            import nova_gpu_passthru.loader
            for name in ('nova.virt.nova_gpu_passthru.missing',
                         'nova.virt.nova_gpu_passthru.host.missing',
                         'nova.virt.nova_gpu_passthru_other',
                         'nova.virt.missing'):
                try:
                    __import__(name)
                except ModuleNotFoundError as error:
                    assert error.name == name, error.name
                else:
                    raise AssertionError(name)
            """)

    def test_what_our_module_misses_is_not_taken_for_our_module(
            self) -> None:
        # An operator without lxml has to read "lxml", not our name.
        self.python("""
            import sys
            import nova_gpu_passthru.loader
            sys.modules['lxml'] = None
            try:
                import nova.virt.nova_gpu_passthru.guest.domain
            except ModuleNotFoundError as error:
                assert error.name == 'lxml', error.name
            else:
                raise AssertionError('imported')
            """)

    def test_finder_is_first_and_installed_once(self) -> None:
        self.python("""
            import sys
            from nova_gpu_passthru import loader
            before = list(sys.meta_path)
            assert type(before[0]).__module__ == loader.__name__
            loader.install()
            loader.install()
            assert sys.meta_path == before
            """)

    def test_plugin_handles_no_interface(self) -> None:
        self.python("""
            import os_vif
            os_vif.initialize()
            assert not os_vif._EXT_MANAGER['nova_gpu_passthru'].obj.describe(
                ).vif_info
            """)

    def test_novas_own_modules_are_found_as_before(self) -> None:
        self.python("""
            import nova_gpu_passthru.loader
            import nova.virt.images
            assert nova.virt.images.__spec__.origin.endswith(
                'nova/virt/images.py')
            """)
