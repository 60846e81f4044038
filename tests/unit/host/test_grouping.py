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

"""Which functions are GPUs, and which make a card together."""

import ddt

from tests.unit import base

GPU = '0000:65:00.0'
TURING = """
0000:86:00.0 030000 10de:1e30 driver=nvidia group=6
0000:86:00.1 040300 10de:10f7 driver=snd_hda_intel group=6
0000:86:00.2 0c0330 10de:1ad6 driver=xhci_hcd group=6
0000:86:00.3 0c8000 10de:1ad7 driver=nvidia-gpu group=6
"""
# Intel's Arc A380: display and audio below two ports of the board's switch.
ARC = """
0000:00:1c.4 060400 8086:7abc driver=pcieport group=10
0000:04:00.0 060400 8086:4fa1 driver=pcieport group=16 below=0000:00:1c.4
0000:05:01.0 060400 8086:4fa4 driver=pcieport group=17 below=0000:04:00.0
0000:05:04.0 060400 8086:4fa4 driver=pcieport group=18 below=0000:04:00.0
0000:06:00.0 030000 8086:56a5 driver=i915 group=19 below=0000:05:01.0
0000:07:00.0 040300 8086:4f92 driver=snd_hda_intel group=20 \
below=0000:05:04.0
"""


@ddt.ddt
class GPUTest(base.TestCase):
    # 1200: https://github.com/apache/cloudstack/issues/11701 (MI325X)
    # 0380: https://github.com/apache/cloudstack/issues/12957 (MI210),
    #       https://github.com/akash-network/provider-configs/issues/40 (MI60)
    # 0300, 0302: https://github.com/nanovms/ops/pull/1531
    @ddt.data('120000 1002:74a5', '120000 10de:2330', '038000 1002:740f',
              '038000 1002:66a1', '030000 10de:2204', '030200 10de:20b5',
              '030100 10de:0001')
    def test_every_display_and_gpu_makers_accelerator_is_a_gpu(
            self, kind: str) -> None:
        self.assertEqual({GPU: []}, self.offered(f'{GPU} {kind} group=1'))

    # An NPU, a Habana accelerator, an NVSwitch, bridges, a network card.
    @ddt.data('120000 8086:7d1d', '120000 1da3:1020', '068000 10de:1af1',
              '060400 10de:0001', '020700 15b3:1021', '0b4000 10de:0001')
    def test_other_functions_are_no_candidates(self, kind: str) -> None:
        self.assertEqual((), self.cards(f'{GPU} {kind} group=1'))

    def test_included_accelerator_of_another_maker_is_offered(self) -> None:
        self.assertEqual({GPU: []}, self.offered(
            f'{GPU} 120000 1da3:1020 group=1', include=['1da3:1020']))

    def test_include_makes_no_card_of_what_is_no_accelerator(self) -> None:
        self.assertEqual((), self.cards(
            f'{GPU} 020000 15b3:1021 group=1', include=[GPU]))

    # https://github.com/OpenNebula/one/issues/5968
    def test_card_needs_no_mediated_device_types(self) -> None:
        self.assertEqual({GPU: ['0000:65:00.1']}, self.offered("""
            0000:65:00.0 030000 10de:24b0 driver=vfio-pci group=1
            0000:65:00.1 040300 10de:228b driver=vfio-pci group=1"""))


@ddt.ddt
class HostDisplayTest(base.TestCase):
    # https://github.com/harvester/pcidevices, tests/snapshots (HPE Gen9)
    def test_controllers_display_that_is_function_1_takes_no_card(
            self) -> None:
        self.assertEqual({}, self.offered("""
            0000:01:00.0 088000 103c:3306 driver=hpwdt group=33
            0000:01:00.1 030000 102b:0533 driver=mgag200 group=33 boot_vga=1
            0000:01:00.2 088000 103c:3307 driver=hpilo group=33
            0000:01:00.4 0c0300 103c:3300 driver=uhci_hcd group=33"""))

    # A compute node that is itself a virtual machine: jaypipes/ghw,
    # testdata/snapshots/linux-amd64-accel-nvidia.tar.gz
    # 19e5: of Kunpeng servers, drivers/gpu/drm/hisilicon/hibmc of Linux
    @ddt.data('1af4:1050', '1234:1111', '1b36:0100', '1013:00b8',
              '15ad:0405', '1a03:2000', '102b:0533', '19e5:1711')
    def test_emulated_and_controllers_displays_need_to_be_included(
            self, model: str) -> None:
        host = f'{GPU} 030000 {model} group=1'
        self.assertIn('display; name it in [gpu_passthru] include',
                      self.reasons(host)[GPU])
        self.assertEqual({GPU: []}, self.offered(host, include=[model]))

    # https://github.com/Coopydood/ultimate-macOS-KVM/issues/213
    @ddt.data('038000', '030000')
    def test_intels_graphics_at_the_root_bus_is_the_cpus(
            self, class_code: str) -> None:
        self.assertIn('integrated in the CPU', self.reasons(
            f'0000:00:02.0 {class_code} 8086:1912 driver=i915 group=0')[
                '0000:00:02.0'])

    def test_intels_card_below_a_port_is_not(self) -> None:
        self.assertIn('0000:06:00.0', self.offered(ARC))

    # https://github.com/xcp-ng/xcp-ng-org/pull/501
    def test_amds_graphics_among_the_cpus_functions_is_the_cpus(
            self) -> None:
        apu = """
            0000:00:08.1 060400 1022:1635 driver=pcieport group=5
            0000:07:00.0 030000 1002:1638 group=5 below=0000:00:08.1
            0000:07:00.1 040300 1002:1637 group=5 below=0000:00:08.1
            0000:07:00.2 108000 1022:15df group=6 below=0000:00:08.1
            0000:07:00.3 0c0330 1022:1639 group=7 below=0000:00:08.1"""
        self.assertIn('integrated in the CPU',
                      self.reasons(apu)['0000:07:00.0'])
        # Where it is included its own audio goes along; the machine's
        # security processor and USB do not.
        self.assertEqual({'0000:07:00.0': ['0000:07:00.1']},
                         self.offered(apu, include=['0000:07:00.0']))

    # Intel's NPU at the root bus, and what stands beside CPU functions.
    def test_included_accelerator_of_the_cpu_is_a_card_by_itself(
            self) -> None:
        self.assertEqual({'0000:00:0b.0': []}, self.offered(
            '0000:00:0b.0 120000 8086:7d1d group=5',
            include=['8086:7d1d']))
        beside = """
            0000:c5:00.1 120000 1002:17f0 group=5
            0000:c5:00.2 108000 1022:17e0 group=6"""
        self.assertEqual({'0000:c5:00.1': []}, self.offered(
            beside, include=['0000:c5:00.1']))

    def test_amds_card_with_its_own_functions_is_not(self) -> None:
        # https://github.com/canonical/lxd/issues/12643: two groups
        self.assertEqual({'0000:c3:00.0': ['0000:c3:00.1']}, self.offered("""
            0000:c3:00.0 030000 1002:73ff driver=amdgpu group=40
            0000:c3:00.1 040300 1002:ab28 driver=snd_hda_intel group=41"""))


@ddt.ddt
class CompanionTest(base.TestCase):
    # https://github.com/kubevirt/kubevirt/issues/10565
    # https://github.com/NVIDIA/kubevirt-gpu-device-plugin/issues/27
    def test_all_four_functions_of_a_turing_card_are_one_card(self) -> None:
        self.assertEqual(
            {'0000:86:00.0': ['0000:86:00.1', '0000:86:00.2',
                              '0000:86:00.3']}, self.offered(TURING))

    # https://github.com/NVIDIA/kubevirt-gpu-device-plugin/issues/67
    def test_audio_functions_are_not_counted_as_gpus(self) -> None:
        slots = {'31': 7, '4b': 5, 'b1': 21, 'ca': 19}
        self.assertEqual(
            {f'0000:{bus}:00.0': [f'0000:{bus}:00.1'] for bus in slots},
            self.offered('\n'.join(
                f'0000:{bus}:00.0 030000 10de:2231 group={group}\n'
                f'0000:{bus}:00.1 040300 10de:1aef group={group}'
                for bus, group in slots.items())))

    def test_companion_may_have_another_maker(self) -> None:
        self.assertEqual({GPU: ['0000:65:00.2']}, self.offered("""
            0000:65:00.0 030000 1002:73ff group=1
            0000:65:00.2 0c0330 1912:0014 group=1"""))

    def test_two_displays_in_a_slot_are_one_card(self) -> None:
        self.assertEqual({GPU: ['0000:65:00.1']}, self.offered("""
            0000:65:00.0 030000 1002:6798 group=1
            0000:65:00.1 038000 1002:6799 group=1"""))

    def test_gpu_need_not_be_function_0(self) -> None:
        self.assertEqual({'0000:65:00.1': [GPU]}, self.offered("""
            0000:65:00.0 040300 10de:228b group=1
            0000:65:00.1 030000 10de:24b0 group=1"""))

    def test_virtual_functions_in_the_slot_do_not_go_along(self) -> None:
        # Stale ones: sriov_numvfs says 0 already.
        host = """
            0000:3b:00.0 030200 10de:20b5 group=1
            0000:3b:00.1 040300 10de:1aef group=1
            0000:3b:00.4 030200 10de:20b5 group=2 physfn=0000:3b:00.0"""
        self.assertEqual({'0000:3b:00.0': ['0000:3b:00.1']},
                         self.offered(host))

    def test_function_of_another_kind_withholds_the_card(self) -> None:
        host = """
            0000:65:00.0 030000 10de:24b0 group=1
            0000:65:00.1 010802 144d:a80a driver=nvme group=1"""
        self.assertIn('0000:65:00.1 in the same slot has class 0108',
                      self.reasons(host)[GPU])

    def test_arcs_audio_below_the_boards_switch_goes_along(self) -> None:
        self.assertEqual({'0000:06:00.0': ['0000:07:00.0']},
                         self.offered(ARC))

    def test_audio_below_a_switch_of_the_machine_does_not(self) -> None:
        # The switch has another maker.
        self.assertEqual({'0000:06:00.0': []}, self.offered(
            ARC.replace('8086:4fa', '10b5:874')))

    def test_audio_below_a_switch_with_other_devices_does_not(self) -> None:
        self.assertEqual({'0000:06:00.0': []}, self.offered(ARC + """
            0000:05:05.0 060400 8086:4fa4 group=21 below=0000:04:00.0
            0000:08:00.0 020000 8086:1521 group=22 below=0000:05:05.0"""))

    # https://github.com/canonical/lxd/issues/18291
    def test_platform_audio_does_not_go_along(self) -> None:
        self.assertEqual({GPU: []}, self.offered("""
            0000:00:1f.3 040300 8086:51ca driver=snd_hda_intel group=15
            0000:65:00.0 030000 10de:2204 group=1"""))

    # https://github.com/kubevirt/kubevirt/issues/14024: one slot number,
    # many buses
    def test_functions_of_other_slots_stay_apart(self) -> None:
        self.assertEqual(
            {'0000:65:00.0': [], '0000:65:01.0': [], '0000:66:00.0': [],
             '0001:65:00.0': ['0001:65:00.1']}, self.offered("""
            0000:65:00.0 030000 10de:2204 group=1
            0000:65:01.0 030000 10de:2204 group=2
            0000:66:00.0 030000 10de:2204 group=3
            0001:65:00.0 030000 10de:2204 group=4
            0001:65:00.1 040300 10de:1aef group=4"""))
