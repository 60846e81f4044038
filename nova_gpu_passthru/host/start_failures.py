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


"""Finds the card because of which a guest did not start.

What libvirt raises then is its own text or what QEMU printed last:

    internal error: Unknown PCI header type '127' for device '0000:01:00.0'
    internal error: Unable to reset PCI device 0000:01:00.0: ...
    internal error: qemu unexpectedly closed the monitor: 2024-02-07T...
    qemu-system-x86_64: -device vfio-pci,host=0000:1a:00.0,...: vfio
    0000:1a:00.0: group 40 is not viable

In front of its message QEMU repeats the argument, which names the card also
where the guest's memory or its other devices are to blame.
"""

from collections.abc import Iterable
import re

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci

# The argument, up to the colon before the message; as JSON since QEMU 6.2.
_ARGUMENT = re.compile(r'-device (?:\{.*?\}|[^ ]+?): ')
_ADDRESS = re.compile(r'(?<![0-9a-f:])[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]'
                      r'\.[0-7](?![0-9a-f])', re.IGNORECASE)
_GROUP = re.compile(r'(?:\bgroup |/dev/vfio/)([0-9]+)\b')

# What names a card, and says that something else is short, forbidden or in
# the way: another card would fare no better, or only this guest fares badly.
_NOT_ITS_OWN = (
    'Cannot allocate memory', 'memory listener initialization failed',
    'MEMLOCK', 'limit locked memory', 'No space left on device',
    'Too many open files', 'Operation not permitted', 'Permission denied',
    'used in multiple address spaces', 'is in use by driver',
    'must be manually detached')

_LENGTH = 500


def blamed(text: str, cards: Iterable[host_cards.Card]
           ) -> list[host_cards.Card]:
    """Finds those of a guest's cards that kept it from starting.

    :param text: what libvirt raised
    :param cards: the guest's
    :returns: the cards whose function or IOMMU group the message names, none
        where what it says is not the card's own
    """
    if any(words in text for words in _NOT_ITS_OWN):
        return []
    message = _ARGUMENT.sub('', text)
    addresses = set()
    for match in _ADDRESS.finditer(message):
        try:
            addresses.add(pci.PCIAddress.parse(match.group()))
        except exceptions.InvalidPCIAddress:
            continue
    groups = {int(match.group(1)) for match in _GROUP.finditer(message)}
    by_address = [card for card in cards if card.addresses & addresses]
    return by_address or [card for card in cards
                          if card.iommu_groups & groups]


def shortened(text: str) -> str:
    """The end of what libvirt said, on one line: QEMU's message is there."""
    line = ' '.join(text.split())
    return line if len(line) <= _LENGTH else '...' + line[3 - _LENGTH:]
