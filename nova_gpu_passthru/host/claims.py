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

"""Who holds which card.

The durable record is libvirt's: a card is held by every domain, running or
defined, that names one of its functions. What a claim adds is the time when
there is no domain: before it is defined, and while Nova undefines it to
define it anew (hard reboot, rebuild). All of it stands under one lock.
"""

import collections
from collections.abc import Collection, Iterable, Iterator, Mapping
import contextlib
import threading

import libvirt
from lxml import etree
from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.guest import domain as guest_domain
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import hypervisor as host_hypervisor
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import picking

LOG = logging.getLogger(__name__)

_Domains = dict[str, guest_domain.DomainDevices]


class Claims:
    """The holders of all cards of this host.

    :param hypervisor: where the domains are read
    """

    def __init__(self, hypervisor: host_hypervisor.Hypervisor) -> None:
        self._hypervisor = hypervisor
        self._lock = threading.RLock()
        self._claimed: dict[str, frozenset[pci.PCIAddress]] = {}
        self._domains: _Domains = {}
        self._absent: set[str] = set()
        self._kept: collections.Counter[str] = collections.Counter()
        self._known = False

    @property
    def known(self) -> bool:
        """Whether the domains could be read at least once."""
        return self._known

    def read_domains(self) -> None:
        """Reads what the domains hold.

        Failure to read is not evidence of freedom: if the domains cannot be
        read, what was known stays, and a domain that is not listed any more
        holds its cards until it is missing a second time.
        """
        with self._lock:
            listed = self._listed()
            if listed is None:
                return
            gone = {uuid for uuid in self._domains if uuid not in listed}
            for uuid in gone & self._absent:
                del self._domains[uuid]
            self._absent = gone - self._absent
            self._domains.update(listed)

    def holders(self, cards: Iterable[host_cards.Card]
                ) -> dict[pci.PCIAddress, tuple[str, ...]]:
        """Tells who holds each card.

        :returns: uuids of instances and domains by the card's address; cards
            that nobody holds are left out
        """
        with self._lock:
            found = {}
            for card in cards:
                holders = tuple(sorted(
                    uuid for uuid, addresses in self._held().items()
                    if addresses & card.addresses))
                if holders:
                    found[card.address] = holders
            return found

    def in_use(self, cards: Iterable[host_cards.Card]
               ) -> set[pci.PCIAddress]:
        """Tells which cards a running domain has, by their address."""
        with self._lock:
            used = {address for devices in self._domains.values()
                    if devices.running for address in devices.addresses}
            return {card.address for card in cards if card.addresses & used}

    def claim(self, uuid: str, request: flavor.GPURequest,
              cards: Collection[host_cards.Card]
              ) -> tuple[host_cards.Card, ...]:
        """Gives an instance the cards that it asks for, or those it has.

        :param uuid: the instance's
        :param request: what its flavor asks for
        :param cards: all cards of this host
        :returns: exactly as many cards as asked for, in the order of
            addresses
        :raises NotEnoughGPUs: if this host cannot give them
        """
        with self._lock:
            self._read_new_domains()
            if not self._known:
                raise exceptions.NotEnoughGPUs(
                    f'Instance {uuid} asks for {request}, but libvirt does '
                    f'not tell which cards are in use; see the log of '
                    f'nova-compute.')
            held = self._held()
            own_addresses = held.pop(uuid, frozenset())
            own = [card for card in cards
                   if card.addresses & own_addresses and
                   not self._renumbered(uuid, card)]
            # What a guest has stays its own, also where the operator has
            # excluded it since.
            fitting = [card for card in cards
                       if request.model in (None, card.model) and
                       (card.ready or card in own and card.on_stub and
                        card.by_choice)]
            free = available(fitting, frozenset().union(*held.values()),
                             cards)
            picked = picking.choose(free, request.count, own)
            if picked is None:
                raise exceptions.NotEnoughGPUs(
                    f'Instance {uuid} asks for {request}; of {len(fitting)} '
                    f'such on this host {len(free)} are free for it.')
            self._claimed[uuid] = frozenset(
                a for card in picked for a in card.addresses)
            return picked

    def keep(self, uuid: str) -> None:
        """Claims for an instance what its domain holds."""
        with self._lock:
            addresses = self._held().get(uuid)
            if addresses:
                self._claimed[uuid] = addresses

    @contextlib.contextmanager
    def kept(self, uuid: str) -> Iterator[None]:
        """Lets an instance keep its cards while it may have no domain.

        Until the end release() does nothing for this instance.
        """
        with self._lock:
            self.keep(uuid)
            self._kept[uuid] += 1
        try:
            yield
        finally:
            with self._lock:
                self._kept[uuid] -= 1
                if not self._kept[uuid]:
                    del self._kept[uuid]

    def release(self, uuid: str) -> bool:
        """Ends an instance's claim; its domain, if any, still holds.

        :returns: whether the instance had cards and does not any more
        """
        with self._lock:
            held = bool(self._held().get(uuid)) and uuid not in self._kept
            if not held:
                return False
            listed = self._listed()
            if listed is None:
                # As if a domain held it, until two readings miss that.
                self._domains[uuid] = guest_domain.DomainDevices(
                    uuid, '', self._held()[uuid])
            elif uuid not in listed:
                self._domains.pop(uuid, None)
            self._claimed.pop(uuid, None)
            return not self._held().get(uuid)

    def has_claim(self, uuid: str) -> bool:
        """Whether an instance holds cards, by a claim or by its domain."""
        with self._lock:
            return bool(self._held().get(uuid))

    def domains(self) -> Mapping[str, guest_domain.DomainDevices]:
        """What each domain holds, by its uuid, as last read."""
        with self._lock:
            return dict(self._domains)

    def _held(self) -> dict[str, frozenset[pci.PCIAddress]]:
        held = {uuid: devices.addresses
                for uuid, devices in self._domains.items()}
        for uuid, addresses in self._claimed.items():
            held[uuid] = held.get(uuid, frozenset()) | addresses
        return held

    def _read_new_domains(self) -> None:
        """Learns of domains since the last reading; forgets none."""
        listed = self._listed() or {}
        self._domains.update(listed)
        self._absent -= listed.keys()

    def _renumbered(self, uuid: str, card: host_cards.Card) -> bool:
        """Whether an instance's domain means another card by this address.

        Bus numbers may change when the host boots.
        """
        devices = self._domains.get(uuid)
        if devices is None:
            return False
        model = devices.models.get(card.address, card.model)
        if model == card.model:
            return False
        LOG.warning('The domain of instance %(uuid)s names %(address)s, where '
                    'it had a card of model %(had)s; now a %(has)s is there, '
                    'which it does not get',
                    {'uuid': uuid, 'address': card.address, 'had': model,
                     'has': card.model})
        return True

    def _listed(self) -> _Domains | None:
        """Reads all domains, None if that fails."""
        try:
            listed: _Domains = {}
            for description in self._hypervisor.domains():
                devices = guest_domain.read(*description)
                known = listed.get(devices.uuid)
                listed[devices.uuid] = (
                    devices if known is None else known.merged(devices))
        except (libvirt.libvirtError, etree.XMLSyntaxError) as error:
            LOG.warning('The domains cannot be read, so no card counts as '
                        'given back for now: %s', error)
            return None
        self._known = True
        return listed


def available(cards: Iterable[host_cards.Card],
              held: Collection[pci.PCIAddress],
              all_cards: Iterable[host_cards.Card]
              ) -> list[host_cards.Card]:
    """Finds the cards that nobody holds and that are not stranded.

    :param cards: the cards to choose from
    :param held: the functions that somebody holds
    :param all_cards: the cards of the host, whose IOMMU groups are closed
        for others when one is held
    """
    closed = {group for card in all_cards
              if not card.addresses.isdisjoint(held)
              for group in card.iommu_groups}
    return [card for card in cards if card.addresses.isdisjoint(held) and
            card.iommu_groups.isdisjoint(closed)]
