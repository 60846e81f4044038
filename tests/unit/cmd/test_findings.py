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

import dataclasses
import importlib.metadata
import pathlib

import ddt
import fixtures
from oslo_config import cfg
from oslo_config import fixture as config_fixture

from nova_gpu_passthru.cmd import findings
from nova_gpu_passthru.cmd import host_findings
from nova_gpu_passthru.cmd import main
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import processes
from tests import proc_tree
from tests.unit import base
from tests.unit import fakes
from tests.unit.guest import test_add_cards

A = 'aaaaaaaa-0000-4000-8000-000000000000'
B = 'bbbbbbbb-0000-4000-8000-000000000000'
CARD = """
0000:65:00.0 030000 10de:1ff2 driver=nvidia group=34
0000:65:00.1 040300 10de:10fa driver=snd_hda_intel group=34
"""


@ddt.ddt
class NovaTest(base.TestCase):
    def with_version(self, version: str) -> list[findings.Finding]:
        self.useFixture(fixtures.MonkeyPatch(
            'importlib.metadata.version', lambda name: version))
        return list(findings.of_nova())

    def test_nova_that_we_work_with_is_no_problem(self) -> None:
        self.assertEqual([], self.with_version('34.0.0'))

    def test_other_nova_is_named(self) -> None:
        finding, = self.with_version('35.0.0')
        self.assertIn('35.0.0', finding.problem)

    def test_missing_nova_is_a_problem(self) -> None:
        def missing(name: str) -> str:
            raise importlib.metadata.PackageNotFoundError(name)

        self.useFixture(fixtures.MonkeyPatch('importlib.metadata.version',
                                             missing))
        finding, = findings.of_nova()
        self.assertIn('not installed', finding.problem)
        self.assertIn('install', finding.cure)


class ConfigurationTest(base.TestCase):
    def config(self, compute_driver: str = host_findings.DRIVER
               ) -> cfg.ConfigOpts:
        config = cfg.ConfigOpts()
        main.register_opts(config)
        config([])
        config.set_override('compute_driver', compute_driver)
        return config

    def found(self, compute_driver: str = host_findings.DRIVER,
              **options: object) -> list[findings.Finding]:
        config = self.config(compute_driver)
        for name, value in options.items():
            config.set_override(name, value, 'gpu_passthru')
            # All configurations share what a group of options has.
            self.addCleanup(config.clear_override, name, 'gpu_passthru')
        return list(host_findings.of_configuration(config))

    def test_our_driver_with_good_options_is_no_problem(self) -> None:
        self.assertEqual([], self.found(exclude=['0000:65:00.0']))

    def test_novas_own_driver_is_a_problem_with_the_line_to_write(
            self) -> None:
        finding, = self.found(compute_driver='libvirt.LibvirtDriver')
        self.assertIn('libvirt.LibvirtDriver', finding.problem)
        self.assertIn('compute_driver = nova_gpu_passthru.driver.'
                      'GPUPassthruDriver', finding.cure)

    def test_other_hypervisor_is_a_problem(self) -> None:
        config = self.config()
        config.set_override('virt_type', 'lxc', 'libvirt')
        finding, = host_findings.of_configuration(config)
        self.assertIn('virt_type is lxc', finding.problem)
        self.assertIn('virt_type = kvm', finding.cure)

    def test_malformed_entry_is_quoted(self) -> None:
        finding, = self.found(exclude=['0000:82.0.0'])
        self.assertIn("'0000:82.0.0'", finding.problem)

    def test_value_of_another_kind_is_quoted(self) -> None:
        config = self.config()
        self.useFixture(config_fixture.Config(config)).load_raw_values(
            group='gpu_passthru', guest_numa_placement='perhaps')
        finding, = host_findings.of_configuration(config)
        self.assertIn('guest_numa_placement', finding.problem)
        self.assertIn("'perhaps'", finding.problem)
        self.assertEqual('correct the value', finding.cure)

    def test_hook_that_cannot_run_is_quoted(self) -> None:
        finding, = self.found(release_hook='/no/such/hook')
        self.assertIn("'/no/such/hook'", finding.problem)


class UsersTest(base.TestCase):
    def found(self, driver: str) -> list[findings.Finding]:
        sysfs = self.tree(
            f'0000:65:00.0 030000 10de:1ff2 driver={driver} group=34')
        proc = proc_tree.ProcTree(self.tree('').root, sysfs)
        proc.serve_nvidia('0000:65:00.0', 0)
        proc.run(812, 'nvidia-persiste', 'nvidia0')
        reader = pci.Sysfs(sysfs.root)
        return list(host_findings.of_users(
            host_cards.find(reader, base.policy()),
            processes.Processes(reader, proc.root)))

    def test_process_that_uses_a_card_is_named(self) -> None:
        finding, = self.found('nvidia')
        self.assertEqual(('GPU 0000:65:00.0', 'nvidia-persiste (pid 812) '
                          'uses it'), (finding.subject, finding.problem))

    def test_guest_that_has_the_card_is_no_problem(self) -> None:
        self.assertEqual([], self.found('vfio-pci'))


@ddt.ddt
class KernelTest(base.TestCase):
    def found(self, description: str, modules: str = '',
              file: str = 'modules.dep') -> list[str]:
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        folder = root / 'lib/modules/6.8.0-31'
        folder.mkdir(parents=True)
        (folder / file).write_text(modules)
        return [finding.subject for finding in host_findings.of_kernel(
            pci.Sysfs(self.tree(description).root), root, '6.8.0-31')]

    # As depmod writes them.
    @ddt.data(
        ('kernel/drivers/vfio/pci/vfio-pci.ko.zst: kernel/x.ko.zst\n',
         'modules.dep'),
        ('kernel/drivers/vfio/pci/vfio-pci.ko\n', 'modules.builtin'))
    @ddt.unpack
    def test_module_that_can_be_loaded_is_enough(self, modules: str,
                                                 file: str) -> None:
        self.assertEqual([], self.found(CARD, modules, file))

    def test_driver_that_is_loaded_is_enough(self) -> None:
        self.assertEqual([], self.found(
            '0000:65:00.0 030000 10de:1ff2 driver=vfio-pci group=34'))

    def test_missing_module_is_a_problem(self) -> None:
        self.assertEqual(['vfio-pci'], self.found(
            CARD, 'kernel/drivers/vfio/vfio.ko:\n'))

    # https://github.com/NVIDIA/deepops/issues/515
    def test_missing_iommu_is_a_problem(self) -> None:
        self.assertEqual(['IOMMU'], self.found(
            '0000:65:00.0 030000 10de:1ff2 driver=vfio-pci'))

    def test_xen_needs_neither(self) -> None:
        self.assertEqual([], self.found(
            'hypervisor xen\n0000:65:00.0 030000 10de:1ff2'))


class CardsTest(base.TestCase):
    def found(self, description: str, **options: object
              ) -> list[findings.Finding]:
        return list(host_findings.of_cards(self.cards(description, **options)))

    def test_offered_card_is_no_problem(self) -> None:
        self.assertEqual([], self.found(CARD))

    def test_what_stays_with_the_host_is_no_problem(self) -> None:
        self.assertEqual([], self.found(CARD + """
            0000:03:00.0 030000 1a03:2000 driver=ast group=1
            0000:00:02.0 030000 8086:a7ac driver=xe group=2 numvfs=1
            0000:00:02.1 030000 8086:a7ac group=3 physfn=0000:00:02.0
            0000:66:00.0 030000 10de:1ff2 group=35""",
                                        exclude=['0000:66:00.0']))

    def test_withheld_card_comes_with_its_cure(self) -> None:
        finding, = self.found(CARD + '0000:66:00.0 120000 1002:74a1 group=4 '
                              'numvfs=8')
        self.assertEqual('GPU 0000:66:00.0', finding.subject)
        self.assertIn('8', finding.problem)
        self.assertIn('set its sriov_numvfs to 0', finding.cure)

    def test_host_that_offers_nothing_is_a_problem(self) -> None:
        finding, = self.found('')
        self.assertIn('no display and no accelerator', finding.problem)
        self.assertEqual(['GPUs'], [f.subject for f in self.found(
            CARD, exclude=['0000:65:00.0'])])


class DomainsTest(base.TestCase):
    def found(self, *domains: tuple[str, tuple[str, ...]]
              ) -> list[findings.Finding]:
        return list(host_findings.of_domains(
            [domain.read(fakes.domain_xml(uuid, *addresses))
             for uuid, addresses in domains], self.cards(CARD),
            base.policy()))

    def test_one_domain_with_the_whole_card_is_no_problem(self) -> None:
        self.assertEqual([], self.found(
            (A, ('0000:65:00.0', '0000:65:00.1')), (B, ())))

    # https://github.com/truenas/middleware/pull/13603
    def test_two_domains_with_one_card_are_named(self) -> None:
        finding, = self.found(
            (A, ('0000:65:00.0', '0000:65:00.1')), (B, ('0000:65:00.1',)))
        self.assertEqual('GPU 0000:65:00.0', finding.subject)
        self.assertIn(A, finding.problem)
        self.assertIn(B, finding.problem)

    # https://github.com/canonical/lxd/issues/12643
    def test_domain_with_half_a_card_misses_the_rest(self) -> None:
        finding, = self.found((A, ('0000:65:00.0',)))
        self.assertIn('without 0000:65:00.1', finding.problem)
        self.assertIn('the whole card', finding.cure)


class DeviceSpecTest(base.TestCase):
    """A host on which Nova's own PCI tracker gives GPUs to guests."""

    POLICY = dataclasses.replace(
        base.policy(), nova_gives=lambda f: f.model == '10de:1ff2')

    def found(self, xml: str = '', description: str = CARD
              ) -> list[findings.Finding]:
        cards = host_cards.find(pci.Sysfs(self.tree(description).root),
                                self.POLICY)
        domains = [domain.read(xml)] if xml else []
        return [*host_findings.of_device_spec(cards, self.POLICY, domains),
                *host_findings.of_domains(domains, cards, self.POLICY)]

    def test_card_that_nobody_has_is_to_be_taken_out(self) -> None:
        finding, = self.found()
        self.assertEqual('GPU 0000:65:00.0', finding.subject)
        self.assertIn('device_spec names 0000:65:00.0', finding.problem)
        self.assertRegex(finding.cure, '^take it out of device_spec')

    def test_guest_that_has_it_by_an_alias_is_named(self) -> None:
        # Nova gives functions, so the guest need not have the whole card.
        finding, = self.found(fakes.domain_xml(A, '0000:65:00.0'))
        self.assertIn(A, finding.problem)
        self.assertRegex(finding.cure, '^resize that guest .*free_gpus')
        self.assertIn('then take it out of device_spec', finding.cure)

    def test_guest_that_has_another_card_is_not_named(self) -> None:
        finding, = self.found(fakes.domain_xml(A, '0000:66:00.0'))
        self.assertNotIn(A, finding.problem)

    def test_guest_of_this_driver_stays(self) -> None:
        xml = domain.add_cards(test_add_cards.nova_xml('q35'),
                               self.cards(CARD))
        finding, = self.found(xml)
        self.assertRegex(finding.cure, '^take it out of device_spec')

    def test_other_cards_are_no_problem(self) -> None:
        self.assertEqual([], self.found(
            description='0000:66:00.0 030200 10de:2330 driver=vfio-pci '
                        'group=1'))
