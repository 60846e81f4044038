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

import ddt
from lxml import etree

from nova_gpu_passthru.guest import slots
from tests.unit import base


def domain(os_type: str, devices: str = '') -> etree._Element:
    return etree.fromstring(
        f'<domain><os>{os_type}</os><devices>{devices}</devices></domain>')


@ddt.ddt
class MachineTest(base.TestCase):
    def slot(self, root: etree._Element) -> slots.GuestSlot | None:
        return slots.of_domain(root).take(root.find('devices'))

    # Names as "virsh domcapabilities" and image properties give them.
    @ddt.data("<type arch='x86_64' machine='q35'>hvm</type>",
              "<type arch='x86_64' machine='pc-q35-7.2'>hvm</type>",
              "<type arch='x86_64' machine='pc-q35-rhel9.4.0'>hvm</type>",
              "<type arch='aarch64' machine='virt'>hvm</type>",
              "<type arch='aarch64' machine='virt-7.2'>hvm</type>",
              "<type arch='aarch64'>hvm</type>")
    def test_pci_express_machines_have_root_ports(self, text: str) -> None:
        root = domain(text)
        self.assertEqual(slots.GuestSlot(1, 0), self.slot(root))
        self.assertEqual(1, len(root.findall(
            "devices/controller[@model='pcie-root-port']")))

    @ddt.data("<type arch='x86_64' machine='pc'>hvm</type>",
              "<type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type>",
              "<type arch='i686' machine='pc'>hvm</type>",
              "<type arch='x86_64'>hvm</type>", '<type>hvm</type>')
    def test_older_machines_have_one_bus(self, text: str) -> None:
        root = domain(text)
        self.assertEqual(slots.GuestSlot(0, 31), self.slot(root))
        self.assertEqual([], root.findall('devices/controller'))

    @ddt.data("<type arch='ppc64le' machine='pseries'>hvm</type>",
              "<type arch='ppc64le'>hvm</type>",
              "<type arch='x86_64' machine='microvm'>hvm</type>")
    def test_libvirt_chooses_for_the_others(self, text: str) -> None:
        root = domain(text)
        self.assertIsNone(self.slot(root))
        self.assertEqual([], root.findall('devices/controller'))

    def test_domain_without_os_is_an_older_machine(self) -> None:
        root = etree.fromstring('<domain><devices/></domain>')
        self.assertEqual(slots.GuestSlot(0, 31), self.slot(root))


class ConventionalBusTest(base.TestCase):
    def taken(self, devices: str, count: int) -> list[int]:
        root = domain("<type machine='pc'>hvm</type>", devices)
        free = slots.of_domain(root)
        taken = [free.take(root.find('devices')) for _ in range(count)]
        self.assertEqual({0}, {slot.bus for slot in taken if slot})
        return [slot.slot for slot in taken if slot]

    def test_slots_are_taken_from_the_top(self) -> None:
        self.assertEqual([31, 30, 29], self.taken('', 3))

    def test_slots_of_other_devices_are_left_out(self) -> None:
        self.assertEqual([30, 28], self.taken("""
            <disk><address type='pci' domain='0x0000' bus='0x00' slot='0x1f'
                           function='0x0'/></disk>
            <disk><address type='pci' bus='0x00' slot='0x1d'/></disk>
            <disk><address type='pci' bus='0x01' slot='0x1e'/></disk>
            <disk><address type='drive' bus='0' unit='28'/></disk>""", 2))
