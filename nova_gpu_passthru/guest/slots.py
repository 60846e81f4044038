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

A guest's kernel learns from ACPI on which NUMA node a root bus is, and the
bus of the machine itself is on none. A further root bus can be told its node:
pcie-expander-bus, used for q35 only. On virt it was not tried, and what pc has
in its place (pci-expander-bus) holds a conventional bridge.
"""

import collections
from collections.abc import Collection, Iterable
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
    def take(self, devices: etree._Element,
             cell: int | None = None) -> GuestSlot | None:
        """Takes the next slot.

        :param devices: the domain's devices, to which what leads to the slot
            is added
        :param cell: the guest's NUMA node that the slot should be on, None
            for any
        :returns: the slot, None where libvirt is to choose
        """


@dataclasses.dataclass
class _RootBus:
    """A root bus of one NUMA node; index is that of libvirt's controller."""

    index: int
    ports: int = 0


class _RootPorts:
    """A root port of its own for each device.

    libvirt fills gaps in the indexes with ports of its own (seen with
    libvirt 9.0), so ours are the lowest free ones.

    :param cells: the guest's NUMA node of each device that will be on a root
        bus of that node
    """

    def __init__(self, root: etree._Element,
                 cells: Iterable[int] = ()) -> None:
        controllers = root.iterfind("devices/controller[@type='pci']")
        self._used = {int(c.get('index')) for c in controllers
                      if c.get('index') is not None}
        self._bus_numbers = _bus_numbers(cells)
        self._buses: dict[int, _RootBus] = {}

    def take(self, devices: etree._Element,
             cell: int | None = None) -> GuestSlot:
        bus = (self._bus_of(devices, cell) if cell in self._bus_numbers
               else None)
        index, port = self._controller(devices, 'pcie-root-port')
        if bus is not None:
            # Without it, libvirt puts the port on the machine's own bus.
            etree.SubElement(port, 'address', type='pci', domain='0x0000',
                             bus=f'0x{bus.index:02x}',
                             slot=f'0x{bus.ports:02x}', function='0x0')
            bus.ports += 1
        return GuestSlot(bus=index, slot=0)

    def _bus_of(self, devices: etree._Element, cell: int) -> _RootBus:
        """Finds the root bus of a NUMA node, and makes it for the first."""
        if cell not in self._buses:
            index, controller = self._controller(devices,
                                                 'pcie-expander-bus')
            target = etree.SubElement(controller, 'target',
                                      busNr=str(self._bus_numbers[cell]))
            etree.SubElement(target, 'node').text = str(cell)
            self._buses[cell] = _RootBus(index)
        return self._buses[cell]

    def _controller(self, devices: etree._Element,
                    model: str) -> tuple[int, etree._Element]:
        index = next(i for i in range(1, 256) if i not in self._used)
        self._used.add(index)
        return index, etree.SubElement(devices, 'controller', type='pci',
                                       index=str(index), model=model)


def _bus_numbers(cells: Iterable[int]) -> dict[int, int]:
    """Numbers the root buses in the order of NUMA nodes, up to the last.

    Each needs a number for itself and one for each port, and the machine's
    own bus takes those below. What libvirt would choose has room for one port
    (qemuDomainAddressFindNewBusNr() in its qemu_domain_address.c).

    :param cells: the NUMA node of each port
    """
    numbers = {}
    number = 256
    for cell, ports in sorted(collections.Counter(cells).items(),
                              reverse=True):
        number -= 1 + ports
        numbers[cell] = number
    return numbers


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

    def take(self, devices: etree._Element,
             cell: int | None = None) -> GuestSlot:
        if not self._free:
            raise exceptions.UnsupportedGuest(
                'The PCI bus of the guest has no slot left for its GPUs; use '
                'an image with hw_machine_type=q35.')
        return GuestSlot(bus=0, slot=self._free.pop())


class _LibvirtChooses:
    """For machines whose topology is not known here, such as pseries."""

    def take(self, devices: etree._Element, cell: int | None = None) -> None:
        return None


def of_domain(root: etree._Element,
              cells: Collection[int] = ()) -> FreeSlots:
    """Finds the free slots of a domain by its machine type.

    :param root: the domain; a machine type that is not given is libvirt's
        default for the architecture
    :param cells: the guest's NUMA node of each slot that will be taken on one
    """
    os_type = root.find('os/type')
    machine = os_type.get('machine', '') if os_type is not None else ''
    arch = os_type.get('arch', 'x86_64') if os_type is not None else 'x86_64'
    if 'q35' in machine:
        return _RootPorts(root, cells)
    if machine.startswith('virt') or (
            not machine and arch in ('aarch64', 'riscv64')):
        return _RootPorts(root)
    if arch in ('i686', 'x86_64') and (
            not machine or machine.startswith('pc')):
        return _ConventionalBus(root)
    return _LibvirtChooses()
