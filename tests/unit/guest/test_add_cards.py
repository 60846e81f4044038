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

"""Cards written into guests as Nova describes them, see tests/data/guests."""

import copy

import ddt
from lxml import etree

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from tests.unit import base
from tests.unit import golden

GUESTS = golden.DATA / 'guests'

# Machine types and the cards that are written into each.
GOLDEN = {
    'q35': ('one-function', 'with-audio', 'turing', 'two-cards',
            'eight-cards', 'gaps', 'no-function-0', 'arc', 'other-domain'),
    'q35-16-ports': ('with-audio', 'eight-cards'),
    'q35-two-nodes': ('numa-nodes', 'turing'),
    'pc': ('one-function', 'with-audio', 'turing', 'two-cards', 'arc'),
    'virt': ('with-audio', 'two-cards'),
}


def nova_xml(machine: str) -> str:
    return (GUESTS / machine / 'nova.xml').read_text()


def canonical(root: etree._Element) -> bytes:
    """A document as it is compared: without layout."""
    parser = etree.XMLParser(remove_blank_text=True)
    text: bytes = etree.tostring(
        etree.fromstring(etree.tostring(root), parser), method='c14n')
    return text


class TestCase(base.TestCase):
    def guest_cards(self, name: str) -> tuple[host_cards.Card, ...]:
        found = self.cards((GUESTS / 'cards' / f'{name}.txt').read_text())
        self.assertEqual([], [card.reason for card in found if card.reason])
        return found


@ddt.ddt
class GoldenGuestTest(TestCase):
    @ddt.unpack
    @ddt.data(*((machine, cards) for machine, names in GOLDEN.items()
                for cards in names))
    def test_guest_is_exactly(self, machine: str, cards: str) -> None:
        golden.check(self, GUESTS / machine / f'{cards}.xml',
                     domain.add_cards(nova_xml(machine),
                                      self.guest_cards(cards)))

    def test_every_guest_file_is_checked(self) -> None:
        self.assertEqual(
            sorted(f'{machine}/{cards}' for machine, names in GOLDEN.items()
                   for cards in (*names, 'nova')),
            sorted(f'{path.parent.name}/{path.stem}'
                   for path in GUESTS.glob('*/*.xml')))


@ddt.ddt
class AddCardsTest(TestCase):
    def guest_addresses(self, machine: str, cards: str) -> list[str]:
        return self.addresses(domain.add_cards(nova_xml(machine),
                                               self.guest_cards(cards)))

    def addresses(self, xml: str) -> list[str]:
        """bus:slot.function of each hostdev in the guest."""
        numbers = [[int(element.get(name), 16)
                    for name in ('bus', 'slot', 'function')]
                   for element in etree.fromstring(xml).iterfind(
                       'devices/hostdev/address')]
        return ['{:02x}:{:02x}.{:x}'.format(*triple) for triple in numbers]

    @ddt.data(*GOLDEN)
    def test_what_is_written_is_what_is_read(self, machine: str) -> None:
        cards = self.guest_cards('eight-cards')
        devices = domain.read(domain.add_cards(nova_xml(machine), cards))
        self.assertEqual(
            frozenset(a for card in cards for a in card.addresses),
            devices.addresses)
        self.assertEqual({card.address: card.model for card in cards},
                         devices.models)
        self.assertEqual('b4c7ab0c-5f0e-4e1a-9a6b-2f0f8f0f4c10',
                         devices.uuid)

    @ddt.data(*GOLDEN)
    def test_nothing_of_novas_is_changed(self, machine: str) -> None:
        root = etree.fromstring(domain.add_cards(
            nova_xml(machine), self.guest_cards('numa-nodes')))
        before = etree.fromstring(nova_xml(machine))
        ours = [*root.iterfind('devices/hostdev'),
                *root.iterfind("devices/controller[@model='pcie-root-port']"
                               '[@index]'),
                *root.iterfind(
                    "devices/controller[@model='pcie-expander-bus']"),
                *root.iterfind(f'metadata/{{{domain.NAMESPACE}}}cards')]
        for element in ours:
            element.getparent().remove(element)
        self.assertEqual(canonical(before), canonical(root))

    def test_what_others_have_in_the_domain_is_kept(self) -> None:
        root = etree.fromstring(nova_xml('q35'))
        extra = etree.fromstring("""
            <hostdev mode='subsystem' type='mdev' model='vfio-pci'>
              <source><address uuid='c2177883-f1bb-47f0-914d-32a22e3a8804'/>
              </source></hostdev>""")
        root.find('devices').append(copy.deepcopy(extra))
        written = etree.fromstring(domain.add_cards(
            etree.tostring(root, encoding='unicode'),
            self.guest_cards('one-function')))
        self.assertEqual(canonical(extra), canonical(written.find(
            "devices/hostdev[@type='mdev']")))

    def test_same_cards_have_the_same_addresses_each_time(self) -> None:
        # https://github.com/harvester/harvester/issues/9987
        cards = self.guest_cards('eight-cards')
        self.assertEqual(domain.add_cards(nova_xml('q35'), cards),
                         domain.add_cards(nova_xml('q35'), cards))

    def test_guest_sees_cards_in_the_order_given(self) -> None:
        first, second = self.guest_cards('two-cards')
        xml = domain.add_cards(nova_xml('q35'), (second, first))
        sources = etree.fromstring(xml).iterfind(
            'devices/hostdev/source/address')
        self.assertEqual(['0xb1', '0xb1', '0x31', '0x31'],
                         [element.get('bus') for element in sources])
        self.assertEqual(['01:00.0', '01:00.1', '02:00.0', '02:00.1'],
                         self.addresses(xml))

    # https://github.com/OpenNebula/one (4ce7340381): slot 0 only
    # https://github.com/apache/cloudstack/issues/7770: ports run out
    @ddt.data('q35', 'q35-16-ports', 'virt')
    def test_each_card_has_a_root_port_of_its_own(self, machine: str) -> None:
        root = etree.fromstring(domain.add_cards(
            nova_xml(machine), self.guest_cards('eight-cards')))
        ports = root.findall("devices/controller[@model='pcie-root-port']"
                             '[@index]')
        self.assertEqual([str(n) for n in range(1, 9)],
                         [port.get('index') for port in ports])
        self.assertEqual(
            [f'{bus:02x}:00.{function}' for bus in range(1, 9)
             for function in (0, 1)],
            self.guest_addresses(machine, 'eight-cards'))

    def test_ports_take_indexes_that_are_free(self) -> None:
        root = etree.fromstring(nova_xml('q35'))
        for index in ('1', '3'):
            etree.SubElement(root.find('devices'), 'controller', type='pci',
                             model='pcie-root-port', index=index)
        self.assertEqual(
            ['02:00.0', '02:00.1', '04:00.0', '04:00.1'],
            self.addresses(domain.add_cards(
                etree.tostring(root, encoding='unicode'),
                self.guest_cards('two-cards'))))

    # https://github.com/Leoyzen/KVM-Opencore/issues/2
    # https://github.com/AshleyYakeley/NixVirt/issues/76
    @ddt.unpack
    @ddt.data(('q35', 'one-function', ['01:00.0']),
              ('q35', 'with-audio', ['01:00.0', '01:00.1']),
              ('q35', 'gaps', ['01:00.0', '01:00.2', '01:00.4']),
              ('q35', 'no-function-0', ['01:00.0', '01:00.3']),
              ('q35', 'arc', ['01:00.0', '02:00.0']),
              ('pc', 'with-audio', ['00:1f.0', '00:1f.1']),
              ('pc', 'two-cards', ['00:1f.0', '00:1f.1',
                                   '00:1e.0', '00:1e.1']))
    def test_functions_of_a_device_share_a_slot(
            self, machine: str, cards: str, expected: list[str]) -> None:
        self.assertEqual(expected, self.guest_addresses(machine, cards))

    @ddt.unpack
    @ddt.data(('one-function', [None]), ('with-audio', ['on', None]),
              ('turing', ['on', None, None, None]), ('arc', [None, None]),
              ('no-function-0', ['on', None]))
    def test_function_0_says_that_there_are_more(
            self, cards: str, expected: list[str | None]) -> None:
        root = etree.fromstring(domain.add_cards(nova_xml('q35'),
                                                 self.guest_cards(cards)))
        self.assertEqual(expected, [
            element.get('multifunction')
            for element in root.iterfind('devices/hostdev/address')])

    # https://github.com/lxc/incus-os/issues/1146
    def test_libvirt_does_not_give_functions_back_to_host_drivers(
            self) -> None:
        root = etree.fromstring(domain.add_cards(
            nova_xml('q35'), self.guest_cards('turing')))
        self.assertEqual(['no'] * 4, [
            element.get('managed')
            for element in root.iterfind('devices/hostdev')])

    # https://github.com/kata-containers/kata-containers/pull/6664; and
    # libvirt refuses to assign bridges.
    def test_bridges_of_the_host_are_never_passed(self) -> None:
        devices = domain.read(domain.add_cards(
            nova_xml('q35'), self.guest_cards('arc')))
        self.assertEqual(
            ['0000:06:00.0', '0000:07:00.0'],
            sorted(str(address) for address in devices.addresses))

    def test_guest_without_metadata_gets_them(self) -> None:
        root = etree.fromstring(nova_xml('pc'))
        root.remove(root.find('metadata'))
        devices = domain.read(domain.add_cards(
            etree.tostring(root, encoding='unicode'),
            self.guest_cards('one-function')))
        self.assertEqual({pci.PCIAddress(0, 8, 0, 0): '10de:1eb8'},
                         devices.models)

    def test_full_bus_of_pc_is_an_error_with_a_cure(self) -> None:
        root = etree.fromstring(nova_xml('pc'))
        devices = root.find('devices')
        for slot in range(3, 32):
            disk = etree.SubElement(devices, 'disk')
            etree.SubElement(disk, 'address', type='pci', bus='0x00',
                             slot=f'0x{slot:02x}')
        error = self.assertRaises(
            exceptions.UnsupportedGuest, domain.add_cards,
            etree.tostring(root, encoding='unicode'),
            self.guest_cards('one-function'))
        self.assertIn('hw_machine_type=q35', str(error))


@ddt.ddt
class EmulatedIOMMUTest(TestCase):
    """Behind one, vfio cannot have a group in two address spaces.

    https://github.com/lf-edge/eve/pull/2544
    """

    APART = """
        0000:65:00.0 030000 10de:2204 driver=vfio-pci group=1
        0000:65:00.1 040300 10de:1aef driver=vfio-pci group=2
        0000:66:00.0 030200 10de:20b5 driver=vfio-pci group=3"""
    ONE_CARD = APART.replace('group=2', 'group=1')
    TWO_CARDS = APART.replace('group=3', 'group=1')

    def add(self, description: str) -> str:
        # As hw:viommu_model makes it.
        xml = nova_xml('q35').replace(
            '</devices>', "<iommu model='virtio'/></devices>")
        return domain.add_cards(xml, self.cards(description))

    def test_functions_with_a_group_each_are_passed(self) -> None:
        self.assertEqual(3, len(domain.read(self.add(self.APART)).addresses))

    @ddt.data(ONE_CARD, TWO_CARDS)
    def test_functions_that_share_a_group_are_refused_with_a_cure(
            self, description: str) -> None:
        error = self.assertRaises(exceptions.UnsupportedGuest, self.add,
                                  description)
        for words in ('0000:65:00.0', 'group 1', 'hw:viommu_model',
                      'hw_viommu_model'):
            self.assertIn(words, str(error))

    @ddt.data(ONE_CARD, TWO_CARDS)
    def test_without_it_they_are_passed(self, description: str) -> None:
        xml = domain.add_cards(nova_xml('q35'), self.cards(description))
        self.assertEqual(3, len(domain.read(xml).addresses))
