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


"""A domain that libvirt keeps as it was defined.

Nova's fake gives back XML that it makes from the parts that it knows.
"""

from collections.abc import Iterator
import copy
from typing import Any

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import libvirt_errors


def host_functions(tree: etree._Element) -> list[str]:
    """The host's functions that a domain names, in the order of its XML."""
    return [
        '{:04x}:{:02x}:{:02x}.{:x}'.format(*(
            int(a.get(name), 16)
            for name in ('domain', 'bus', 'slot', 'function')))
        for a in tree.iterfind("devices/hostdev[@type='pci']/source/address")]


class Domain(fakelibvirt.Domain):
    """A domain that has a definition and, while it runs, a live one.

    :ivar lets_go: whether the running guest gives up a device
    :ivar save_errors: raised by the next saves, one each
    """

    def __init__(self, connection: Any, xml: str,
                 running: bool = False, transient: bool = False) -> None:
        super().__init__(connection, xml, transient=transient)
        self._definition = parsed(xml)
        self._live: etree._Element | None = None
        self._saved: etree._Element | None = None
        self.lets_go = True
        self.save_errors: list[Exception] = []
        if running:
            self.create()

    def redefine(self, xml: str) -> None:
        """Changes what the next start uses."""
        self._def = self._parse_definition(xml)
        self._definition = parsed(xml)
        self._transient = False

    @property
    def functions(self) -> list[str]:
        """The host's functions that the running guest has."""
        return [] if self._live is None else host_functions(self._live)

    @property
    def all_functions(self) -> list[str]:
        """The host's functions that it has or is defined with."""
        defined = host_functions(self._definition)
        return defined + [f for f in self.functions if f not in defined]

    def createWithFlags(self, flags: int) -> None:
        self._exists()
        if self._live is not None:
            raise libvirt_errors.invalid('domain is already running')
        # From a saved image a guest continues as it was when it was saved.
        tree = self._definition if self._saved is None else self._saved
        self._connection.check_start(self, tree)
        self._live, self._saved = copy.deepcopy(tree), None
        _name_devices(self._live)
        self._id = self._connection._id_counter
        super().createWithFlags(flags)

    def ID(self) -> int:
        return self._id if self._live is not None else -1

    def isActive(self) -> int:
        return int(self._live is not None)

    def isPersistent(self) -> bool:
        return not self._transient

    def destroy(self) -> None:
        if self._live is None:
            raise libvirt_errors.invalid('domain is not running')
        self._live = None
        super().destroy()

    def shutdown(self) -> None:
        self.destroy()

    def reset(self, flags: int) -> None:
        if self._live is None:
            raise libvirt_errors.invalid('domain is not running')

    def undefine(self) -> None:
        self._exists()
        if self._live is None:
            super().undefine()
        else:
            self._transient = True

    def undefineFlags(self, flags: int) -> None:
        self.managedSaveRemove(0)
        self.undefine()

    def managedSave(self, flags: int) -> None:
        if self.save_errors:
            raise self.save_errors.pop(0)
        if self.functions:
            # QEMU tells why since 6.0; what it says of vfio differs.
            raise libvirt_errors.invalid(
                f'cannot migrate domain: {self.functions[0]}: VFIO migration '
                f'is not supported in kernel')
        self._saved, self._live = self._live, None
        self._state = fakelibvirt.VIR_DOMAIN_SHUTOFF
        super().managedSave(flags)

    def managedSaveRemove(self, flags: int) -> None:
        self._saved = None
        super().managedSaveRemove(flags)

    def XMLDesc(self, flags: int) -> str:
        self._exists()
        tree = self._definition
        if self._live is not None and not (
                flags & fakelibvirt.VIR_DOMAIN_XML_INACTIVE):
            tree = self._live
        return str(etree.tostring(tree, encoding='unicode'))

    def attachDeviceFlags(self, xml: str, flags: int = 0) -> None:
        device = etree.fromstring(xml)
        for tree in self._affected(flags):
            if tree is self._live:
                alone = etree.Element('domain')
                etree.SubElement(alone, 'devices').append(
                    copy.deepcopy(device))
                self._connection.check_devices(self, alone)
            tree.find('devices').append(copy.deepcopy(device))
            if tree is self._live:
                _name_devices(tree)

    def detachDeviceFlags(self, xml: str, flags: int = 0) -> None:
        wanted = _identity(etree.fromstring(xml))
        for tree in self._affected(flags):
            found = [device for device in tree.find('devices')
                     if _identity(device) == wanted]
            if not found:
                raise libvirt_errors.error(
                    'device not found: no such device',
                    libvirt_errors.VIR_ERR_DEVICE_MISSING)
            if tree is self._live:
                _check_unplug(tree, found[0])
            if tree is not self._live or self.lets_go:
                tree.find('devices').remove(found[0])

    def setMetadata(self, metadata_type: int, metadata: str, key: str,
                    uri: str, flags: int = 0) -> None:
        for tree in self._affected(flags):
            parent = tree.find('metadata')
            if parent is None:
                parent = etree.SubElement(tree, 'metadata')
            for element in parent.findall(f'{{{uri}}}*'):
                parent.remove(element)
            parent.append(etree.fromstring(metadata))

    def _affected(self, flags: int) -> Iterator[Any]:
        """The descriptions that a change concerns."""
        live = flags & fakelibvirt.VIR_DOMAIN_AFFECT_LIVE
        config = flags & fakelibvirt.VIR_DOMAIN_AFFECT_CONFIG
        if live and self._live is None:
            raise libvirt_errors.invalid('domain is not running')
        if self._live is not None and (live or not config):
            yield self._live
        if config or self._live is None:
            yield self._definition

    def _exists(self) -> None:
        if self not in self._connection._vms.values():
            raise libvirt_errors.error(
                f'Domain not found: no domain with matching uuid '
                f'{self.UUIDString()}',
                fakelibvirt.VIR_ERR_NO_DOMAIN)


def parsed(xml: str) -> etree._Element:
    """Reads a domain as libvirt does, and refuses what libvirt refuses."""
    tree = etree.fromstring(xml, etree.XMLParser(remove_blank_text=True))
    taken = set()
    for address in tree.iterfind("devices/*/address[@type='pci']"):
        place = tuple(int(address.get(name, '0'), 16)
                      for name in ('domain', 'bus', 'slot', 'function'))
        if place in taken:
            raise libvirt_errors.error(
                'XML error: Attempted double use of PCI Address '
                '{:04x}:{:02x}:{:02x}.{:x}'.format(*place),
                fakelibvirt.VIR_ERR_XML_ERROR)
        taken.add(place)
    return tree


def _name_devices(tree: etree._Element) -> None:
    """Gives the devices of a running guest the names that libvirt gives."""
    for tag in ('disk', 'interface', 'hostdev'):
        devices = tree.findall(f'devices/{tag}')
        taken = {alias.get('name') for alias in
                 tree.iterfind(f'devices/{tag}/alias')}
        names = (f'{tag}{number}' for number in range(2 * len(devices)))
        free = (name for name in names if name not in taken)
        for device in devices:
            if device.find('alias') is None:
                etree.SubElement(device, 'alias', name=next(free))


def _check_unplug(tree: etree._Element, device: etree._Element) -> None:
    """Refuses what qemuDomainDetachPrepHostdev (qemu_hotplug.c) refuses."""
    def slot(element: etree._Element) -> list[str | None]:
        address = element.find("address[@type='pci']")
        return [] if address is None else [
            address.get(name) for name in ('domain', 'bus', 'slot')]

    others = [other for other in tree.find('devices')
              if other is not device and slot(device) and
              slot(other) == slot(device)]
    if others:
        source = device.find('source/address')
        raise libvirt_errors.error(
            'operation failed: cannot hot unplug multifunction PCI device: '
            '{}:{}:{}.{}'.format(*(
                source.get(name).removeprefix('0x')
                for name in ('domain', 'bus', 'slot', 'function'))),
            libvirt_errors.VIR_ERR_OPERATION_FAILED)


def _identity(device: etree._Element) -> tuple[str, ...]:
    """What libvirt finds a device by."""
    if device.tag == 'hostdev':
        source = device.find('source/address')
        return device.tag, *sorted(source.attrib.values())
    if device.tag == 'disk':
        return device.tag, device.find('target').get('dev')
    if device.tag == 'interface':
        return device.tag, device.find('mac').get('address')
    return device.tag, str(etree.tostring(device))
