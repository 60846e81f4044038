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

"""Reads the host's PCI devices in a libvirt domain and writes cards into it.

The format is described at https://libvirt.org/formatdomain.html.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
import dataclasses
import re

from lxml import etree

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import address_width
from nova_gpu_passthru.guest import numa
from nova_gpu_passthru.guest import slots
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci

NAMESPACE = 'urn:nova-gpu-passthru:domain:1'

_HEX = re.compile(r'0[xX][0-9a-fA-F]+')
_OCTAL = re.compile(r'0[0-7]+')


@dataclasses.dataclass(frozen=True)
class DomainDevices:
    """What a domain holds of the host.

    :ivar uuid: the domain's, which is its Nova instance's
    :ivar name: the domain's
    :ivar addresses: the host's PCI functions that it names as devices
    :ivar for_revert: those that it had before a resize on this host, until
        that is confirmed or reverted
    :ivar running: whether it runs
    :ivar live: those of its functions that the running guest has now
    :ivar models: the model of each card that this driver gave it, by the
        card's address; tells whether the bus was renumbered since
    """

    uuid: str
    name: str
    addresses: frozenset[pci.PCIAddress]
    for_revert: frozenset[pci.PCIAddress] = frozenset()
    running: bool = False
    live: frozenset[pci.PCIAddress] = frozenset()
    models: dict[pci.PCIAddress, str] = dataclasses.field(
        default_factory=dict)

    @property
    def held(self) -> frozenset[pci.PCIAddress]:
        """All functions that nobody else may have."""
        return self.addresses | self.for_revert

    def merged(self, other: 'DomainDevices') -> 'DomainDevices':
        """What either description of one domain holds."""
        return dataclasses.replace(
            self, addresses=self.addresses | other.addresses,
            for_revert=self.for_revert | other.for_revert,
            running=self.running or other.running,
            live=self.live | other.live,
            models=self.models | other.models)


def read(xml: str, running: bool = False) -> DomainDevices:
    """Reads what a domain holds of the host.

    Domains that other tools wrote are read too: the domain of an address
    may be missing, numbers may be decimal or hexadecimal, and what cannot be
    understood is no address. Interfaces of type hostdev hold a function as
    well.

    :param xml: the domain's XML
    :param running: whether this is how it runs, not how it is defined
    :raises etree.XMLSyntaxError: if it is no XML
    """
    # As bytes it may have an encoding declaration.
    root = etree.fromstring(xml.encode())
    sources = root.iterfind("devices/hostdev[@type='pci']")
    interfaces = root.iterfind('devices/interface')
    found = frozenset(
        address for address in map(source_address, (*sources, *interfaces))
        if address is not None)
    return DomainDevices(
        uuid=root.findtext('uuid', ''), name=root.findtext('name', ''),
        addresses=found, live=found if running else frozenset(),
        for_revert=frozenset(
            address for address, _ in _recorded(root, 'for_revert')),
        running=running,
        models={address: element.get('model', '')
                for address, element in _recorded(root, 'card')})


def read_all(descriptions: Iterable[tuple[str, bool]],
             read_one: Callable[[str, bool], DomainDevices] = read
             ) -> dict[str, DomainDevices]:
    """Reads what all domains of a host hold.

    :param descriptions: XML of each domain, and whether that is how it runs;
        a domain may be described more than once
    :param read_one: reads one, as read() does
    :returns: what each holds by any of its descriptions, by its uuid
    :raises etree.XMLSyntaxError: if one is no XML
    """
    found: dict[str, DomainDevices] = {}
    for xml, running in descriptions:
        devices = read_one(xml, running)
        known = found.get(devices.uuid)
        found[devices.uuid] = (devices if known is None
                               else known.merged(devices))
    return found


def _recorded(root: etree._Element, name: str
              ) -> Iterator[tuple[pci.PCIAddress, etree._Element]]:
    """Finds what this driver wrote into the metadata."""
    for element in root.iterfind(f'metadata/{{{NAMESPACE}}}cards/'
                                 f'{{{NAMESPACE}}}{name}'):
        try:
            address = pci.PCIAddress.parse(element.get('address', ''))
        except exceptions.InvalidPCIAddress:
            continue
        yield address, element


def source_address(device: etree._Element) -> pci.PCIAddress | None:
    """Reads the host's function behind a device, None if there is none.

    :param device: a hostdev or an interface
    """
    address = device.find('source/address')
    if address is None or address.get('type', 'pci') != 'pci':
        return None
    try:
        return pci.PCIAddress(*(
            _number(address.get(name, default)) for name, default in
            (('domain', '0'), ('bus', ''), ('slot', ''), ('function', '0'))))
    except ValueError:
        return None


def _number(text: str) -> int:
    """Reads a number as libvirt (strtol) does, by what stands before it."""
    if _HEX.fullmatch(text):
        return int(text, 16)
    return int(text, 8 if _OCTAL.fullmatch(text) else 10)


def add_cards(xml: str, cards: Sequence[host_cards.Card],
              for_revert: Collection[pci.PCIAddress] = (),
              numa_placement: bool = True) -> str:
    """Writes cards into a domain that has none of them yet.

    Each device of a card takes one slot of the guest, in which its functions
    keep their numbers. The same cards in the same order take the same slots.

    :param xml: the domain's XML
    :param cards: what the guest gets, in the order that it will see
    :param for_revert: functions to keep in case a resize is reverted
    :param numa_placement: whether cards are on the guest's NUMA node that is
        on theirs, where the guest has one
    :returns: the domain's XML with the cards
    :raises UnsupportedGuest: if the guest is made so that it cannot have them
    """
    root = etree.fromstring(xml, etree.XMLParser(remove_blank_text=True))
    devices = root.find('devices')
    _check_iommu(devices, cards)
    cells = numa.cells_by_host_node(root) if numa_placement else {}
    placed = [(device, cells.get(card.numa_node))
              for card in cards for device in _devices_of(card)]
    free_slots = slots.of_domain(
        root, [cell for _, cell in placed if cell is not None])
    for device, cell in placed:
        slot = free_slots.take(devices, cell)
        # A guest looks for the others only where it finds function 0.
        first = min(f.address.function for f in device)
        for function in device:
            number = function.address.function
            devices.append(_hostdev(
                function, slot, 0 if number == first else number,
                multifunction=len(device) > 1 and number == first))
    address_width.widen(root, cards)
    _metadata(root).append(_cards_element(cards, for_revert))
    return str(etree.tostring(root, encoding='unicode', pretty_print=True))


def _check_iommu(devices: etree._Element,
                 cards: Sequence[host_cards.Card]) -> None:
    """Refuses what QEMU would refuse when the guest starts.

    Behind an emulated IOMMU each function of the guest is in an address
    space of its own, and vfio cannot have one group in several ("group used
    in multiple address spaces").
    """
    if devices.find('iommu') is None:
        return
    groups = collections.Counter(f.iommu_group for card in cards
                                 for f in card.functions)
    for card in cards:
        for function in card.functions:
            if (function.iommu_group is not None and
                    groups[function.iommu_group] > 1):
                raise exceptions.UnsupportedGuest(
                    f'{function.address} of GPU {card} shares its IOMMU group '
                    f'{function.iommu_group} with others of the guest, which '
                    f'is not possible with an emulated IOMMU: remove '
                    f'hw:viommu_model from the flavor and hw_viommu_model '
                    f'from the image.')


def _devices_of(card: host_cards.Card) -> list[list[pci.PCIFunction]]:
    """A card's functions by their slot on the host, the GPU's first."""
    devices: dict[tuple[int, int, int], list[pci.PCIFunction]] = {}
    for function in sorted(card.functions, key=lambda f: (
            not f.address.in_slot_of(card.address), f.address)):
        a = function.address
        devices.setdefault((a.domain, a.bus, a.slot), []).append(function)
    return list(devices.values())


def _hostdev(function: pci.PCIFunction, slot: slots.GuestSlot | None,
             number: int, multifunction: bool) -> etree._Element:
    # managed='no': libvirt leaves the function on its stub driver when the
    # guest ends, so no host driver can catch it before the next guest.
    hostdev = etree.Element('hostdev', mode='subsystem', type='pci',
                            managed='no')
    source = etree.SubElement(hostdev, 'source')
    a = function.address
    etree.SubElement(source, 'address', domain=f'0x{a.domain:04x}',
                     bus=f'0x{a.bus:02x}', slot=f'0x{a.slot:02x}',
                     function=f'0x{a.function:x}')
    if slot is not None:
        address = etree.SubElement(
            hostdev, 'address', type='pci', domain='0x0000',
            bus=f'0x{slot.bus:02x}', slot=f'0x{slot.slot:02x}',
            function=f'0x{number:x}')
        if multifunction:
            address.set('multifunction', 'on')
    return hostdev


def _metadata(root: etree._Element) -> etree._Element:
    metadata = root.find('metadata')
    if metadata is None:
        metadata = etree.SubElement(root, 'metadata')
    return metadata


def _cards_element(cards: Sequence[host_cards.Card],
                   for_revert: Collection[pci.PCIAddress]
                   ) -> etree._Element:
    element = etree.Element(f'{{{NAMESPACE}}}cards',
                            nsmap={'gpu_passthru': NAMESPACE})
    for card in cards:
        etree.SubElement(element, f'{{{NAMESPACE}}}card',
                         address=str(card.address), model=card.model)
    for address in sorted(for_revert):
        etree.SubElement(element, f'{{{NAMESPACE}}}for_revert',
                         address=str(address))
    return element


def confirmed(xml: str) -> str:
    """Writes the metadata anew, without what was kept for a revert.

    :param xml: the domain's XML
    :returns: the element of our namespace, as virDomainSetMetadata takes it
    """
    root = etree.fromstring(xml)
    cards = root.find(f'metadata/{{{NAMESPACE}}}cards')
    element = etree.Element('cards') if cards is None else cards
    for child in element.findall(f'{{{NAMESPACE}}}for_revert'):
        element.remove(child)
    return str(etree.tostring(element, encoding='unicode', with_tail=False))
