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

import re
from typing import Any

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import guest_domain
from tests.functional import libvirt_errors
from tests.functional import node_device
from tests.functional import sysfs
from tests import sysfs_tree

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


def hand_made(name: str, uuid: str, addresses: list[str]) -> str:
    """The XML of a domain that some other tool than Nova defines."""
    return _HAND_MADE.format(name=name, uuid=uuid, hostdevs=''.join(
        _HOSTDEV.format(*re.split('[:.]', a)) for a in addresses))


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
        self._node_devices: dict[str, node_device.NodeDevice] = {}
        self.original_drivers = {
            address: sysfs.driver(tree, address)
            for address in sysfs.addresses(tree)}

    @property
    def domains(self) -> list[guest_domain.Domain]:
        return list(self._vms.values())

    @property
    def detached(self) -> list[str]:
        """Every function for which a detach was asked, in order."""
        return [address for call, address in self.calls if call == 'detach']

    def device(self, address: str) -> node_device.NodeDevice:
        return self._node_devices.setdefault(
            address, node_device.NodeDevice(self, address))

    def user_of(self, address: str) -> guest_domain.Domain | None:
        """The running domain that has a function."""
        return next((domain for domain in self.domains
                     if address in domain.functions), None)

    def nodeDeviceLookupByName(self, name: str) -> Any:
        address = re.sub('_([0-7])$', r'.\1',
                         name.removeprefix('pci_')).replace('_', ':')
        if self.sysfs.path(address).exists():
            return self.device(address)
        return super().nodeDeviceLookupByName(name)

    def listAllDomains(self, flags: int = 0) -> list[guest_domain.Domain]:
        return super().listAllDomains(
            flags or fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE |
            fakelibvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE)

    def defineXML(self, xml: str) -> guest_domain.Domain:
        tree = guest_domain.parsed(xml)
        name, uuid = tree.findtext('name'), tree.findtext('uuid')
        existing = self._vms.get(name)
        if existing is None:
            existing = self._vms[name] = guest_domain.Domain(self, xml)
        elif existing.UUIDString() != uuid:
            raise libvirt_errors.error(
                f'operation failed: domain {name!r} already exists '
                f'with uuid {existing.UUIDString()}',
                libvirt_errors.VIR_ERR_OPERATION_FAILED)
        else:
            existing.redefine(xml)
        self._emit_lifecycle(existing, fakelibvirt.VIR_DOMAIN_EVENT_DEFINED,
                             0)
        return existing

    def createXML(self, xml: str, flags: int) -> guest_domain.Domain:
        domain = guest_domain.Domain(self, xml, transient=True)
        self._vms[domain.name()] = domain
        try:
            domain.createWithFlags(flags)
        except fakelibvirt.libvirtError:
            del self._vms[domain.name()]
            raise
        return domain

    def check_start(self, domain: guest_domain.Domain,
                    tree: etree._Element) -> None:
        """Refuses a domain that cannot be started."""
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.check_devices(domain, tree)

    def check_devices(self, domain: guest_domain.Domain,
                      tree: etree._Element) -> None:
        """Refuses host devices that cannot be passed.

        :raises libvirtError: as libvirt does, in its order
        """
        functions = guest_domain.host_functions(tree)
        for address in functions:
            if not self.sysfs.path(address).exists():
                raise libvirt_errors.error(
                    f'Device {address} not found: could not access '
                    f'/sys/bus/pci/devices/{address}/config',
                    fakelibvirt.VIR_ERR_INTERNAL_ERROR)
            for other in (address, *sysfs.group_mates(self.sysfs, address)):
                user = self.user_of(other)
                if user is not None and user is not domain:
                    raise libvirt_errors.invalid(
                        f'PCI device {other} is in use by driver '
                        f'QEMU, domain {user.name()}')
        managed = tree.xpath("devices/hostdev[@type='pci']/@managed='yes'")
        for address in functions:
            if managed:
                self.sysfs.set_driver(address, 'vfio-pci')
            elif sysfs.driver(self.sysfs, address) != 'vfio-pci':
                raise libvirt_errors.invalid(
                    f'Unmanaged PCI device {address} must be '
                    f'manually detached from the host')
        self._check_viable(functions)

    def _check_viable(self, functions: list[str]) -> None:
        for address in functions:
            for mate in sysfs.group_mates(self.sysfs, address):
                if sysfs.driver(self.sysfs, mate) not in (
                        'vfio-pci', 'pcieport', None):
                    group = sysfs.group(self.sysfs, address)
                    raise libvirt_errors.error(
                        f'internal error: qemu unexpectedly closed the '
                        f'monitor: vfio {address}: group {group} is not '
                        f'viable\nPlease ensure all devices within the '
                        f'iommu_group are bound to their vfio bus driver.',
                        fakelibvirt.VIR_ERR_INTERNAL_ERROR)
