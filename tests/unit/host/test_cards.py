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

"""Which cards are offered, and why the others are not."""

import ddt

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from tests.unit import base

GPU = '0000:65:00.0'
CARD = """
0000:65:00.0 030000 10de:1ff2 driver=nvidia group=34 numa=1
0000:65:00.1 040300 10de:10fa driver=snd_hda_intel group=34 numa=1
"""


@ddt.ddt
class ImpossibleTest(base.TestCase):
    """What is not offered even where the operator includes it."""

    def assertImpossible(self, host: str, *words: str,
                         address: str = GPU) -> None:
        reason = self.reasons(host, include=[address])[address]
        for word in words:
            self.assertIn(word, reason)

    # https://bugs.launchpad.net/openstack-cyborg/+bug/1987380
    def test_virtual_function(self) -> None:
        host = """
            0000:3b:00.0 030200 10de:20b5 driver=nvidia group=1 numvfs=1
            0000:3b:00.4 030200 10de:20b5 group=2 physfn=0000:3b:00.0"""
        self.assertImpossible(host, 'virtual function of 0000:3b:00.0',
                              address='0000:3b:00.4')
        self.assertImpossible(host, '0000:3b:00.0 serves', 'sriov_numvfs',
                              address='0000:3b:00.0')

    def test_virtual_functions_of_another_class_than_the_card(self) -> None:
        # https://github.com/ROCm/gpu-operator, docs/kubevirt/kubevirt.md
        self.assertEqual({}, self.offered("""
            0000:85:00.0 120000 1002:74a1 driver=gim group=71 numvfs=1
            0000:85:02.0 120000 1002:74b5 driver=vfio-pci group=72 \
physfn=0000:85:00.0"""))

    def test_capability_for_virtual_functions_alone_means_nothing(
            self) -> None:
        self.assertEqual({GPU: []}, self.offered(
            f'{GPU} 030200 10de:20b5 group=1 numvfs=0'))

    # https://github.com/xapi-project/xenopsd/pull/689
    @ddt.data('numvfs=16', 'mdevs=1')
    def test_function_that_serves_guests_already(self, serves: str) -> None:
        self.assertImpossible(f'{GPU} 030200 10de:25b6 group=1 {serves}',
                              'serves', 'to offer the whole card')

    def test_companion_that_serves_guests_already(self) -> None:
        self.assertImpossible(CARD.replace('10fa', '10fa numvfs=2'),
                              '0000:65:00.1 serves', '2 now')

    # https://github.com/amd/MxGPU-Virtualization/issues/25
    def test_function_whose_configuration_space_reads_all_ones(self) -> None:
        self.assertImpossible('0000:65:00.0 120000 1002:75a3 group=1 dead',
                              'does not answer', 'power-cycle')

    def test_companion_whose_configuration_space_reads_all_ones(
            self) -> None:
        self.assertImpossible(CARD.replace('10fa', '10fa dead'),
                              '0000:65:00.1 does not answer')

    # https://github.com/apache/cloudstack/issues/11701
    # https://github.com/NVIDIA/deepops/issues/515
    def test_function_without_iommu_group(self) -> None:
        self.assertImpossible(f'{GPU} 120000 1002:74a5 driver=amdgpu',
                              'no IOMMU group', 'firmware', 'kernel')

    def test_companion_without_iommu_group(self) -> None:
        self.assertImpossible("""
            0000:65:00.0 030000 10de:1ff2 group=34
            0000:65:00.1 040300 10de:10fa""",
                              '0000:65:00.1 is in no IOMMU group')

    # https://bugs.launchpad.net/nova/+bug/1897528
    def test_domain_that_qemu_cannot_pass(self) -> None:
        self.assertImpossible('10000:01:00.0 030200 10de:2236 group=1',
                              '10000', '16 bits', address='10000:01:00.0')

    def test_highest_domain_that_qemu_can_pass(self) -> None:
        self.assertEqual({'ffff:01:00.0': []}, self.offered(
            'ffff:01:00.0 030200 10de:2236 group=1'))


class SickTest(base.TestCase):
    def test_companion_that_cannot_be_read_withholds_its_card_only(
            self) -> None:
        tree = self.tree(CARD + '0000:66:00.0 030000 10de:1ff2 group=35')
        (tree.path('0000:65:00.1') / 'class').write_text('garbage')
        cards = host_cards.find(pci.Sysfs(tree.root), base.policy())
        self.assertIn('0000:65:00.1 cannot be read', cards[0].reason)
        self.assertTrue(cards[1].offered)

    def test_numa_node_that_cannot_be_read_withholds_its_card_only(
            self) -> None:
        tree = self.tree(CARD + '0000:66:00.0 030000 10de:1ff2 group=35')
        (tree.path(GPU) / 'numa_node').write_text('garbage')
        cards = host_cards.find(pci.Sysfs(tree.root), base.policy())
        self.assertIn('numa_node of 0000:65:00.0', cards[0].reason)
        self.assertTrue(cards[1].offered)

    # https://github.com/kata-containers/kata-containers/issues/11708
    def test_sleeping_card_that_answers_is_healthy(self) -> None:
        tree = self.tree(CARD)
        (tree.path(GPU) / 'power_state').write_text('D3hot\n')
        cards = host_cards.find(pci.Sysfs(tree.root), base.policy())
        self.assertEqual('', cards[0].reason)

    # https://github.com/isc30/ryzen-gpu-passthrough-proxmox/issues/131
    def test_card_without_a_way_to_reset_it_is_offered(self) -> None:
        tree = self.tree(CARD)
        (tree.path(GPU) / 'reset_method').write_text('\n')
        cards = host_cards.find(pci.Sysfs(tree.root), base.policy())
        self.assertEqual('', cards[0].reason)


class HostTest(base.TestCase):
    # https://bugs.launchpad.net/nova/+bug/1897528
    def test_wide_domains_do_not_hide_the_ordinary_card(self) -> None:
        self.assertEqual({GPU: []}, self.offered("""
            10001:84:00.0 010802 1c5c:1959 driver=nvme group=1
            10002:01:00.0 010802 1179:0116 driver=nvme group=2
            0000:65:00.0 030200 10de:2236 driver=nvidia group=3"""))

    # https://github.com/Danilop95/Proxmox-Enhanced-Configuration-Utility
    # issue 32
    def test_integrated_graphics_with_seven_functions_leaves_one_card(
            self) -> None:
        virtual = '\n'.join(
            f'0000:00:02.{n} 030000 8086:a7a0 driver=i915 group={20 + n} '
            f'physfn=0000:00:02.0' for n in range(1, 8))
        self.assertEqual({GPU: ['0000:65:00.1']}, self.offered(
            '0000:00:02.0 030000 8086:a7a0 driver=i915 group=0 boot_vga=1 '
            f'numvfs=7\n{virtual}\n{CARD}'))

    def test_order_is_that_of_addresses(self) -> None:
        texts = ['0000:0a:00.0', '0000:84:00.0', '0001:01:00.0',
                 '10000:01:00.0']
        self.assertEqual(texts, [str(card.address) for card in self.cards(
            '\n'.join(f'{text} 030200 10de:2236 group={number}'
                      for number, text in enumerate(reversed(texts))))])

    def test_numa_node_is_the_gpus(self) -> None:
        self.assertEqual([1], [card.numa_node for card in self.cards(CARD)])


class XenTest(base.TestCase):
    # https://github.com/xcp-ng/xcp/issues/279
    def test_dom0_sees_no_groups_and_offers_all_the_same(self) -> None:
        self.assertEqual({'0000:0b:00.0': ['0000:0b:00.1']}, self.offered("""
            hypervisor xen
            0000:0b:00.0 030000 10de:1b81 driver=pciback boot_vga=0
            0000:0b:00.1 040300 10de:10f0 driver=snd_hda_intel"""))


@ddt.ddt
class GroupTest(base.TestCase):
    # https://github.com/HikariKnight/quickpassthrough/issues/22
    # https://github.com/NVIDIA/gpu-admin-tools/issues/23
    def test_foreign_endpoints_in_the_group_are_named(self) -> None:
        reason = self.reasons(CARD + """
            0000:01:00.0 0c0330 1022:43d0 driver=xhci_hcd group=34
            0000:01:00.1 010601 1022:43c8 driver=ahci group=34""")[GPU]
        self.assertIn('group 34', reason)
        self.assertIn('0000:01:00.0 (1022:43d0, xhci_hcd)', reason)
        self.assertIn('0000:01:00.1 (1022:43c8, ahci)', reason)

    def test_foreign_endpoint_in_the_group_of_a_companion(self) -> None:
        self.assertIn('0000:66:00.0', self.reasons("""
            0000:65:00.0 030000 10de:1ff2 group=34
            0000:65:00.1 040300 10de:10fa group=35
            0000:66:00.0 020000 15b3:101b driver=mlx5_core group=35""")[GPU])

    # https://github.com/kata-containers/kata-containers/pull/6664
    def test_bridges_in_the_group_do_not_matter(self) -> None:
        self.assertEqual({'0000:05:00.0': []}, self.offered("""
            0000:00:00.0 060000 8086:191f group=15
            0000:04:00.0 060400 10b5:8747 driver=pcieport group=15
            0000:05:00.0 030200 10de:20b5 group=15 below=0000:04:00.0"""))

    # https://github.com/kata-containers/kata-containers/issues/13430
    # Linux 5.19 and later; seen with QEMU's pcie-pci-bridge on Linux 6.1
    def test_bridge_on_a_driver_that_insists_on_its_group(self) -> None:
        card = '0000:42:01.0 030200 10de:20b5 driver=nvidia group=7'
        reason = self.reasons(f"""
            0000:41:00.0 060400 1b36:000e driver=shpchp group=7
            {card} below=0000:41:00.0""")['0000:42:01.0']
        self.assertIn('group 7 also holds the bridge 0000:41:00.0 on driver '
                      'shpchp', reason)
        self.assertIn('echo 0000:41:00.0 > '
                      '/sys/bus/pci/drivers/shpchp/unbind', reason)

    @ddt.data('060400 1b36:000e', '060400 1b36:000e driver=vfio-pci',
              '060400 1b36:000e driver=pci-stub', '060000 8086:0c00')
    def test_bridge_on_no_such_driver(self, bridge: str) -> None:
        self.assertEqual({'0000:42:01.0': []}, self.offered(f"""
            0000:41:00.0 {bridge} group=7
            0000:42:01.0 030200 10de:20b5 driver=nvidia group=7"""))

    def test_host_bridge_on_a_driver(self) -> None:
        reasons = self.reasons("""
            0000:00:00.0 060000 8086:0c00 driver=hsw_uncore group=1
            0000:01:00.0 030000 10de:1b80 driver=nvidia group=1""")
        self.assertIn('the bridge 0000:00:00.0 on driver hsw_uncore',
                      reasons['0000:01:00.0'])

    def test_nvswitch_in_the_group_is_no_bridge(self) -> None:
        self.assertIn('0000:c4:00.0 (10de:1af1, no driver)', self.reasons("""
            0000:05:00.0 030200 10de:20b0 group=15
            0000:c4:00.0 068000 10de:1af1 group=15""")['0000:05:00.0'])

    def test_isa_bridge_in_the_group_is_an_endpoint(self) -> None:
        self.assertIn('0000:00:1f.0', self.reasons(
            CARD + '0000:00:1f.0 060100 8086:a2c6 group=34')[GPU])

    def test_cards_may_share_a_group(self) -> None:
        self.assertEqual([GPU, '0000:66:00.0'], list(self.offered(
            CARD + '0000:66:00.0 030000 10de:1ff2 group=34')))

    def test_withheld_card_withholds_the_others_of_its_group(self) -> None:
        # The second shares a group with the first, the third with the
        # second: what is kept back goes on through all of them.
        self.assertEqual({}, self.offered("""
            0000:65:00.0 030000 10de:1ff2 group=34
            0000:66:00.0 030000 10de:1ff2 group=34
            0000:66:00.1 040300 10de:10fa group=35
            0000:67:00.0 030000 10de:1ff2 group=35""", exclude=[GPU]))


class ExcludeTest(base.TestCase):
    TWINS = CARD + """
        0000:17:00.0 030000 10de:1ff2 driver=vfio-pci group=33
        0000:17:00.1 040300 10de:10fa driver=vfio-pci group=33"""

    # https://github.com/truenas/middleware/pull/11397
    def test_address_excludes_one_of_two_identical_cards(self) -> None:
        self.assertEqual({'0000:17:00.0': ['0000:17:00.1']},
                         self.offered(self.TWINS, exclude=[GPU]))

    # https://github.com/QubesOS/qubes-issues/issues/7976: half a card
    def test_naming_one_function_excludes_the_whole_card(self) -> None:
        reasons = self.reasons(self.TWINS, exclude=['65:00.1'])
        self.assertEqual(
            {GPU: '[gpu_passthru] exclude names 0000:65:00.1'}, reasons)

    def test_model_excludes_all_identical_cards(self) -> None:
        self.assertEqual({}, self.offered(self.TWINS, exclude=['10DE:1FF2']))

    def test_exclude_wins_over_include(self) -> None:
        self.assertEqual({}, self.offered(CARD, include=[GPU],
                                          exclude=['10de:1ff2']))

    # https://bugs.launchpad.net/nova/+bug/2115905
    def test_two_excluded_at_once_are_both_gone(self) -> None:
        self.assertEqual({}, self.offered(
            self.TWINS, exclude=[GPU, '0000:17:00.0']))


@ddt.ddt
class ConsoleTest(base.TestCase):
    BOOT = '0000:65:00.0 030000 10de:2204 driver=nvidia group=1 boot_vga=1'
    OTHER = '\n0000:66:00.0 030000 10de:2204 driver=nvidia group=2 boot_vga=0'
    BMC = '\n0000:03:00.0 030000 1a03:2000 driver=ast group=3 boot_vga=0'
    IGPU = '\n0000:00:02.0 038000 8086:1912 driver=i915 group=3 boot_vga=0'

    # https://github.com/harvester/pcidevices/issues/81
    def test_only_console_stays_with_the_host(self) -> None:
        host = self.BOOT + self.OTHER
        self.assertEqual({'0000:66:00.0': []}, self.offered(host))
        self.assertIn('boot_vga to offer', self.reasons(host)[GPU])

    def test_it_is_offered_where_the_operator_wants_that(self) -> None:
        self.assertEqual({GPU: []},
                         self.offered(self.BOOT, boot_vga='offer'))

    @ddt.data(BMC, IGPU)
    def test_it_is_offered_where_the_host_has_another_display(
            self, other: str) -> None:
        self.assertEqual({GPU: []}, self.offered(self.BOOT + other))

    def test_excluded_card_is_another_display(self) -> None:
        self.assertEqual({GPU: []}, self.offered(
            self.BOOT + self.OTHER, exclude=['0000:66:00.0']))

    def test_display_that_does_not_answer_is_none(self) -> None:
        self.assertEqual({}, self.offered(self.BOOT + self.BMC + ' dead'))

    def test_it_is_kept_where_the_operator_wants_that(self) -> None:
        self.assertIn('set to withhold', self.reasons(
            self.BOOT + self.BMC, boot_vga='withhold')[GPU])

    def test_one_on_a_stub_driver_shows_no_console(self) -> None:
        self.assertEqual({GPU: []}, self.offered(
            self.BOOT.replace('nvidia', 'vfio-pci')))

    def test_one_without_driver_may_show_the_firmwares(self) -> None:
        self.assertEqual({}, self.offered(
            self.BOOT.replace('driver=nvidia', '')))

    def test_excluded_card_without_outputs_is_none(self) -> None:
        host = self.BOOT + self.OTHER.replace('030000', '030200')
        self.assertEqual({}, self.offered(host, exclude=['0000:66:00.0']))

    def test_excluded_card_on_a_stub_driver_is_none(self) -> None:
        # Something else passes it to a guest.
        host = self.BOOT + self.OTHER.replace('nvidia', 'vfio-pci')
        self.assertEqual({}, self.offered(host, exclude=['0000:66:00.0']))
