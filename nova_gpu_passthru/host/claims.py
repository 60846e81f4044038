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

from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.guest import domain as guest_domain
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import domains as host_domains
from nova_gpu_passthru.host import fitting
from nova_gpu_passthru.host import hypervisor as host_hypervisor
from nova_gpu_passthru.host import pci

LOG = logging.getLogger(__name__)


class Claims:
    """The holders of all cards of this host.

    :param hypervisor: where the domains are read
    """

    def __init__(self, hypervisor: host_hypervisor.Hypervisor) -> None:
        self._lock = threading.RLock()
        self._domains = host_domains.Domains(hypervisor)
        self._claimed: dict[str, frozenset[pci.PCIAddress]] = {}
        self._for_revert: dict[str, frozenset[pci.PCIAddress]] = {}
        self._kept: collections.Counter[str] = collections.Counter()

    @property
    def known(self) -> bool:
        """Whether the domains could be read at least once."""
        return self._domains.known

    def read_domains(self) -> None:
        """Reads what the domains hold; call it once a period."""
        with self._lock:
            self._domains.read()

    def read_new_domains(self) -> None:
        """Learns what domains hold by now; none counts as gone."""
        with self._lock:
            self._domains.read_new()

    def holders(self, cards: Iterable[host_cards.Card]
                ) -> dict[pci.PCIAddress, tuple[str, ...]]:
        """Tells who holds each card.

        :returns: uuids of instances and domains by the card's address; cards
            that nobody holds are left out
        """
        with self._lock:
            found = {}
            held = self._held()
            for card in cards:
                holders = tuple(sorted(
                    uuid for uuid, addresses in held.items()
                    if addresses & card.addresses))
                if holders:
                    found[card.address] = holders
            return found

    def in_use(self, cards: Iterable[host_cards.Card]
               ) -> set[pci.PCIAddress]:
        """Tells which cards a running domain has, by their address.

        Not what it has lost, though it is defined with it still.
        """
        with self._lock:
            used = {address for devices in self._domains.devices.values()
                    for address in devices.live}
            return {card.address for card in cards if card.addresses & used}

    def is_free(self, card: host_cards.Card) -> bool:
        """Asks libvirt anew whether nobody has a card.

        :returns: False also where libvirt does not tell
        """
        with self._lock:
            return self._domains.read_new() and not self.holders([card])

    def given(self) -> list[guest_domain.DomainDevices]:
        """Tells what the domains hold, as last read."""
        with self._lock:
            return list(self._domains.devices.values())

    def claim(self, uuid: str, request: flavor.GPURequest,
              cards: Collection[host_cards.Card],
              sockets: Mapping[int, int] | None = None
              ) -> tuple[host_cards.Card, ...]:
        """Gives an instance the cards that it asks for, or those it has.

        What it has beyond that is given up, unless it is kept for a revert.

        :param uuid: the instance's
        :param request: what its flavor asks for
        :param cards: all cards of this host
        :param sockets: the CPU socket of each NUMA node of this host
        :returns: exactly as many cards as asked for
        :raises NotEnoughGPUs: if this host cannot give them
        """
        with self._lock:
            if self._has_all(uuid, request, cards):
                # Most calls are for what an earlier one gave: nobody else
                # has to be asked.
                with contextlib.suppress(exceptions.NotEnoughGPUs):
                    return self._pick(uuid, request, cards, sockets or {},
                                      readable=False)
            return self._pick(uuid, request, cards, sockets or {},
                              readable=self._domains.read_new())

    def _has_all(self, uuid: str, request: flavor.GPURequest,
                 cards: Iterable[host_cards.Card]) -> bool:
        claimed = self._claimed.get(uuid, frozenset())
        return sum(not card.addresses.isdisjoint(claimed)
                   for card in cards) == request.count

    def _pick(self, uuid: str, request: flavor.GPURequest,
              cards: Collection[host_cards.Card], sockets: Mapping[int, int],
              readable: bool) -> tuple[host_cards.Card, ...]:
        """Picks cards, without new ones while the domains are not read."""
        held = self._held()
        own_addresses = held.pop(uuid, frozenset())
        moved = self.moved(uuid, cards)
        for card in cards:
            if card.address in moved:
                LOG.warning('The domain of instance %(uuid)s names '
                            '%(address)s, where it had a card of model '
                            '%(had)s; now a %(has)s is there, so its cards '
                            'are picked anew',
                            {'uuid': uuid, 'address': card.address,
                             'had': moved[card.address], 'has': card.model})
        picked = fitting.pick(uuid, request, fitting.Situation(
            cards=cards, sockets=sockets, readable=readable,
            own=[card for card in cards if card.addresses & own_addresses and
                 card.address not in moved],
            moved=list(moved.values()),
            # What is being released closes its IOMMU group as well.
            taken=frozenset().union(*held.values(), *(
                card.addresses for card in cards if card.returning))))
        self._claimed[uuid] = frozenset(
            a for card in picked for a in card.addresses)
        return picked

    def give_up(self, uuid: str) -> None:
        """Ends the claim of an instance that asks for no card any more.

        Its domain, until it is defined anew, and a revert still hold theirs.
        """
        with self._lock:
            self._claimed.pop(uuid, None)

    def put_back(self, uuid: str,
                 claimed: frozenset[pci.PCIAddress]) -> None:
        """Lets an instance have claimed what it had before it asked for more.

        :param claimed: what claimed_by() told then
        """
        with self._lock:
            if claimed:
                self._claimed[uuid] = claimed
            else:
                self._claimed.pop(uuid, None)

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

    def check_own(self, uuid: str,
                  cards: Collection[host_cards.Card]) -> None:
        """Looks whether an instance's domain may start as it is defined.

        :param uuid: the instance's
        :param cards: all cards of this host
        :raises NotEnoughGPUs: if an address means another device by now
        """
        with self._lock:
            self._domains.read_new()
            models = self._models_in_domain(uuid)
            present = {card.address: card.model for card in cards
                       if card.on_stub}
            for address, model in models.items():
                if present.get(address) != model:
                    raise exceptions.NotEnoughGPUs(
                        f'The domain of instance {uuid} was given GPU '
                        f'{address} ({model}), which is not there any more. '
                        f'Hard reboot the instance to give it another one.')

    def release(self, uuid: str) -> bool:
        """Ends an instance's claim; its domain, if any, still holds.

        :returns: whether the instance had cards and does not any more
        """
        with self._lock:
            held = bool(self._held().get(uuid)) and uuid not in self._kept
            if not held:
                return False
            self._domains.forget(uuid, guest_domain.DomainDevices(
                uuid, '', self.held_by(uuid)))
            self._claimed.pop(uuid, None)
            self._for_revert.pop(uuid, None)
            return not self._held().get(uuid)

    def keep_for_revert(self, uuid: str) -> None:
        """Keeps what an instance has until confirm() or revert()."""
        with self._lock:
            self._for_revert[uuid] = self.held_by(uuid)

    def for_revert(self, uuid: str) -> frozenset[pci.PCIAddress]:
        """What is kept for an instance in case its resize is reverted."""
        with self._lock:
            devices = self._domains.devices.get(uuid)
            return self._for_revert.get(
                uuid, devices.for_revert if devices else frozenset())

    def revert(self, uuid: str) -> None:
        """Lets an instance have what it had before, if it was kept."""
        with self._lock:
            had = self.for_revert(uuid)
            if had:
                self._claimed[uuid] = had
                self._for_revert.pop(uuid, None)
                self._domains.drop(uuid)

    def confirm(self, uuid: str) -> None:
        """Gives up what was kept for an instance in case of a revert.

        The domain's metadata is written anew, so that a restart does not
        bring it back. While that fails, the cards stay kept.
        """
        with self._lock:
            if self._domains.confirm(uuid):
                self._for_revert.pop(uuid, None)

    def held_by(self, uuid: str) -> frozenset[pci.PCIAddress]:
        """What an instance holds, by a claim or by its domain."""
        with self._lock:
            return self._held().get(uuid, frozenset())

    def claimed_by(self, uuid: str) -> frozenset[pci.PCIAddress]:
        """What an instance was given last, not what its domain had before."""
        with self._lock:
            return self._claimed.get(uuid, frozenset())

    def models_of(self, uuid: str, cards: Iterable[host_cards.Card]
                  ) -> dict[str, int]:
        """Tells how many cards of each model an instance was given last.

        :param cards: all cards of this host
        """
        with self._lock:
            given = self.claimed_by(uuid) or self.held_by(uuid)
            models = self._models_in_domain(uuid)
            return dict(collections.Counter(
                models.get(card.address, card.model) for card in cards
                if card.addresses & given))

    def moved(self, uuid: str, cards: Iterable[host_cards.Card]
              ) -> dict[pci.PCIAddress, str]:
        """Finds addresses by which an instance's domain means another card.

        Bus numbers may change when the host boots, and cards be replaced.

        :param cards: all cards of this host
        :returns: by the address, the model that the card there had
        """
        with self._lock:
            models = self._models_in_domain(uuid)
            return {card.address: models[card.address] for card in cards
                    if models.get(card.address, card.model) != card.model}

    def _models_in_domain(self, uuid: str) -> Mapping[pci.PCIAddress, str]:
        devices = self._domains.devices.get(uuid)
        return devices.models if devices is not None else {}

    def runs(self, uuid: str) -> bool:
        """Whether an instance's domain was running when it was last read."""
        with self._lock:
            devices = self._domains.devices.get(uuid)
            return devices is not None and devices.running

    def _held(self) -> dict[str, frozenset[pci.PCIAddress]]:
        held = {uuid: devices.held
                for uuid, devices in self._domains.devices.items()}
        for more in (self._claimed, self._for_revert):
            for uuid, addresses in more.items():
                held[uuid] = held.get(uuid, frozenset()) | addresses
        return held
