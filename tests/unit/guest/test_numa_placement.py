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

"""Cards on the NUMA nodes of a guest, see tests/data/guests/q35-two-nodes."""

from typing import Any

import ddt
from lxml import etree

from nova_gpu_passthru.guest import domain
from tests.unit.guest import test_add_cards


@ddt.ddt
class PlacementTest(test_add_cards.TestCase):

    MACHINE = 'q35-two-nodes'

    def placed(self, xml: str, cards: str = 'numa-nodes',
               **kwargs: Any) -> dict[str, str | None]:
        """The guest's NUMA node of each card, by its bus on the host.

        None for a card on the root bus that any guest has.
        """
        root = etree.fromstring(domain.add_cards(
            xml, self.guest_cards(cards), **kwargs))
        controllers = {int(c.get('index')): c for c in root.iterfind(
            "devices/controller[@type='pci'][@index]")}
        nodes = {}
        for hostdev in root.iterfind('devices/hostdev'):
            port = controllers[int(hostdev.find('address').get('bus'), 16)]
            self.assertEqual('pcie-root-port', port.get('model'))
            address = port.find('address')
            bus = (None if address is None else
                   controllers[int(address.get('bus'), 16)])
            nodes[hostdev.find('source/address').get('bus')] = (
                None if bus is None else bus.findtext('target/node'))
        return nodes

    def test_cards_are_on_the_cell_that_is_on_their_node(self) -> None:
        self.assertEqual(
            {'0x01': '1', '0x25': '0', '0x41': '0', '0x61': None,
             '0x81': None, '0xa1': '1'},
            self.placed(test_add_cards.nova_xml(self.MACHINE)))

    def test_cells_may_be_in_another_order_than_nodes(self) -> None:
        xml = test_add_cards.nova_xml(self.MACHINE)
        for number, cell in enumerate('20'):
            xml = xml.replace(
                f'<memnode cellid="{number}" mode="strict" '
                f'nodeset="{number}"/>',
                f'<memnode cellid="{number}" mode="strict" '
                f'nodeset="{cell}"/>')
        self.assertEqual(
            {'0x01': None, '0x25': '1', '0x41': '1', '0x61': '0',
             '0x81': None, '0xa1': None}, self.placed(xml))

    def test_a_cell_may_be_on_several_nodes(self) -> None:
        xml = test_add_cards.nova_xml(self.MACHINE)
        xml = xml.replace('strict" nodeset="1"', 'strict" nodeset="1-2"')
        self.assertEqual(
            {'0x01': '1', '0x25': '0', '0x41': '0', '0x61': '1',
             '0x81': None, '0xa1': '1'}, self.placed(xml))

    def test_a_node_with_two_cells_is_neither(self) -> None:
        xml = test_add_cards.nova_xml(self.MACHINE)
        xml = xml.replace('strict" nodeset="1"', 'strict" nodeset="0"')
        self.assertEqual({None}, set(self.placed(xml).values()))

    @ddt.data('q35', 'q35-16-ports', 'virt')
    def test_guest_without_numa_topology(self, machine: str) -> None:
        self.assertEqual({None}, set(self.placed(
            test_add_cards.nova_xml(machine)).values()))

    def test_switched_off(self) -> None:
        self.assertEqual({None}, set(self.placed(
            test_add_cards.nova_xml(self.MACHINE),
            numa_placement=False).values()))

    @ddt.data(("machine=\"q35\"", 'machine="pc"'),
              ('arch="x86_64" machine="q35"',
               'arch="aarch64" machine="virt"'))
    def test_machines_that_have_no_such_bus(
            self, replaced: tuple[str, str]) -> None:
        xml = test_add_cards.nova_xml(self.MACHINE).replace(*replaced)
        self.assertNotIn('pcie-expander-bus', domain.add_cards(
            xml, self.guest_cards('numa-nodes')))

    def test_bus_numbers_are_enough_for_the_ports(self) -> None:
        """The bus itself, its ports, and what is below each have one."""
        root = etree.fromstring(domain.add_cards(
            test_add_cards.nova_xml(self.MACHINE),
            self.guest_cards('numa-nodes')))
        ports = {}
        numbers = {}
        for controller in root.iterfind("devices/controller[@type='pci']"):
            if controller.get('model') == 'pcie-expander-bus':
                index = f"0x{int(controller.get('index')):02x}"
                numbers[index] = int(controller.find('target').get('busNr'))
                ports[index] = len(root.findall(
                    f"devices/controller/address[@bus='{index}']"))
        self.assertEqual([2, 2], list(ports.values()))
        ends = sorted([*numbers.values(), 256])
        for index, number in numbers.items():
            end = next(e for e in ends if e > number)
            self.assertLessEqual(number + 1 + ports[index], end)
