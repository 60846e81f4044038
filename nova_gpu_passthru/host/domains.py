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

"""What the domains of this host hold, as last read."""

from collections.abc import Mapping

import libvirt
from lxml import etree
from oslo_log import log as logging

from nova_gpu_passthru.guest import domain as guest_domain
from nova_gpu_passthru.host import hypervisor as host_hypervisor

LOG = logging.getLogger(__name__)


class _Parsed:
    """What was read out of descriptions that are still the same.

    Few domains change between two looks, and parsing is most of a look.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, bool], guest_domain.DomainDevices] = {}
        self._read: dict[tuple[str, bool], guest_domain.DomainDevices] = {}

    def read(self, xml: str, running: bool) -> guest_domain.DomainDevices:
        """As guest_domain.read()."""
        key = xml, running
        devices = self._kept.get(key) or guest_domain.read(xml, running)
        self._read[key] = devices
        return devices

    def forget_unread(self) -> None:
        """Keeps what was read since the last time."""
        self._kept, self._read = self._read, {}


class Domains:
    """A copy of libvirt's record that never loses a holder by mistake.

    Failure to read is not evidence of freedom: if the domains cannot be read,
    what was known stays, and a domain that is not listed any more holds its
    cards until it is missing a second time. Not locked: whoever uses it is.

    :param hypervisor: where the domains are read
    :ivar known: whether they could be read at least once
    """

    def __init__(self, hypervisor: host_hypervisor.Hypervisor) -> None:
        self._hypervisor = hypervisor
        self._devices: dict[str, guest_domain.DomainDevices] = {}
        self._absent: set[str] = set()
        self._parsed = _Parsed()
        self.known = False

    @property
    def devices(self) -> Mapping[str, guest_domain.DomainDevices]:
        """What each domain holds, by its uuid."""
        return self._devices

    def read(self) -> None:
        """Reads all domains; call it once a period."""
        listed = self._listed()
        if listed is None:
            return
        gone = self._devices.keys() - listed.keys()
        for uuid in gone & self._absent:
            del self._devices[uuid]
        self._absent = gone - self._absent
        self._devices.update(listed)

    def read_new(self) -> bool:
        """Learns of domains that came or changed since; forgets none.

        :returns: whether they could be read
        """
        listed = self._listed()
        if listed is None:
            return False
        self._devices.update(listed)
        self._absent -= listed.keys()
        return True

    def forget(self, uuid: str, held: guest_domain.DomainDevices) -> None:
        """Forgets a domain that Nova has undefined, if it really is gone.

        :param uuid: the domain's
        :param held: what it holds until that is known, if the domains cannot
            be read
        """
        listed = self._listed()
        if listed is None:
            self._devices[uuid] = held
        elif uuid in listed:
            self._devices[uuid] = listed[uuid]
        else:
            self._devices.pop(uuid, None)

    def drop(self, uuid: str) -> None:
        """Forgets a domain whose cards somebody else keeps account of."""
        self._devices.pop(uuid, None)

    def confirm(self, uuid: str) -> bool:
        """Writes a domain anew, without what it kept for a revert.

        :returns: whether it keeps nothing any more
        """
        try:
            for description in self._hypervisor.domains():
                devices = guest_domain.read(*description)
                if devices.uuid == uuid and devices.for_revert:
                    self._hypervisor.set_metadata(
                        uuid, guest_domain.confirmed(description.xml),
                        guest_domain.NAMESPACE)
                    break
        except (libvirt.libvirtError, etree.XMLSyntaxError) as error:
            LOG.warning('Domain %(uuid)s cannot be changed, so the cards that '
                        'it gave up stay taken: %(error)s',
                        {'uuid': uuid, 'error': error})
            return False
        self.read_new()
        return True

    def _listed(self) -> dict[str, guest_domain.DomainDevices] | None:
        """Reads all domains, None if that fails."""
        try:
            listed = guest_domain.read_all(self._hypervisor.domains(),
                                           self._parsed.read)
        except (libvirt.libvirtError, etree.XMLSyntaxError) as error:
            LOG.warning('The domains cannot be read, so no card counts as '
                        'given back for now: %s', error)
            return None
        self._parsed.forget_unread()
        self.known = True
        return listed
