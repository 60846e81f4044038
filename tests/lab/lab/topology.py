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

"""The virtual host's PCI devices; README.rst has them as a table.

QEMU has no display models of the makers that matter. ati-vga carries an AMD
id and is offered without being asked for; the others are emulated displays to
the driver, which the option include names.
"""

IDENTICAL = '1234:1111'
"""Model of the two cards with an audio function, one on each NUMA node."""

AUDIO = '8086:293e'

IDENTICAL_MIB = {0: 16, 1: 32}
"""Size of their first BAR by NUMA node: how a guest tells which it has."""

SINGLE = '1002:5159'
"""Model of the card without an audio function, on node 0."""

PAIR = '1af4:1050'
"""Model of the two cards that share an IOMMU group."""

BOOT_VGA = '1013:00b8'
"""Must stay with the host: its console."""

NETWORK_CARD = '8086:100e'
"""Must stay with the host, and so must the card in its IOMMU group."""

INCLUDE = (IDENTICAL, PAIR)

TOTAL = 5
"""Cards that the driver is to offer."""

# single has no option ROM: a guest's firmware would run it, and its program
# waits for VGA registers that are not passed.
# The bridges are below pcie.0, except bridge2: below the expander buses the
# kernel binds bridges to shpchp, and then vfio calls the group not viable.
_DEVICES = f"""
cirrus-vga,id=console,bus=pcie.0,addr=0x1

pxb-pcie,id=node0,bus=pcie.0,addr=0x8,bus_nr=0x40,numa_node=0
pcie-root-port,id=port0,bus=node0,addr=0x0,chassis=10
secondary-vga,id=twin0,bus=port0,addr=0x0.0,multifunction=on,vgamem_mb=\
{IDENTICAL_MIB[0]}
ich9-intel-hda,id=twin0-audio,bus=port0,addr=0x0.1
pcie-root-port,id=port1,bus=node0,addr=0x1,chassis=11
ati-vga,id=single,bus=port1,addr=0x0,model=rv100,romfile=

pxb-pcie,id=node1,bus=pcie.0,addr=0x9,bus_nr=0x80,numa_node=1
pcie-root-port,id=port2,bus=node1,addr=0x0,chassis=20
secondary-vga,id=twin1,bus=port2,addr=0x0.0,multifunction=on,vgamem_mb=\
{IDENTICAL_MIB[1]}
ich9-intel-hda,id=twin1-audio,bus=port2,addr=0x0.1

pcie-root-port,id=port5,bus=node1,addr=0x1,chassis=21
pcie-pci-bridge,id=bridge2,bus=port5
bochs-display,id=below-shpchp,bus=bridge2,addr=0x1

pcie-root-port,id=port3,bus=pcie.0,addr=0xb,chassis=31
pcie-pci-bridge,id=bridge0,bus=port3
virtio-gpu-pci,id=mate0,bus=bridge0,addr=0x1,iommu_platform=on,\
disable-legacy=on
virtio-gpu-pci,id=mate1,bus=bridge0,addr=0x2,iommu_platform=on,\
disable-legacy=on

pcie-root-port,id=port4,bus=pcie.0,addr=0xa,chassis=30
pcie-pci-bridge,id=bridge1,bus=port4
bochs-display,id=beside-network,bus=bridge1,addr=0x1
e1000,id=network,bus=bridge1,addr=0x2
"""


def arguments() -> list[str]:
    """QEMU's arguments for these devices."""
    words = []
    for line in _DEVICES.splitlines():
        if line:
            words += ['-device', line]
    return words
