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

import ddt
from lxml import etree

from nova_gpu_passthru.guest import domain
from tests.unit import base
from tests.unit.guest import test_add_cards

MEMORY_16_GIB = '<memory>16777216</memory>'


@ddt.ddt
class WidenTest(base.TestCase):
    """Large BARs in guests of Nova's.

    https://blog.rackspacecloud.com/blog/2025/12/03/
    solving_gpu_passthrough_memory_addressing_in_openstack
    """

    def mode(self, gib: int, count: int = 1, machine: str = 'q35',
             memory: str = MEMORY_16_GIB, cpu: str = '') -> str | None:
        """The mode that a guest gets with cards of this memory each."""
        cards = self.cards('\n'.join(
            f'0000:{bus:02x}:00.0 030200 10de:2321 driver=vfio-pci '
            f'group={bus} memory={gib}' for bus in range(1, count + 1)))
        xml = test_add_cards.nova_xml(machine)
        self.assertIn(MEMORY_16_GIB, xml)
        root = etree.fromstring(domain.add_cards(
            xml.replace(MEMORY_16_GIB, memory).replace(
                '<topology', f'{cpu}<topology'), cards))
        modes = [element.get('mode')
                 for element in root.iterfind('cpu/maxphysaddr')]
        self.assertIn(len(modes), (0, 1))
        return modes[0] if modes else None

    # QEMU's 40 bits are 1024 GiB, of which the firmware gives an eighth.
    @ddt.unpack
    @ddt.data((16, 1, None), (64, 1, None), (128, 1, 'passthrough'),
              (64, 2, 'passthrough'), (256, 8, 'passthrough'),
              (32, 2, None), (32, 3, 'passthrough'), (16, 4, None))
    def test_guest_with_large_cards_gets_the_hosts_width(
            self, gib: int, count: int, mode: str | None) -> None:
        self.assertEqual(mode, self.mode(gib, count))

    @ddt.unpack
    @ddt.data((256, None), (512, None), (768, None), (1000, 'passthrough'))
    def test_memory_of_the_guest_counts(self, gib: int, mode: str | None
                                        ) -> None:
        self.assertEqual(
            mode, self.mode(32, memory=f'<memory>{gib << 20}</memory>'))

    @ddt.unpack
    @ddt.data(('b', 30), ('bytes', 30), ('KiB', 20), ('MiB', 10),
              ('GiB', 0))
    def test_memory_is_read_in_its_unit(self, unit: str, shift: int) -> None:
        for gib, mode in ((768, None), (1000, 'passthrough')):
            self.assertEqual(mode, self.mode(
                32, memory=f"<memory unit='{unit}'>{gib << shift}</memory>"))

    def test_what_the_flavor_says_stays(self) -> None:
        self.assertEqual('emulate', self.mode(
            256, cpu="<maxphysaddr mode='emulate' bits='42'/>"))

    def test_older_machine_is_widened_too(self) -> None:
        self.assertEqual('passthrough', self.mode(256, machine='pc'))

    def test_other_architectures_are_left_as_they_are(self) -> None:
        self.assertIsNone(self.mode(256, machine='virt'))
