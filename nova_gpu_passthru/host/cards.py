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

"""Finds the cards of a host and gives each its verdict.

Pure functions of a sysfs root and the operator's policy.
"""

import dataclasses

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import grouping
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy

# Displays that belong to the machine, not to its users.
_SERVICE_DISPLAYS = {
    0x1a03: "an ASPEED management controller's",
    0x102b: "a Matrox management controller's",
    0x19e5: "a Huawei management controller's",
    0x1013: 'an emulated Cirrus',
    0x1234: 'an emulated QEMU',
    0x1b36: 'an emulated QXL',
    0x1af4: 'an emulated virtio',
    0x15ad: 'an emulated VMware',
}


@dataclasses.dataclass(frozen=True)
class Card:
    """What a guest is given: a GPU with its companions.

    :ivar address: the function that makes it a GPU; names the card
    :ivar functions: all functions of the card, in the order of addresses
    :ivar numa_node: None where the firmware names none
    :ivar memory_bytes: what its BARs map into the guest, in bytes
    :ivar boot_vga: whether the firmware shows the console on it
    :ivar host_display: whether it is a display that stays with the host
    :ivar reason: why it is withheld, for a person; empty if it is offered
    :ivar by_choice: whether only the operator's policy withholds it
    :ivar kept_by_holder: whether a guest that has it may have it again
    :ivar returning: whether it is withheld only until its release is done
    :ivar silent: whether it is withheld only because it does not answer
    :ivar gone: whether it is not on the bus any more
    """

    address: pci.PCIAddress
    functions: tuple[pci.PCIFunction, ...]
    numa_node: int | None = None
    memory_bytes: int = 0
    boot_vga: bool = False
    host_display: bool = False
    reason: str = ''
    by_choice: bool = False
    kept_by_holder: bool = False
    returning: bool = False
    silent: bool = False
    gone: bool = False

    @property
    def offered(self) -> bool:
        return not self.reason

    @property
    def addresses(self) -> frozenset[pci.PCIAddress]:
        return frozenset(f.address for f in self.functions)

    @property
    def main(self) -> pci.PCIFunction:
        return next(f for f in self.functions if f.address == self.address)

    @property
    def companions(self) -> tuple[pci.PCIFunction, ...]:
        return tuple(f for f in self.functions if f.address != self.address)

    @property
    def model(self) -> str:
        """Vendor and device id of the GPU, such as 10de:2330."""
        return self.main.model

    @property
    def iommu_groups(self) -> frozenset[int]:
        return frozenset(f.iommu_group for f in self.functions
                         if f.iommu_group is not None)

    @property
    def on_stub(self) -> bool:
        """Whether stub drivers hold every function for a guest."""
        return all(f.on_stub for f in self.functions)

    @property
    def on_host_driver(self) -> bool:
        """Whether the host uses a function of it."""
        return any(f.driver and not f.on_stub for f in self.functions)

    @property
    def stays_with_host(self) -> bool:
        """Whether it is withheld without anything being wrong.

        The operator excludes it, it is a display of the machine's own, or a
        virtual function.
        """
        return bool(self.reason) and (self.by_choice or self.host_display or
                                      self.main.physfn is not None)

    @property
    def ready(self) -> bool:
        """Whether a guest can be given the card as it is now."""
        return self.offered and self.on_stub

    def withheld(self, reason: str, by_choice: bool = False,
                 kept_by_holder: bool = False,
                 returning: bool = False) -> 'Card':
        """The same card, kept back for a reason."""
        return dataclasses.replace(
            self, reason=reason, by_choice=by_choice,
            kept_by_holder=by_choice or kept_by_holder, returning=returning)

    def __str__(self) -> str:
        return f'{self.address} ({self.model})'


def find(sysfs: pci.Sysfs,
         policy: host_policy.Policy) -> tuple[Card, ...]:
    """Finds the cards of a host with their verdicts.

    :param sysfs: where to read
    :param policy: what the operator wants
    :returns: every candidate, offered or withheld, in the order of addresses
    """
    functions = sysfs.functions()
    cards = [_judged(main, own, functions, sysfs, policy)
             for main, own in grouping.group(functions, policy)]
    cards = _with_console_kept(cards, policy)
    if not sysfs.is_xen():
        cards = _with_groups_viable(cards, functions)
    return tuple(sorted(cards, key=lambda card: card.address))


def _judged(main: pci.PCIFunction, own: tuple[pci.PCIFunction, ...],
            functions: grouping.Functions, sysfs: pci.Sysfs,
            policy: host_policy.Policy) -> Card:
    """Makes a card with the verdict that it has by itself."""
    card = Card(main.address, own)
    if main.physfn is not None:
        return card.withheld(f'it is a virtual function of {main.physfn}')
    try:
        card = dataclasses.replace(
            card, numa_node=sysfs.numa_node(main.address),
            memory_bytes=sum(sysfs.memory_bytes(f.address) for f in own),
            boot_vga=any(sysfs.boot_vga(f.address) for f in own))
        impossible = _impossible(card, sysfs) or _mixed(card)
    except exceptions.Unreadable as error:
        return card.withheld(f'{error}; the kernel log may say why')
    unwanted = (_excluded(card, policy) or
                _of_the_host(card, functions, policy))
    silent = _silent(card, sysfs)
    return dataclasses.replace(
        card, reason=unwanted or impossible or silent,
        by_choice=bool(unwanted) and not (impossible or silent),
        silent=bool(silent) and not (unwanted or impossible),
        host_display=bool(unwanted) and _may_be_console(main) and
        sysfs.responds(main.address))


def _may_be_console(function: pci.PCIFunction) -> bool:
    """Whether a display can show the host's console.

    A 3D controller has no outputs, and a stub driver shows nothing.
    """
    return (function.base_class == grouping.DISPLAY and
            function.subclass != grouping.CONTROLLER_3D and
            not function.on_stub)


def _impossible(card: Card, sysfs: pci.Sysfs) -> str:
    """Says what rules a card out whatever the operator wants."""
    for function in card.functions:
        address = function.address
        if function.fault:
            return f'{address} {function.fault}'
        if address.domain > 0xffff:
            return (f'PCI domain {address.domain:04x} has more than 16 bits, '
                    f'which QEMU cannot pass; turn off VMD for its slot in '
                    f'the firmware')
        enabled = sysfs.enabled_vfs(address)
        if enabled:
            return (f'{address} serves virtual functions ({enabled} now); set '
                    f'its sriov_numvfs to 0 to offer the whole card')
        mdevs = sysfs.live_mdevs(address)
        if mdevs:
            return (f'{address} serves mediated devices ({mdevs} now); remove '
                    f'them to offer the whole card')
        if function.iommu_group is None and not sysfs.is_xen():
            return (f'{address} is in no IOMMU group; enable the IOMMU in '
                    f'the firmware and on the kernel command line')
    return ''


def _silent(card: Card, sysfs: pci.Sysfs) -> str:
    """Says which function of a card does not answer."""
    for function in card.functions:
        if not sysfs.responds(function.address):
            return (f'{function.address} does not answer on the bus (its '
                    f'configuration space reads all ones); power-cycle the '
                    f'host')
    return ''


def _excluded(card: Card, policy: host_policy.Policy) -> str:
    for function in card.functions:
        if policy.exclude.names(function):
            return f'[gpu_passthru] exclude names {function.address}'
        if policy.nova_gives(function):
            return (f'[pci] device_spec names {function.address}, so Nova '
                    f'gives it to guests by an alias; take it out of '
                    f'device_spec to have the card offered here')
    return ''


def _of_the_host(card: Card, functions: grouping.Functions,
                 policy: host_policy.Policy) -> str:
    """Says why a display stays with the host unless it is included."""
    if grouping.is_included(card.main, policy):
        return ''
    cure = 'name it in [gpu_passthru] include to offer it all the same'
    if (card.main.vendor in _SERVICE_DISPLAYS and
            card.main.base_class == grouping.DISPLAY):
        return f'it is {_SERVICE_DISPLAYS[card.main.vendor]} display; {cure}'
    if grouping.is_integrated(card.main, functions):
        return f'it is graphics integrated in the CPU; {cure}'
    return ''


def _mixed(card: Card) -> str:
    """Says what a slot holds beside the GPU that no GPU board has."""
    for function in card.companions:
        if not grouping.goes_along(function):
            return (f'{function.address} in the same slot has class '
                    f'{function.subclass:04x}, which no GPU board has, and '
                    f'only a whole device can be passed')
    return ''


def _with_console_kept(cards: list[Card],
                       policy: host_policy.Policy) -> list[Card]:
    """Withholds a boot VGA where the host would lose its console.

    One that a stub driver holds shows no console any more; one without any
    driver may still show the firmware's framebuffer.
    """
    host_has_display = any(card.host_display for card in cards)

    def judged(card: Card) -> Card:
        if not (card.offered and card.boot_vga):
            return card
        if policy.boot_vga is host_policy.BootVGA.WITHHOLD:
            return card.withheld('it is the boot VGA, and [gpu_passthru] '
                                 'boot_vga is set to withhold',
                                 by_choice=True)
        if (policy.boot_vga is host_policy.BootVGA.OFFER or
                card.main.on_stub or host_has_display):
            return card
        return card.withheld(
            'it is the boot VGA and no other display stays with the host; '
            'set [gpu_passthru] boot_vga to offer to give the console away',
            by_choice=True)

    return [judged(card) for card in cards]


def _with_groups_viable(cards: list[Card],
                        functions: grouping.Functions) -> list[Card]:
    """Withholds cards whose IOMMU group holds what cannot go along.

    vfio opens a group only when every endpoint in it is out of the hands of
    the host's drivers, for a guest could reach them all
    (Documentation/driver-api/vfio.rst), and no bridge in it has a driver that
    insists on it. A card that is withheld for this may be the stranger in
    another card's group, so this goes on until nothing changes. One that is
    on its stub driver and does not answer is none: vfio opens the group all
    the same, and no other guest gets it.
    """
    groups: dict[int, list[pci.PCIFunction]] = {}
    for function in functions.values():
        if function.iommu_group is not None and not (
                grouping.is_bridge(function) and
                grouping.lets_go_of_group(function)):
            groups.setdefault(function.iommu_group, []).append(function)
    while True:
        given = {a for card in cards
                 if card.offered or card.silent and card.on_stub
                 for a in card.addresses}

        def judged(card: Card) -> Card:
            strangers = [f for number in sorted(card.iommu_groups)
                         for f in groups[number] if f.address not in given]
            if not card.offered or not strangers:
                return card
            return card.withheld(_not_viable(strangers))

        rejudged = [judged(card) for card in cards]
        if rejudged == cards:
            return cards
        cards = rejudged


def _not_viable(strangers: list[pci.PCIFunction]) -> str:
    """Says what is in a card's IOMMU group that keeps vfio from it."""
    group = f'its IOMMU group {strangers[0].iommu_group} also holds '
    endpoints = [f for f in strangers if not grouping.is_bridge(f)]
    if endpoints:
        names = ', '.join(f'{f.address} ({f.model}, {f.driver or "no driver"})'
                          for f in endpoints)
        return (f'{group}{names}, which would have to go along; move the '
                f'card to a slot with a group of its own, or enable ACS in '
                f'the firmware')
    names = ', '.join(f'{f.address} on driver {f.driver}' for f in strangers)
    unbind = ' and '.join(
        f'echo {f.address} > /sys/bus/pci/drivers/{f.driver}/unbind'
        for f in strangers)
    return (f'{group}the bridge {names}, which does not let vfio have the '
            f'group; take the driver off it ({unbind})')
