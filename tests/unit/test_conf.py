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

import pathlib

import ddt
import fixtures
from oslo_config import cfg
from oslo_config import generator

from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy
from nova_gpu_passthru.host import terms as host_terms
from tests.unit import base

ROOT = pathlib.Path(__file__).parents[2]


class TestCase(base.TestCase):
    def read(self, lines: str = '') -> cfg.ConfigOpts:
        """Reads [gpu_passthru] from a file, as nova-compute does."""
        file = f'{self.useFixture(fixtures.TempDir()).path}/nova.conf'
        with open(file, 'w') as stream:
            stream.write(f'[gpu_passthru]\n{lines}\n')
        config = cfg.ConfigOpts()
        config.register_opt(cfg.StrOpt('state_path', default='/var/lib/nova'))
        conf.register_opts(config)
        config(['--config-file', file], project='nova')
        return config

    def terms(self, lines: str = '') -> host_terms.Terms:
        return conf.read_terms(self.read(lines))

    def policy(self, lines: str = '') -> host_policy.Policy:
        return conf.read_policy(self.read(lines))


@ddt.ddt
class DeviceListTest(TestCase):
    # https://github.com/xcp-ng/xcp/issues/279 and issues/412
    @ddt.data('0b::00.1', '(0b::00.1)', '0000:82.0.0', '1:0:1:0:', 'nvidia',
              '10de', '10de:', '10de:233', '0000:65:00', '0000:65:00.*',
              '"0000:65:00.0"', '0000:65:00.0 0000:66:00.0', '10de:2330:')
    def test_malformed_entry_stops_the_service_with_its_text(
            self, entry: str) -> None:
        for option in ('include', 'exclude'):
            error = self.assertRaises(
                exceptions.InvalidDeviceEntry, self.policy,
                f'{option} = 0000:17:00.0,{entry}')
            self.assertIn(f'[gpu_passthru] {option} has {entry!r}',
                          str(error))
            self.assertIn('10de:2330', str(error))

    @ddt.unpack
    @ddt.data(
        (' 0000:65:00.0 ', '0000:65:00.0'),
        ('00000000:D8:00.0', '0000:d8:00.0'),
        ('0000:AF:00.1', '0000:af:00.1'), ('d8:00.0', '0000:d8:00.0'),
        ('0001:c8:00.0', '0001:c8:00.0'), ('10000:01:00.0', '10000:01:00.0'))
    def test_every_spelling_of_an_address_is_read(self, text: str,
                                                  meant: str) -> None:
        policy = self.policy(f'exclude = {text}')
        self.assertEqual([meant],
                         [str(a) for a in policy.exclude.addresses])
        self.assertEqual(frozenset(), policy.exclude.models)

    @ddt.data('10de:2330', '10DE:2330', ' 10de:2330')
    def test_every_spelling_of_a_model_is_read(self, text: str) -> None:
        policy = self.policy(f'include = {text}')
        self.assertEqual({'10de:2330'}, policy.include.models)
        self.assertEqual(frozenset(), policy.include.addresses)

    def test_entries_may_be_mixed_and_stand_on_several_lines(self) -> None:
        policy = self.policy('exclude = 0000:17:00.0, 10de:1ff2 ,\n'
                             '  0000:65:00.1')
        self.assertEqual({pci.PCIAddress(0, 0x17, 0, 0),
                          pci.PCIAddress(0, 0x65, 0, 1)},
                         policy.exclude.addresses)
        self.assertEqual({'10de:1ff2'}, policy.exclude.models)

    @ddt.data('', 'include =\nexclude =')
    def test_by_default_nothing_is_named(self, lines: str) -> None:
        self.assertEqual(host_policy.Policy(), self.policy(lines))

    def test_trailing_comma_names_nothing(self) -> None:
        self.assertEqual({pci.PCIAddress(0, 0x17, 0, 0)},
                         self.policy('exclude = 0000:17:00.0,'
                                     ).exclude.addresses)


@ddt.ddt
class OptionsTest(TestCase):
    @ddt.data(*host_policy.BootVGA)
    def test_boot_vga_has_each_choice(self, choice: host_policy.BootVGA
                                      ) -> None:
        self.assertIs(choice,
                      self.policy(f'boot_vga = {choice.value}').boot_vga)

    def test_other_choices_are_refused(self) -> None:
        error = self.assertRaises(exceptions.InvalidOption, self.policy,
                                  'boot_vga = maybe')
        self.assertIn("[gpu_passthru] boot_vga cannot be used", str(error))
        self.assertIn("'maybe'", str(error))

    @ddt.unpack
    @ddt.data(('boot_vga', 'maybe'), ('detach_timeout', '0'),
              ('detach_timeout', '-1'), ('detach_timeout', 'soon'),
              ('guest_numa_placement', 'perhaps'),
              ('metrics_file', '$nothing/of_that_name'),
              ('release_hook_timeout', '0'), ('hold_after_release', '2'),
              ('state_dir', '$nothing/of_that_name'))
    def test_value_of_another_kind_is_refused_with_its_option(
            self, name: str, text: str) -> None:
        error = self.assertRaises(exceptions.InvalidOption, conf.check,
                                  self.read(f'{name} = {text}'))
        self.assertIn(f'[gpu_passthru] {name} cannot be used', str(error))
        self.assertIn('correct the value', str(error))

    def test_defaults_are_values_that_the_options_can_have(self) -> None:
        conf.check(self.read())

    def test_options_may_be_registered_twice(self) -> None:
        config = self.read()
        conf.register_opts(config)
        self.assertEqual([], config.gpu_passthru.include)

    def test_every_option_has_help(self) -> None:
        self.assertEqual([], [opt.name for _, opts in conf.list_opts()
                              for opt in opts if not opt.help])

    def test_sample_is_what_the_options_are(self) -> None:
        # As "tox -e genconfig" writes it.
        written = f'{self.useFixture(fixtures.TempDir()).path}/sample'
        settings = ROOT / 'tools' / 'config-generator.conf'
        generator.main(['--config-file', str(settings),
                        '--output-file', written])
        sample = ROOT / 'etc' / 'nova-gpu-passthru.conf.sample'
        self.assertEqual(sample.read_text(), pathlib.Path(written).read_text())


@ddt.ddt
class ReleaseTest(TestCase):
    def test_by_default_nothing_happens_between_two_guests(self) -> None:
        self.assertFalse(self.terms().needed)

    def test_all_that_shall_happen_is_read(self) -> None:
        self.assertEqual(
            host_terms.Terms('/bin/true', 90, True),
            self.terms('release_hook = /bin/true\nrelease_hook_timeout = 90\n'
                       'hold_after_release = true'))

    @ddt.data('release_hook = /bin/true', 'hold_after_release = true')
    def test_either_is_enough(self, line: str) -> None:
        self.assertTrue(self.terms(line).needed)

    def test_hook_that_cannot_run_stops_the_service(self) -> None:
        error = self.assertRaises(exceptions.InvalidReleaseHook, self.terms,
                                  'release_hook = /no/such/hook')
        self.assertIn("'/no/such/hook'", str(error))

    @ddt.data('0', '-1', 'soon')
    def test_timeout_is_a_positive_number(self, text: str) -> None:
        self.assertRaises(cfg.ConfigFileValueError, self.terms,
                          f'release_hook_timeout = {text}')

    def test_records_are_in_the_state_of_nova(self) -> None:
        self.assertEqual(pathlib.Path('/var/lib/nova/gpu_passthru'),
                         conf.records_of(self.read()).folder)
