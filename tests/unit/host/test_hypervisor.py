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

import libvirt

from nova_gpu_passthru.host import hypervisor
from tests.unit import base
from tests.unit import fakes

DEFINED, RUNNING = '<domain>as defined</domain>', '<domain>as run</domain>'


class Domain:
    """A virDomain that may go away at any call."""

    def __init__(self, active: bool, *failures: Exception | None) -> None:
        self._active = active
        self._failures = list(failures)
        self.metadata: tuple[object, ...] = ()

    def _maybe_fail(self) -> None:
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure

    def XMLDesc(self, flags: int) -> str:
        self._maybe_fail()
        return (DEFINED if flags & libvirt.VIR_DOMAIN_XML_INACTIVE
                else RUNNING)

    def isActive(self) -> int:
        self._maybe_fail()
        return int(self._active)

    def setMetadata(self, *args: object) -> int:
        self.metadata = args
        return 0


class Connection:
    """A virConnect."""

    def __init__(self, *domains: Domain) -> None:
        self._domains = domains

    def listAllDomains(self) -> list[Domain]:
        return list(self._domains)

    def lookupByUUIDString(self, uuid: str) -> Domain:
        return self._domains[int(uuid)]

    def nodeDeviceLookupByName(self, name: str) -> str:
        return f'device {name}'


def gone() -> libvirt.libvirtError:
    return fakes.libvirt_error('Domain not found', libvirt.VIR_ERR_NO_DOMAIN)


class ConnectionTest(base.TestCase):
    def domains(self, *domains: Domain) -> list[tuple[str, bool]]:
        return [(xml, running) for xml, running in
                hypervisor.Connection(Connection(*domains)).domains()]

    def test_running_domain_is_described_twice(self) -> None:
        self.assertEqual([(DEFINED, False), (RUNNING, True)],
                         self.domains(Domain(True)))

    def test_domain_that_is_shut_off_is_described_once(self) -> None:
        self.assertEqual([(DEFINED, False)], self.domains(Domain(False)))

    def test_domain_that_goes_away_hides_no_other(self) -> None:
        self.assertEqual(
            [(DEFINED, False), (DEFINED, False), (DEFINED, False)],
            self.domains(Domain(True, gone()), Domain(True, None, gone()),
                         Domain(True, None, None, gone()), Domain(False)))

    def test_other_errors_are_not_taken_for_that(self) -> None:
        self.assertRaises(libvirt.libvirtError, self.domains, Domain(
            True, fakes.libvirt_error('no connection',
                                      libvirt.VIR_ERR_NO_CONNECT)))

    def test_node_device_is_looked_up_by_name(self) -> None:
        connection = hypervisor.Connection(Connection())
        self.assertEqual('device pci_0000_3b_00_0',
                         connection.node_device('pci_0000_3b_00_0'))

    def test_metadata_of_a_running_domain_are_written_in_both(self) -> None:
        stopped, running = Domain(False), Domain(True)
        connection = hypervisor.Connection(Connection(stopped, running))
        for uuid in ('0', '1'):
            connection.set_metadata(uuid, '<cards/>', 'urn:x')
        self.assertEqual(
            (libvirt.VIR_DOMAIN_METADATA_ELEMENT, '<cards/>',
             hypervisor.METADATA_KEY, 'urn:x',
             libvirt.VIR_DOMAIN_AFFECT_CONFIG), stopped.metadata)
        self.assertEqual(
            libvirt.VIR_DOMAIN_AFFECT_CONFIG |
            libvirt.VIR_DOMAIN_AFFECT_LIVE, running.metadata[-1])
