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

"""What this package needs of libvirt, and nothing more of it."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import libvirt


# The prefix that libvirt gives the namespace; any will do.
METADATA_KEY = 'gpus'


class Description(NamedTuple):
    """A domain as it is defined or as it runs."""

    xml: str
    running: bool


class NodeDevice(Protocol):
    """The part of libvirt.virNodeDevice that takes a device from the host."""

    def detachFlags(self, driver: str | None, flags: int) -> int:
        """Takes the device from its host driver."""

    def reAttach(self) -> int:
        """Gives the device back to its host driver."""


class Hypervisor(Protocol):
    """A libvirt host; every call may raise libvirt.libvirtError."""

    def domains(self) -> Iterator[Description]:
        """Describes every domain of the host.

        A running domain is described twice, as it is defined and as it runs:
        a device may be in one of them only.
        """

    def node_device(self, name: str) -> NodeDevice:
        """Looks a node device up by its name, such as pci_0000_3b_00_0."""

    def set_metadata(self, uuid: str, element: str, namespace: str) -> None:
        """Replaces the element of one namespace in a domain's metadata."""


class Connection:
    """A Hypervisor on a plain libvirt connection.

    :param connection: a libvirt.virConnect
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def domains(self) -> Iterator[Description]:
        for domain in self._connection.listAllDomains():
            yield from descriptions(domain.XMLDesc, domain.isActive)

    def node_device(self, name: str) -> NodeDevice:
        device: NodeDevice = self._connection.nodeDeviceLookupByName(name)
        return device

    def set_metadata(self, uuid: str, element: str, namespace: str) -> None:
        domain = self._connection.lookupByUUIDString(uuid)
        flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG
        if domain.isActive():
            flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE
        domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, element,
                           METADATA_KEY, namespace, flags)


def descriptions(xml_desc: Any, is_active: Any) -> Iterator[Description]:
    """Describes a domain as it is defined and, if it runs, as it runs.

    Of one that goes away meanwhile there is what was read until then.

    :param xml_desc: takes flags and returns XML, as virDomain.XMLDesc does
    :param is_active: as virDomain.isActive
    """
    try:
        yield Description(xml_desc(libvirt.VIR_DOMAIN_XML_INACTIVE), False)
        if is_active():
            yield Description(xml_desc(0), True)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
