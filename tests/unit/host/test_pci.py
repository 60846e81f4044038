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
import random

import ddt
import fixtures

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import pci
from tests.unit import base


@ddt.ddt
class PCIAddressTest(base.TestCase):
    # The ways that these write an address:
    # https://git.proxmox.com/?p=qemu-server.git;a=commit;h=6c0cce85
    # https://github.com/OpenNebula/one (fe3b5992f9)
    # https://github.com/NVIDIA/go-nvlib (60ec6dc)
    @ddt.unpack
    @ddt.data(
        ('0001:c8:00.0', '0001:c8:00.0'),
        ('00000000:D8:00.0', '0000:d8:00.0'),
        ('000010001:84:00.0'[1:], '10001:84:00.0'),
        ('0000:AF:1F.7', '0000:af:1f.7'),
        ('d8:00.0', '0000:d8:00.0'),
        (' 0000:65:00.0\n', '0000:65:00.0'))
    def test_every_tools_spelling_names_the_same_function(
            self, text: str, meant: str) -> None:
        self.assertEqual(meant, str(pci.PCIAddress.parse(text)))

    # https://github.com/xcp-ng/xcp/issues/279
    # https://github.com/xcp-ng/xcp/issues/412
    @ddt.data('0b::00.1', '(0b::00.1)', '0000:82.0.0', '1:0:1:0:', '',
              '0000:65:00', '0000:65:00.8', '0000:65:20.0', '000:65:00.0',
              '000000000:65:00.0', '0000:65:00.0 0000:66:00.0',
              '0000:6:00.0', '٠000:65:00.0', '-001:65:00.0')
    def test_what_is_no_address_is_refused_and_quoted(
            self, text: str) -> None:
        error = self.assertRaises(exceptions.InvalidPCIAddress,
                                  pci.PCIAddress.parse, text)
        self.assertIn(repr(text), str(error))

    def test_bus_is_hexadecimal(self) -> None:
        # https://github.com/truenas/middleware/pull/16815
        self.assertEqual(pci.PCIAddress(0, 0x84, 0x10, 7),
                         pci.PCIAddress.parse('0000:84:10.7'))

    def test_addresses_sort_as_numbers(self) -> None:
        # Text would put domain 10001 before 2000.
        texts = ['0000:0a:00.0', '0000:84:00.0', '2000:01:00.0',
                 '10001:84:00.0', '10002:01:00.0']
        shuffled = random.Random(1).sample(texts, len(texts))
        self.assertEqual(texts, [str(a) for a in sorted(
            pci.PCIAddress.parse(text) for text in shuffled)])

    @ddt.unpack
    @ddt.data(('0000:3b:10.7', 'pci_0000_3b_10_7'),
              ('10001:84:00.0', 'pci_10001_84_00_0'))
    def test_node_device_is_named_as_libvirt_does(
            self, text: str, name: str) -> None:
        self.assertEqual(name, pci.PCIAddress.parse(text).node_device)


@ddt.ddt
class SysfsTest(base.TestCase):
    def function(self, description: str) -> pci.PCIFunction:
        return list(self.functions(description).values())[-1]

    def functions(self, description: str
                  ) -> dict[pci.PCIAddress, pci.PCIFunction]:
        return pci.Sysfs(self.tree(description).root).functions()

    def test_function_has_what_the_kernel_shows(self) -> None:
        self.assertEqual(
            pci.PCIFunction(
                address=pci.PCIAddress(0, 0x65, 0, 1), class_code=0x030200,
                vendor=0x10de, device=0x2330, driver='nvidia',
                iommu_group=34, physfn=None,
                bridges=(pci.PCIAddress(0, 0x64, 1, 0),)),
            self.function("""
                0000:64:01.0 060400 8086:347a driver=pcieport group=33
                0000:65:00.1 030200 10de:2330 driver=nvidia group=34 \
below=0000:64:01.0"""))

    def test_function_without_driver_and_group_has_none(self) -> None:
        function = self.function('0000:65:00.0 030200 10de:2330')
        self.assertIsNone(function.driver)
        self.assertIsNone(function.iommu_group)

    def test_model_has_four_digits_each(self) -> None:
        self.assertEqual('001c:0001', self.function(
            '0000:65:00.0 030200 001c:0001').model)

    def test_functions_come_in_the_order_of_addresses(self) -> None:
        # https://bugs.launchpad.net/nova/+bug/1897528: 32-bit domains
        found = self.functions("""
            10002:01:00.0 010802 1179:0116
            10001:84:00.0 010802 1c5c:1959
            0000:84:00.0 030200 10de:2236
            0000:0a:00.0 030200 10de:2236""")
        self.assertEqual(
            ['0000:0a:00.0', '0000:84:00.0', '10001:84:00.0',
             '10002:01:00.0'], [str(address) for address in found])

    def test_bridges_are_named_from_the_root_down(self) -> None:
        function = self.function("""
            0000:00:01.0 060400 8086:1901
            0000:01:00.0 060400 8086:4fa1 below=0000:00:01.0
            0000:02:01.0 060400 8086:4fa4 below=0000:01:00.0
            0000:03:00.0 030000 8086:56a5 below=0000:02:01.0""")
        self.assertEqual(['0000:00:01.0', '0000:01:00.0', '0000:02:01.0'],
                         [str(bridge) for bridge in function.bridges])

    def test_virtual_function_names_the_one_that_serves_it(self) -> None:
        function = self.function("""
            0000:3b:00.0 030200 10de:20b5 numvfs=1
            0000:3b:00.4 030200 10de:20b5 physfn=0000:3b:00.0""")
        self.assertEqual(pci.PCIAddress(0, 0x3b, 0, 0), function.physfn)

    @ddt.data('vfio-pci', 'mlx5_vfio_pci', 'nvgrace_gpu_vfio_pci',
              'nvgrace-gpu-vfio-pci', 'pciback', 'xen-pciback', 'pci-stub')
    def test_stub_drivers_hold_a_function_for_a_guest(
            self, driver: str) -> None:
        self.assertTrue(self.function(
            f'0000:65:00.0 030200 10de:2330 driver={driver}').on_stub)

    @ddt.data('nvidia', 'gim', 'vfio-pci-override', 'pcieport', 'vfio')
    def test_other_drivers_do_not(self, driver: str) -> None:
        self.assertFalse(self.function(
            f'0000:65:00.0 030200 10de:2330 driver={driver}').on_stub)

    def test_function_without_driver_is_on_no_stub(self) -> None:
        self.assertFalse(self.function(
            '0000:65:00.0 030200 10de:2330').on_stub)

    def test_what_is_no_address_is_passed_over(self) -> None:
        tree = self.tree('0000:65:00.0 030200 10de:2330')
        (tree.root / 'bus/pci/devices/nonsense').mkdir()
        self.assertEqual(1, len(pci.Sysfs(tree.root).functions()))

    def test_machine_without_pci_has_no_functions(self) -> None:
        empty = self.useFixture(fixtures.TempDir()).path
        self.assertEqual({}, pci.Sysfs(empty).functions())

    def test_address_without_function_is_none(self) -> None:
        sysfs = pci.Sysfs(self.tree('0000:65:00.0 030200 10de:2330').root)
        self.assertIsNone(sysfs.function(pci.PCIAddress(0, 0x66, 0, 0)))


@ddt.ddt
class SickFunctionTest(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.address = pci.PCIAddress(0, 0x65, 0, 0)
        self.host = self.tree('0000:65:00.0 030200 10de:2330 numa=1')
        self.sysfs = pci.Sysfs(self.host.root)

    def attribute(self, name: str) -> pathlib.Path:
        return self.host.path(str(self.address)) / name

    def test_healthy_function_responds(self) -> None:
        self.assertTrue(self.sysfs.responds(self.address))

    def test_function_that_reads_all_ones_does_not_respond(self) -> None:
        self.host.set_dead(str(self.address))
        self.assertFalse(self.sysfs.responds(self.address))

    def test_only_the_first_four_bytes_tell(self) -> None:
        # Registers that do not exist read as ones in healthy functions too.
        self.attribute('config').write_bytes(b'\xde\x10\x30\x23' +
                                             b'\xff' * 60)
        self.assertTrue(self.sysfs.responds(self.address))

    def test_short_configuration_space_is_no_response(self) -> None:
        self.attribute('config').write_bytes(b'\xde')
        self.assertFalse(self.sysfs.responds(self.address))

    def test_function_off_the_bus_does_not_respond(self) -> None:
        self.host.remove(str(self.address))
        self.assertFalse(self.sysfs.responds(self.address))

    def test_garbled_class_is_a_fault_that_says_why(self) -> None:
        self.attribute('class').write_text('garbage')
        function = self.sysfs.functions()[self.address]
        self.assertIn('garbage', function.fault)
        self.assertEqual(pci.UNKNOWN_CLASS, function.class_code)

    # Found by tests/unit/fuzz.
    @ddt.unpack
    @ddt.data(('class', '0x1000000'), ('class', '-1'),
              ('vendor', '0x30000'), ('device', '0x10000'))
    def test_number_that_no_function_has_is_a_fault(
            self, name: str, text: str) -> None:
        self.attribute(name).write_text(text)
        function = self.sysfs.functions()[self.address]
        self.assertIn(f'{name} is {int(text, 0):#x}', function.fault)

    # Found by tests/unit/fuzz: it would have been taken for a whole card.
    def test_virtual_function_of_what_cannot_be_told_is_a_fault(self) -> None:
        self.attribute('physfn').symlink_to('../nonsense')
        self.assertIn('nonsense',
                      self.sysfs.functions()[self.address].fault)

    def test_unreadable_class_is_a_fault(self) -> None:
        # Root may read every file, so a folder has to do.
        self.attribute('class').unlink()
        self.attribute('class').mkdir()
        self.assertIn('class', self.sysfs.functions()[self.address].fault)

    def test_numa_node_that_is_garbled_is_not_guessed(self) -> None:
        self.attribute('numa_node').write_text('one')
        error = self.assertRaises(exceptions.Unreadable,
                                  self.sysfs.numa_node, self.address)
        self.assertIn('0000:65:00.0', str(error))
        self.assertIn('numa_node', str(error))

    def test_numa_node_minus_one_is_none(self) -> None:
        self.assertEqual(1, self.sysfs.numa_node(self.address))
        self.attribute('numa_node').write_text('-1\n')
        self.assertIsNone(self.sysfs.numa_node(self.address))

    def test_only_64_bit_memory_counts(self) -> None:
        # Not the 32-bit BAR and not the expansion ROM; see sysfs_tree.
        self.host.add('0000:66:00.0 030200 10de:2330 memory=80')
        self.assertEqual(
            (80 << 30) + (32 << 20),
            self.sysfs.memory_bytes(pci.PCIAddress(0, 0x66, 0, 0)))
        self.assertEqual(0, self.sysfs.memory_bytes(self.address))

    def test_attributes_that_are_missing_mean_no(self) -> None:
        self.assertEqual(0, self.sysfs.enabled_vfs(self.address))
        self.assertEqual(0, self.sysfs.live_mdevs(self.address))
        self.assertFalse(self.sysfs.boot_vga(self.address))
        self.assertFalse(self.sysfs.is_xen())

    def test_mediated_devices_are_the_folders_named_by_a_uuid(self) -> None:
        for name in ('mdev_supported_types', 'power',
                     '4b20d080-1b54-4048-85b3-a6a62d165c01'):
            self.attribute(name).mkdir()
        self.assertEqual(1, self.sysfs.live_mdevs(self.address))

    def test_other_hypervisor_than_xen_is_not_xen(self) -> None:
        self.host.add('hypervisor kvm')
        self.assertFalse(self.sysfs.is_xen())
