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

"""A libvirt for Nova's fixtures that passes the devices of a SysfsTree.

Nova's fake libvirt gives back XML that it makes from the parts of a domain
that it knows, and starts every domain. This one keeps a domain as it was
defined, and refuses what libvirt and QEMU refuse about host devices. Its
texts and codes are those of virHostdevPreparePCIDevices (hostdev.c) and
qemuMigrationSrcIsAllowed (qemu_migration.c).
"""

import copy
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from tests import sysfs_tree
from tests.functional import sysfs

# What Nova's fake does not name.
VIR_ERR_OPERATION_FAILED = 9
VIR_ERR_DEVICE_MISSING = 99

# A domain as an operator writes it, with another tool than Nova.
_HAND_MADE = """
<domain type='kvm'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='KiB'>1048576</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>{hostdevs}</devices>
</domain>
"""
_HOSTDEV = ("<hostdev mode='subsystem' type='pci' managed='yes'><source>"
            "<address domain='0x{}' bus='0x{}' slot='0x{}' function='0x{}'/>"
            "</source></hostdev>")


def error(text: str, code: int) -> fakelibvirt.libvirtError:
    """An error as libvirt raises it."""
    return fakelibvirt.make_libvirtError(
        fakelibvirt.libvirtError, text, error_code=code, error_message=text,
        error_domain=fakelibvirt.VIR_FROM_QEMU)


def invalid(text: str) -> fakelibvirt.libvirtError:
    return error(f'Requested operation is not valid: {text}',
                 fakelibvirt.VIR_ERR_OPERATION_INVALID)


def hand_made(name: str, uuid: str, addresses: list[str]) -> str:
    """The XML of a domain that some other tool than Nova defines."""
    return _HAND_MADE.format(name=name, uuid=uuid, hostdevs=''.join(
        _HOSTDEV.format(*re.split('[:.]', a)) for a in addresses))


def host_functions(tree: etree._Element) -> list[str]:
    """The host's functions that a domain names, in the order of its XML."""
    return [
        '{:04x}:{:02x}:{:02x}.{:x}'.format(*(
            int(a.get(name), 16)
            for name in ('domain', 'bus', 'slot', 'function')))
        for a in tree.iterfind("devices/hostdev[@type='pci']/source/address")]


class NodeDevice:
    """A PCI function of the host.

    :ivar on_detach: what a detach does; see the functions below
    """

    def __init__(self, connection: 'Connection', address: str) -> None:
        self._connection = connection
        self.address = address
        self.on_detach: Callable[[NodeDevice], int] = detaches

    def detachFlags(self, driver: str | None, flags: int = 0) -> int:
        self._connection.calls.append(('detach', self.address))
        user = self._connection.user_of(self.address)
        if user is not None:
            raise invalid(f'PCI device {self.address} is in use by driver '
                          f'QEMU, domain {user.name()}')
        return self.on_detach(self)

    def dettach(self) -> int:
        return self.detachFlags(None)

    def reAttach(self) -> int:
        self._connection.calls.append(('reattach', self.address))
        original = self._connection.original_drivers[self.address]
        self.bind(original)
        return 0

    def bind(self, driver: str | None) -> None:
        self._connection.sysfs.set_driver(self.address, driver)

    def name(self) -> str:
        return 'pci_' + re.sub('[:.]', '_', self.address)


def detaches(device: NodeDevice) -> int:
    """Binds the function to vfio-pci, as libvirt does."""
    device.bind('vfio-pci')
    return 0


def lies(device: NodeDevice) -> int:
    """Says that the function is detached, and changes nothing."""
    return 0


def fails(text: str) -> Callable[[NodeDevice], int]:
    """Makes a behaviour that raises an error."""
    def failing(device: NodeDevice) -> int:
        raise error(f'internal error: {text}',
                    fakelibvirt.VIR_ERR_INTERNAL_ERROR)
    return failing


class Hangs:
    """Does not return from a detach until it is released."""

    def __init__(self) -> None:
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def __call__(self, device: NodeDevice) -> int:
        self._released.wait()
        return detaches(device)


class Domain(fakelibvirt.Domain):
    """A domain that has a definition and, while it runs, a live one.

    :ivar lets_go: whether the running guest gives up a device
    :ivar save_errors: raised by the next saves, one each
    """

    def __init__(self, connection: 'Connection', xml: str,
                 running: bool = False, transient: bool = False) -> None:
        super().__init__(connection, xml, transient=transient)
        self._definition = _parsed(xml)
        self._live: etree._Element | None = None
        self._saved: etree._Element | None = None
        self.lets_go = True
        self.save_errors: list[Exception] = []
        if running:
            self.create()

    def redefine(self, xml: str) -> None:
        """Changes what the next start uses."""
        self._def = self._parse_definition(xml)
        self._definition = _parsed(xml)
        self._transient = False

    @property
    def functions(self) -> list[str]:
        """The host's functions that the running guest has."""
        return [] if self._live is None else host_functions(self._live)

    def createWithFlags(self, flags: int) -> None:
        self._exists()
        if self._live is not None:
            raise invalid('domain is already running')
        # From a saved image a guest continues as it was when it was saved.
        tree = self._definition if self._saved is None else self._saved
        self._connection.check_start(self, tree)
        self._live, self._saved = copy.deepcopy(tree), None
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
            raise invalid('domain is not running')
        self._live = None
        super().destroy()

    def shutdown(self) -> None:
        self.destroy()

    def reset(self, flags: int) -> None:
        if self._live is None:
            raise invalid('domain is not running')

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
            raise invalid(
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

    def detachDeviceFlags(self, xml: str, flags: int = 0) -> None:
        wanted = _identity(etree.fromstring(xml))
        for tree in self._affected(flags):
            found = [device for device in tree.find('devices')
                     if _identity(device) == wanted]
            if not found:
                raise error('device not found: no such device',
                            VIR_ERR_DEVICE_MISSING)
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
            raise invalid('domain is not running')
        if self._live is not None and (live or not config):
            yield self._live
        if config or self._live is None:
            yield self._definition

    def _exists(self) -> None:
        if self not in self._connection._vms.values():
            raise error(f'Domain not found: no domain with matching uuid '
                        f'{self.UUIDString()}',
                        fakelibvirt.VIR_ERR_NO_DOMAIN)


class Connection(fakelibvirt.Connection):
    """A host whose PCI devices are those of a SysfsTree.

    :ivar calls: what was asked of node devices, in order: ('detach' or
        'reattach', address)
    :ivar original_drivers: the driver of each function at first
    :ivar start_errors: raised by the next starts, one each
    """

    def __init__(self, tree: sysfs_tree.SysfsTree, **kwargs: Any) -> None:
        super().__init__('qemu:///system', **kwargs)
        self.sysfs = tree
        self.calls: list[tuple[str, str]] = []
        self.start_errors: list[Exception] = []
        self._node_devices: dict[str, NodeDevice] = {}
        self.original_drivers = {
            address: sysfs.driver(tree, address)
            for address in sysfs.addresses(tree)}

    @property
    def domains(self) -> list[Domain]:
        return list(self._vms.values())

    @property
    def detached(self) -> list[str]:
        """Every function for which a detach was asked, in order."""
        return [address for call, address in self.calls if call == 'detach']

    def node_device(self, address: str) -> NodeDevice:
        return self._node_devices.setdefault(address,
                                             NodeDevice(self, address))

    def user_of(self, address: str) -> Domain | None:
        """The running domain that has a function."""
        return next((domain for domain in self.domains
                     if address in domain.functions), None)

    def nodeDeviceLookupByName(self, name: str) -> Any:
        address = re.sub('_([0-7])$', r'.\1',
                         name.removeprefix('pci_')).replace('_', ':')
        if self.sysfs.path(address).exists():
            return self.node_device(address)
        return super().nodeDeviceLookupByName(name)

    def listAllDomains(self, flags: int = 0) -> list[Domain]:
        return super().listAllDomains(
            flags or fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE |
            fakelibvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE)

    def defineXML(self, xml: str) -> Domain:
        tree = _parsed(xml)
        name, uuid = tree.findtext('name'), tree.findtext('uuid')
        existing = self._vms.get(name)
        if existing is None:
            existing = self._vms[name] = Domain(self, xml)
        elif existing.UUIDString() != uuid:
            raise error(f'operation failed: domain {name!r} already exists '
                        f'with uuid {existing.UUIDString()}',
                        VIR_ERR_OPERATION_FAILED)
        else:
            existing.redefine(xml)
        self._emit_lifecycle(existing, fakelibvirt.VIR_DOMAIN_EVENT_DEFINED,
                             0)
        return existing

    def createXML(self, xml: str, flags: int) -> Domain:
        domain = Domain(self, xml, transient=True)
        self._vms[domain.name()] = domain
        try:
            domain.createWithFlags(flags)
        except fakelibvirt.libvirtError:
            del self._vms[domain.name()]
            raise
        return domain

    def check_start(self, domain: Domain, tree: etree._Element) -> None:
        """Refuses a domain that cannot be started."""
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.check_devices(domain, tree)

    def check_devices(self, domain: Domain, tree: etree._Element) -> None:
        """Refuses host devices that cannot be passed.

        :raises libvirtError: as libvirt does, in its order
        """
        functions = host_functions(tree)
        for address in functions:
            if not self.sysfs.path(address).exists():
                raise error(f'Device {address} not found: could not access '
                            f'/sys/bus/pci/devices/{address}/config',
                            fakelibvirt.VIR_ERR_INTERNAL_ERROR)
            for other in (address, *sysfs.group_mates(self.sysfs, address)):
                user = self.user_of(other)
                if user is not None and user is not domain:
                    raise invalid(f'PCI device {other} is in use by driver '
                                  f'QEMU, domain {user.name()}')
        managed = tree.xpath("devices/hostdev[@type='pci']/@managed='yes'")
        for address in functions:
            if managed:
                self.sysfs.set_driver(address, 'vfio-pci')
            elif sysfs.driver(self.sysfs, address) != 'vfio-pci':
                raise invalid(f'Unmanaged PCI device {address} must be '
                              f'manually detached from the host')
        self._check_viable(functions)

    def _check_viable(self, functions: list[str]) -> None:
        for address in functions:
            for mate in sysfs.group_mates(self.sysfs, address):
                if sysfs.driver(self.sysfs, mate) not in (
                        'vfio-pci', 'pcieport', None):
                    group = sysfs.group(self.sysfs, address)
                    raise error(
                        f'internal error: qemu unexpectedly closed the '
                        f'monitor: vfio {address}: group {group} is not '
                        f'viable\nPlease ensure all devices within the '
                        f'iommu_group are bound to their vfio bus driver.',
                        fakelibvirt.VIR_ERR_INTERNAL_ERROR)


def _parsed(xml: str) -> etree._Element:
    """Reads a domain as libvirt does, and refuses what libvirt refuses."""
    tree = etree.fromstring(xml, etree.XMLParser(remove_blank_text=True))
    taken = set()
    for address in tree.iterfind("devices/*/address[@type='pci']"):
        place = tuple(int(address.get(name, '0'), 16)
                      for name in ('domain', 'bus', 'slot', 'function'))
        if place in taken:
            raise error('XML error: Attempted double use of PCI Address '
                        '{:04x}:{:02x}:{:02x}.{:x}'.format(*place),
                        fakelibvirt.VIR_ERR_XML_ERROR)
        taken.add(place)
    return tree


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
        raise error(
            'operation failed: cannot hot unplug multifunction PCI device: '
            '{}:{}:{}.{}'.format(*(
                source.get(name).removeprefix('0x')
                for name in ('domain', 'bus', 'slot', 'function'))),
            VIR_ERR_OPERATION_FAILED)


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
