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

"""Takes cards out of a running guest and gives the same ones back.

libvirt saves no guest that has host devices, so suspending one takes its
cards out of the running domain first. The definition keeps them: it says what
to give back, and that nobody else may have them.
"""

from collections.abc import Collection
import time
from typing import Any, Protocol

import libvirt
from lxml import etree

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import pci


class Guest(Protocol):
    """The part of nova.virt.libvirt.guest.Guest that is used here."""

    def get_xml_desc(self, dump_inactive: bool = False) -> str:
        """Describes the domain as it runs or as it is defined."""

    def attach_device(self, conf: Any, persistent: bool = False,
                      live: bool = False) -> None:
        """Attaches a device."""

    def detach_device(self, conf: Any, persistent: bool = False,
                      live: bool = False) -> None:
        """Starts to detach a device."""


class _Device:
    """A device as Guest takes it: something with to_xml()."""

    def __init__(self, element: etree._Element) -> None:
        self.address = domain.source_address(element)
        self._xml = str(etree.tostring(element, encoding='unicode'))
        guest_address = element.find('address')
        self.slot = (None if guest_address is None else tuple(
            guest_address.get(key) for key in ('domain', 'bus', 'slot')))

    def to_xml(self) -> str:
        return self._xml


def take_out(guest: Guest, addresses: Collection[pci.PCIAddress],
             timeout: float) -> None:
    """Takes functions out of a running guest; all of them or none.

    :param guest: a running guest
    :param addresses: the functions on the host
    :param timeout: seconds that the guest may take to let go of them
    :raises HotplugFailed: if it cannot or does not let go
    """
    devices = _devices(guest.get_xml_desc(), addresses)
    slots = [device.slot for device in devices]
    for device in devices:
        if slots.count(device.slot) > 1:
            # qemuIsMultiFunctionDevice() in libvirt's qemu_hotplug.c
            raise exceptions.HotplugFailed(
                f'the card with {device.address} has several functions in one '
                f'slot of the guest, and libvirt takes no such device out of '
                f'a running guest; stop the guest instead')
    try:
        for device in devices:
            try:
                guest.detach_device(device, live=True)
            except libvirt.libvirtError as error:
                raise exceptions.HotplugFailed(
                    f'libvirt does not detach {device.address}: {error}'
                ) from error
        left = _wait_until_gone(guest, addresses, timeout)
        if left:
            names = ', '.join(str(device.address) for device in left)
            raise exceptions.HotplugFailed(
                f'the guest has not let go of {names} within {timeout:.0f} s; '
                f'its system must support PCI hot-unplug and be running')
    except exceptions.HotplugFailed as error:
        try:
            give_back(guest, addresses)
        except exceptions.HotplugFailed as another:
            raise exceptions.HotplugFailed(
                f'{error}; then {another}') from another
        raise


def give_back(guest: Guest, addresses: Collection[pci.PCIAddress]) -> None:
    """Gives a running guest the functions that its definition has.

    :param guest: a running guest
    :param addresses: the functions on the host that it may have
    :raises HotplugFailed: if libvirt does not attach one
    """
    present = {device.address
               for device in _devices(guest.get_xml_desc(), addresses)}
    for device in _devices(guest.get_xml_desc(dump_inactive=True), addresses):
        if device.address in present:
            continue
        try:
            guest.attach_device(device, live=True)
        except libvirt.libvirtError as error:
            raise exceptions.HotplugFailed(
                f'libvirt does not attach {device.address}: {error}'
            ) from error


def _wait_until_gone(guest: Guest, addresses: Collection[pci.PCIAddress],
                     timeout: float) -> list[_Device]:
    deadline = time.monotonic() + timeout
    while True:
        left = _devices(guest.get_xml_desc(), addresses)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def _devices(xml: str, addresses: Collection[pci.PCIAddress]
             ) -> list[_Device]:
    root = etree.fromstring(xml)
    found = (_Device(element) for element in
             root.iterfind("devices/hostdev[@type='pci']"))
    return [device for device in found if device.address in addresses]
