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

"""Makes a guest's physical address space wide enough for its cards.

QEMU gives a guest 40 address bits unless told otherwise (TCG_PHYS_ADDR_BITS
in its target/i386/cpu.h), and OVMF an eighth of that to PCI devices
(PlatformDynamicMmioWindow in edk2's OvmfPkg/Library/PlatformInitLib). One
card with 128 GiB of memory fills that; the next one is not initialised.

The firmware rounds up: the window of each root port begins at a multiple of
the largest BAR below it. Seen with OVMF 2022.11: of three cards with 32 GiB
and 32 MiB each, the third does not fit into 128 GiB.
"""

from collections.abc import Iterable, Sequence

from lxml import etree

from nova_gpu_passthru.host import cards as host_cards

_DEFAULT_SPACE = 1 << 40
_DEFAULT_PCI_SPACE = _DEFAULT_SPACE >> 3

_UNITS = {'b': 1, 'bytes': 1, 'k': 1 << 10, 'kib': 1 << 10, 'm': 1 << 20,
          'mib': 1 << 20, 'g': 1 << 30, 'gib': 1 << 30, 't': 1 << 40,
          'tib': 1 << 40}


def widen(root: etree._Element, cards: Iterable[host_cards.Card]) -> None:
    """Gives a guest the host's address width if its cards need that.

    What the flavor or image says (hw:maxphysaddr_mode) is left as it is, and
    so are guests of other architectures.

    :param root: the domain
    :param cards: what it gets
    """
    cpu = root.find('cpu')
    arch = root.find('os/type').get('arch', 'x86_64')
    if cpu is None or cpu.find('maxphysaddr') is not None or (
            arch != 'x86_64'):
        return
    needed = _needed([card.memory_bytes for card in cards])
    if (needed > _DEFAULT_PCI_SPACE or
            needed + _guest_memory(root) > _DEFAULT_SPACE):
        etree.SubElement(cpu, 'maxphysaddr', mode='passthrough')


def _needed(sizes: Sequence[int]) -> int:
    """How much address space cards take with what lies between them.

    :param sizes: what the BARs of each map, in bytes
    """
    # A card's largest BAR is a power of two, and more than half of it all.
    rounded = [1 << (size - 1).bit_length() if size else 0 for size in sizes]
    # Nothing has to begin after the last one.
    unused = min((r - size for r, size in zip(rounded, sizes)), default=0)
    return sum(rounded) - unused


def _guest_memory(root: etree._Element) -> int:
    """The guest's memory in bytes."""
    memory = root.find('memory')
    if memory is None or not memory.text:
        return 0
    unit = memory.get('unit', 'KiB').lower()
    return int(memory.text) * _UNITS.get(unit, 1 << 10)
