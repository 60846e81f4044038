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

"""What stands for libvirt and for the guests of a host."""

from collections.abc import Callable, Iterator
import threading

import libvirt

from nova_gpu_passthru.host import hypervisor
from nova_gpu_passthru.host import pci
from tests import sysfs_tree

STUB = 'vfio-pci'


def libvirt_error(message: str,
                  code: int = libvirt.VIR_ERR_INTERNAL_ERROR
                  ) -> libvirt.libvirtError:
    """Makes what libvirt-python raises, with what virGetLastError() told."""
    error = libvirt.libvirtError(message)
    error.err = (code, libvirt.VIR_FROM_NONE, message,
                 libvirt.VIR_ERR_ERROR, None, None, None, -1, -1)
    return error


def domain_xml(uuid: str, *addresses: str, metadata: str = '',
               managed: str = 'no') -> str:
    """The XML of a domain that names functions of the host."""
    hostdevs = ''
    for text in addresses:
        a = pci.PCIAddress.parse(text)
        hostdevs += f"""
    <hostdev mode='subsystem' type='pci' managed='{managed}'>
      <source>
        <address domain='0x{a.domain:04x}' bus='0x{a.bus:02x}'
                 slot='0x{a.slot:02x}' function='0x{a.function:x}'/>
      </source>
    </hostdev>"""
    return f"""<domain type='kvm'>
  <name>instance-{uuid}</name>
  <uuid>{uuid}</uuid>
  <metadata>{metadata}</metadata>
  <devices>{hostdevs}
  </devices>
</domain>"""


class NodeDevice:
    """A virNodeDevice that moves a function of a SysfsTree."""

    def __init__(self, hypervisor: 'Hypervisor', address: str) -> None:
        self._hypervisor = hypervisor
        self._address = address

    def detachFlags(self, driver: str | None, flags: int) -> int:
        hypervisor, address = self._hypervisor, self._address
        hypervisor.detached.append(address)
        if address in hypervisor.blocked:
            hypervisor.blocked[address].wait()
        if address in hypervisor.refused:
            raise libvirt_error(f'failed to unbind {address}')
        if address in hypervisor.broken:
            raise RuntimeError('the connection is closed')
        if address not in hypervisor.lied_about:
            hypervisor.host_drivers[address] = hypervisor.driver(address)
            hypervisor.tree.set_driver(address, driver or STUB)
        return 0

    def reAttach(self) -> int:
        hypervisor, address = self._hypervisor, self._address
        hypervisor.reattached.append(address)
        if address not in hypervisor.host_drivers:
            raise libvirt_error(f'{address} was not detached')
        hypervisor.tree.set_driver(address,
                                   hypervisor.host_drivers.pop(address))
        return 0


class Hypervisor:
    """A libvirt whose node devices are the functions of a SysfsTree.

    :ivar defined: XML of the domains as they are defined, by uuid
    :ivar running: XML of the domains as they run, by uuid
    :ivar failure: what listing the domains raises
    :ivar refused: functions that libvirt cannot detach
    :ivar broken: functions at which Python raises
    :ivar lied_about: functions that it only says are detached
    :ivar blocked: functions whose driver lets go when the event is set
    :ivar detached: functions that it was told to detach, in order
    :ivar reattached: functions that it was told to give back, in order
    :ivar metadata: elements that were written into domains, by uuid
    :ivar on_metadata: called after such a writing
    """

    def __init__(self, tree: sysfs_tree.SysfsTree) -> None:
        self.tree = tree
        self.defined: dict[str, str] = {}
        self.running: dict[str, str] = {}
        self.failure: Exception | None = None
        self.refused: set[str] = set()
        self.broken: set[str] = set()
        self.lied_about: set[str] = set()
        self.blocked: dict[str, threading.Event] = {}
        self.detached: list[str] = []
        self.reattached: list[str] = []
        self.host_drivers: dict[str, str | None] = {}
        self.metadata: dict[str, str] = {}
        self.on_metadata: Callable[[str], None] = lambda uuid: None

    def domains(self) -> Iterator[hypervisor.Description]:
        if self.failure is not None:
            raise self.failure
        for xml in list(self.defined.values()):
            yield hypervisor.Description(xml, running=False)
        for xml in list(self.running.values()):
            yield hypervisor.Description(xml, running=True)

    def node_device(self, name: str) -> NodeDevice:
        address = '{}:{}:{}.{}'.format(*name.split('_')[1:])
        if not self.tree.path(address).exists():
            raise libvirt_error(f"no node device with matching name '{name}'",
                                libvirt.VIR_ERR_NO_NODE_DEVICE)
        return NodeDevice(self, address)

    def set_metadata(self, uuid: str, element: str, namespace: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.metadata[uuid] = element
        self.on_metadata(uuid)

    def define(self, uuid: str, *addresses: str) -> None:
        self.defined[uuid] = domain_xml(uuid, *addresses)

    def start(self, uuid: str, *addresses: str) -> None:
        """Defines a domain and starts it."""
        self.define(uuid, *addresses)
        self.running[uuid] = domain_xml(uuid, *addresses)

    def undefine(self, uuid: str) -> None:
        """Stops a domain and forgets it."""
        self.defined.pop(uuid, None)
        self.running.pop(uuid, None)

    def driver(self, address: str) -> str | None:
        function = pci.Sysfs(self.tree.root).function(
            pci.PCIAddress.parse(address))
        assert function is not None
        return function.driver
