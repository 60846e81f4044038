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

"""Finds places for cards on a guest's PCI topology.

PCI Express machines (q35, virt) have one slot below each root port
(https://libvirt.org/pci-hotplug.html, docs/pcie.txt of QEMU), so every
device gets a port of its own. The older pc has one conventional bus.
"""

import dataclasses
from typing import Protocol

from lxml import etree

from nova_gpu_passthru import exceptions


@dataclasses.dataclass(frozen=True)
class GuestSlot:
    """A slot of the guest; the bus is the index of libvirt's controller."""

    bus: int
    slot: int


class FreeSlots(Protocol):
    def take(self, devices: etree._Element) -> GuestSlot | None:
        """Takes the next slot.

        :param devices: the domain's devices, to which what leads to the slot
            is added
        :returns: the slot, None where libvirt is to choose
        """


class _RootPorts:
    """A root port of its own for each device.

    libvirt fills gaps in the indexes with ports of its own (seen with
    libvirt 9.0), so ours are the lowest free ones.
    """

    def __init__(self, root: etree._Element) -> None:
        controllers = root.iterfind("devices/controller[@type='pci']")
        self._used = {int(c.get('index')) for c in controllers
                      if c.get('index') is not None}

    def take(self, devices: etree._Element) -> GuestSlot:
        index = next(i for i in range(1, 256) if i not in self._used)
        self._used.add(index)
        etree.SubElement(devices, 'controller', type='pci', index=str(index),
                         model='pcie-root-port')
        return GuestSlot(bus=index, slot=0)


class _ConventionalBus:
    """Slots of bus 0, from the top.

    libvirt gives out slots to the other devices from the bottom: they keep
    the places that they have without cards.
    """

    def __init__(self, root: etree._Element) -> None:
        taken = {int(address.get('slot', '0'), 0) for address in root.iterfind(
            "devices/*/address[@type='pci']")
            if int(address.get('bus', '0'), 0) == 0}
        # Slots 0 to 2 have the chipset and the display.
        self._free = [slot for slot in range(3, 32) if slot not in taken]

    def take(self, devices: etree._Element) -> GuestSlot:
        if not self._free:
            raise exceptions.UnsupportedGuest(
                'The PCI bus of the guest has no slot left for its GPUs; use '
                'an image with hw_machine_type=q35.')
        return GuestSlot(bus=0, slot=self._free.pop())


class _LibvirtChooses:
    """For machines whose topology is not known here, such as pseries."""

    def take(self, devices: etree._Element) -> None:
        return None


def of_domain(root: etree._Element) -> FreeSlots:
    """Finds the free slots of a domain by its machine type.

    :param root: the domain; a machine type that is not given is libvirt's
        default for the architecture
    """
    os_type = root.find('os/type')
    machine = os_type.get('machine', '') if os_type is not None else ''
    arch = os_type.get('arch', 'x86_64') if os_type is not None else 'x86_64'
    if 'q35' in machine or machine.startswith('virt') or (
            not machine and arch in ('aarch64', 'riscv64')):
        return _RootPorts(root)
    if arch in ('i686', 'x86_64') and (
            not machine or machine.startswith('pc')):
        return _ConventionalBus(root)
    return _LibvirtChooses()
