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

from nova_gpu_passthru.host import start_failures
from tests.unit import base

CARDS = """
0000:01:00.0 030000 10de:2231 driver=vfio-pci group=1
0000:01:00.1 040300 10de:1aef driver=vfio-pci group=1
0000:1a:00.0 030200 10de:2330 driver=vfio-pci group=40
0000:1b:00.0 030200 10de:2330 driver=vfio-pci group=41
"""
CLOSED = ('internal error: qemu unexpectedly closed the monitor: '
          '2024-02-07T09:02:08.235790Z qemu-system-x86_64: ')
ARGUMENT = '-device vfio-pci,host=0000:1a:00.0,id=hostdev0,bus=pci.2: '
JSON = ('-device {"driver":"vfio-pci","host":"0000:1a:00.0","id":"hostdev0",'
        '"bus":"pci.5","addr":"0x0"}: ')


@ddt.ddt
class BlamedTest(base.TestCase):
    def blamed(self, text: str) -> list[str]:
        return [str(card.address) for card in
                start_failures.blamed(text, self.cards(CARDS))]

    @ddt.unpack
    @ddt.data(
        # https://github.com/bryansteiner/gpu-passthrough-tutorial/issues/39
        ("internal error: Unknown PCI header type '127' for device "
         "'0000:01:00.0'", '0000:01:00.0'),
        # https://github.com/kata-containers/kata-containers/issues/4211
        (CLOSED + ARGUMENT + 'vfio 0000:1a:00.0: group 40 is not viable\n'
         'Please ensure all devices within the iommu_group are bound to '
         'their vfio bus driver.', '0000:1a:00.0'),
        (CLOSED + JSON + 'vfio 0000:1a:00.0: error getting device from group '
         '40: Connection timed out', '0000:1a:00.0'),
        # https://github.com/intel/gvt-linux/issues/171
        (CLOSED + ARGUMENT + 'vfio 0000:1a:00.0: failed to setup container '
         'for group 40: Failed to set iommu for container: Input/output '
         'error', '0000:1a:00.0'),
        (CLOSED + ARGUMENT + 'vfio: error opening /dev/vfio/41: Device or '
         'resource busy', '0000:1b:00.0'),
        ('internal error: Unable to reset PCI device 0000:01:00.1: no FLR, '
         'PM reset or bus reset available', '0000:01:00.0'),
        ('Device 0000:1b:00.0 not found: could not access '
         '/sys/bus/pci/devices/0000:1b:00.0/config: No such file or '
         'directory', '0000:1b:00.0'))
    def test_card_that_the_message_names(self, text: str, card: str
                                         ) -> None:
        self.assertEqual([card], self.blamed(text))

    @ddt.data(
        # https://github.com/seapath/meta-seapath/issues/166
        CLOSED + ARGUMENT + 'VFIO_MAP_DMA failed: Cannot allocate memory\n' +
        CLOSED + ARGUMENT + 'vfio 0000:1a:00.0: failed to setup container '
        'for group 49: memory listener initialization failed: Region pc.ram: '
        'vfio_dma_map(0x648f, 0x0, 0x80000000, 0x715d) = -12 (Cannot '
        'allocate memory)',
        # https://github.com/kata-containers/kata-containers/issues/9553
        CLOSED + JSON + 'vfio 0000:1a:00.0: failed to setup container for '
        'group 40: memory listener initialization failed: Region dimm1: '
        'vfio_dma_map(0x5555, 0x1000, 0x13800, 0x7f87) = -14 (Bad address)',
        # https://github.com/systemd/systemd/issues/6648
        CLOSED + ARGUMENT + 'vfio: error opening /dev/vfio/40: Operation not '
        'permitted',
        CLOSED + ARGUMENT + 'vfio 0000:1a:00.0: failed to open '
        '/dev/vfio/40: Permission denied',
        # https://github.com/kata-containers/kata-containers/issues/10622
        CLOSED + ARGUMENT + 'vfio 0000:1a:00.0: group 40 used in multiple '
        'address spaces',
        # The guest's own shape: QEMU repeats the argument, no more.
        CLOSED + ARGUMENT + 'PCI: slot 0 function 0 not available for '
        'vfio-pci, in use by pcie-root-port,id=pci.2',
        CLOSED + JSON + "Bus 'pci.5' not found",
        'Requested operation is not valid: PCI device 0000:1a:00.0 is in use '
        'by driver QEMU, domain instance-00000001',
        'Requested operation is not valid: Unmanaged PCI device 0000:1a:00.0 '
        'must be manually detached from the host',
        # Another device, and what only looks like an address.
        CLOSED + 'vfio 0000:41:00.0: group 4 is not viable',
        "Cannot get interface MTU on 'br-int': No such device",
        'internal error: 10000:1a:00.01 and f0000:1a:00.0a', '')
    def test_what_is_not_the_cards_own_blames_none(self, text: str) -> None:
        self.assertEqual([], self.blamed(text))


class ShortenedTest(base.TestCase):
    def test_it_is_one_line(self) -> None:
        self.assertEqual('a b c', start_failures.shortened('a\n b\tc\n'))

    def test_of_much_the_end_stays(self) -> None:
        text = start_failures.shortened('x' * 600 + ' not viable')
        self.assertEqual(500, len(text))
        self.assertTrue(text.startswith('...x') and
                        text.endswith(' not viable'))
