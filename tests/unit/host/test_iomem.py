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

"""What holds the memory of a card's BARs."""

from nova_gpu_passthru.host import iomem
from tests.unit import base

# Linux 5.15, a console on the firmware's framebuffer.
BOOTFB = """\
00000000-00000fff : Reserved
d0000000-efffffff : PCI Bus 0000:00
  d0000000-e1ffffff : PCI Bus 0000:01
    d0000000-dfffffff : 0000:01:00.0
      d0000000-d02fffff : BOOTFB
    e0000000-e1ffffff : 0000:01:00.0
  e2000000-e20fffff : PCI Bus 0000:02
    e2000000-e2003fff : 0000:02:00.0
      e2000000-e2003fff : nvme
    e2004000-e2004fff : 0000:02:00.1
100000000-47fffffff : System RAM
"""


class OwnersTest(base.TestCase):
    def owners(self, text: str) -> dict[str, tuple[str, ...]]:
        path = self.tree('').root / 'iomem'
        path.write_text(text)
        return {str(address): names
                for address, names in iomem.owners(path).items()}

    def test_framebuffer_and_drivers_are_named(self) -> None:
        self.assertEqual({'0000:01:00.0': ('BOOTFB',),
                          '0000:02:00.0': ('nvme',)}, self.owners(BOOTFB))

    def test_without_privilege_the_addresses_are_zero(self) -> None:
        hidden = '\n'.join(
            ' ' * (len(line) - len(line.lstrip())) + '00000000-00000000 : ' +
            line.partition(' : ')[2] for line in BOOTFB.splitlines())
        self.assertEqual(self.owners(BOOTFB), self.owners(hidden))

    def test_each_owner_is_named_once(self) -> None:
        self.assertEqual({'0000:65:00.0': ('vfio-pci', 'efifb')},
                         self.owners("""\
0-1 : 0000:65:00.0
  0-1 : vfio-pci
2-3 : 0000:65:00.0
  2-3 : vfio-pci
    2-2 : efifb
"""))

    def test_what_cannot_be_read_names_nobody(self) -> None:
        self.assertEqual({}, iomem.owners('/nowhere'))
