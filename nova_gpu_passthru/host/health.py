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


"""Tells what makes a card sick. Changes nothing.

Only what is seen counts. A card may sleep: reading its configuration space
wakes it (pci_config_pm_runtime_get in the kernel's drivers/pci/pci.c resumes
a device that is in D3cold, and in other states it answers anyway), so its
power state says nothing. Nor does the lack of a reset method: such cards serve
guests well (Proxmox 458b487b).
"""

from collections.abc import Collection, Iterable, Mapping
import dataclasses
import re

from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci

_MODEL = re.compile('[0-9a-f]{4}:[0-9a-f]{4}')

_CURE = ('the kernel log may say why; rescan the bus (echo 1 > '
         '/sys/bus/pci/rescan) or power-cycle the host')


def fault(card: host_cards.Card, sysfs: pci.Sysfs) -> str:
    """Says why a card that was ready for guests is not any more.

    :param card: as it was last read
    :returns: what is wrong with it now, empty if a guest can have it
    """
    for function in card.functions:
        now = sysfs.function(function.address)
        if now is None:
            return f'{function.address} is gone from the bus'
        if now.model != function.model:
            return (f'{function.address} is another device now, of model '
                    f'{now.model}')
        if not now.on_stub:
            return (f'{function.address} is on {now.driver or "no driver"} '
                    f'now')
        if not sysfs.responds(function.address):
            return f'{function.address} does not answer on the bus'
    return ''


def gone(card: host_cards.Card,
         what: str = 'is gone from the bus') -> host_cards.Card:
    """Makes the card that is left in the books of one that is gone.

    It has no driver, so nothing takes it for ready.

    :param what: what is seen in its place
    """
    return dataclasses.replace(card, gone=True, functions=tuple(
        dataclasses.replace(f, driver=None) for f in card.functions)).withheld(
            f'{card.address} {what}; {_CURE}')


def gone_since_start(address: pci.PCIAddress, model: str,
                     addresses: Collection[pci.PCIAddress]
                     ) -> host_cards.Card:
    """Makes a card of which nothing but its domain's record is left.

    :param address: the card's
    :param model: its vendor and device id, such as 10de:2330
    :param addresses: what the domain names; what is in the card's slot
        belongs to it
    """
    vendor, _, device = model.partition(':')
    functions = [
        pci.PCIFunction(
            address=a, class_code=pci.UNKNOWN_CLASS, vendor=int(vendor, 16),
            device=int(device, 16) if a == address else 0, driver=None,
            iommu_group=None, physfn=None, bridges=())
        for a in sorted({address, *addresses}) if a.in_slot_of(address)]
    return gone(host_cards.Card(address, tuple(functions)))


def missing(given: Iterable[domain.DomainDevices],
            present: Collection[pci.PCIAddress]) -> list[host_cards.Card]:
    """Makes the cards that domains have been given and that are not there.

    :param given: what domains hold
    :param present: the functions of the cards that are there
    """
    return [gone_since_start(address, model, devices.addresses)
            for devices in given for address, model in devices.models.items()
            if address not in present and _MODEL.fullmatch(model)]


def incomplete(card: host_cards.Card, lost: Collection[pci.PCIAddress]
               ) -> host_cards.Card:
    """Withholds a card that has lost functions since it was found.

    :param lost: those that it had and that are not on the bus any more
    """
    names = ', '.join(str(address) for address in sorted(lost))
    return card.withheld(f'{names} is gone from the bus; {_CURE}, or restart '
                         f'nova-compute to offer the card without')


def obstructed(card: host_cards.Card,
               owners: Mapping[pci.PCIAddress, Iterable[str]]
               ) -> host_cards.Card:
    """Withholds a card of which vfio cannot have the memory.

    Where the firmware showed its console on a card, the framebuffer keeps its
    region after the driver has let go (kernels before commit d17378062079,
    Linux 6.0), and QEMU says "can't reserve".

    :param owners: who has requested regions of a function's BARs
    """
    if not card.ready:
        return card
    for function in card.functions:
        others = [name for name in owners.get(function.address, ())
                  if not name.startswith('vfio')]
        if others:
            return card.withheld(
                f'{", ".join(others)} holds memory of {function.address}, '
                f'which a guest would need; if that is the framebuffer of the '
                f"firmware's console, boot the host with "
                f'initcall_blacklist=sysfb_init')
    return card
