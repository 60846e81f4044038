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

"""Reads the XML of libvirt."""

from xml.etree import ElementTree


def passed_functions(xml: str) -> list[str]:
    """Addresses of the host's PCI functions in a domain's XML, in order."""
    found = []
    for address in ElementTree.fromstring(xml).iterfind(
            'devices/hostdev[@type="pci"]/source/address'):
        domain, bus, slot, function = (
            int(address.attrib[name], 16)
            for name in ('domain', 'bus', 'slot', 'function'))
        found.append(f'{domain:04x}:{bus:02x}:{slot:02x}.{function:x}')
    return sorted(found)
