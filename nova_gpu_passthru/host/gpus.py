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

"""All GPUs of this host: found, detached, claimed, counted."""

from collections.abc import Iterable, Sequence
import contextlib
import dataclasses
import json
import os

from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import binding
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import claims as host_claims
from nova_gpu_passthru.host import hypervisor as host_hypervisor
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy
from nova_gpu_passthru.host import pools as host_pools
from nova_gpu_passthru.host import processes
from nova_gpu_passthru import telemetry

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Usage:
    """What the scheduler is told of a host.

    :ivar pools: the cards by their model
    """

    pools: Sequence[host_pools.Pool]

    @property
    def total_gpus(self) -> int:
        """Cards that guests can have or have."""
        return sum(pool.total for pool in self.pools)

    @property
    def free_by_model(self) -> dict[str, int]:
        """Cards that a guest can have now."""
        return {pool.model: pool.free for pool in self.pools}

    @property
    def free_gpus(self) -> int:
        return sum(self.free_by_model.values())

    def to_json(self) -> str:
        """Writes what nova_gpu_passthru.scheduler.reports reads."""
        return json.dumps({'free_gpus': self.free_gpus,
                           'total_gpus': self.total_gpus,
                           'free_by_model': self.free_by_model},
                          sort_keys=True)


class HostGPUs:
    """The GPUs of one host and who holds them.

    Until start() it has none.

    :param sysfs: where cards are found
    :param hypervisor: where domains are read and cards detached
    :param root: the folder that has the proc and dev of this host
    """

    def __init__(self, sysfs: pci.Sysfs,
                 hypervisor: host_hypervisor.Hypervisor,
                 root: str | os.PathLike[str] = '/') -> None:
        self._sysfs = sysfs
        self._policy: host_policy.Policy | None = None
        self._binder = binding.Binder(
            sysfs, hypervisor, processes.Processes(sysfs, root))
        self._claims = host_claims.Claims(hypervisor)
        self._cards: tuple[host_cards.Card, ...] = ()
        self._failures: dict[pci.PCIAddress, str] = {}
        self._reported: dict[pci.PCIAddress, str] = {}

    @property
    def cards(self) -> tuple[host_cards.Card, ...]:
        """All candidates with their verdicts, as last read."""
        return self._cards

    def start(self, policy: host_policy.Policy,
              detach_timeout: float) -> None:
        """Finds the cards and detaches those that are offered and free.

        :param policy: what the operator wants
        :param detach_timeout: seconds that one card may take to be detached
        """
        self._policy = policy
        self._binder.timeout = detach_timeout
        self.refresh()
        self._log_guests_of_nova(policy)

    def refresh(self) -> None:
        """Looks at the host again and detaches what is offered.

        What a running domain has is left alone. One that is only defined
        needs its cards on a stub driver too, before it can start. While
        nobody knows what the domains hold nothing is detached. What failed to
        be detached is not tried again until nova-compute starts anew, but is
        offered when it is on a stub driver after all.
        """
        if self._policy is None:
            return
        cards = host_cards.find(self._sysfs, self._policy)
        if not cards and not self._cards:
            return
        self._claims.read_domains()
        if self._claims.known:
            in_use = self._claims.in_use(cards)
            waiting = [card for card in cards
                       if card.offered and not card.on_stub and
                       card.address not in in_use and
                       card.address not in self._failures]
            if waiting:
                self._failures.update(self._binder.detach(waiting))
                cards = host_cards.find(self._sysfs, self._policy)
        self._cards = tuple(self._with_failure(card) for card in cards)
        self._log_changes()

    def claim(self, uuid: str, request: flavor.GPURequest | None
              ) -> tuple[host_cards.Card, ...]:
        """Gives an instance the cards that it asks for, or those it has.

        :param uuid: the instance's
        :param request: what its flavor asks for, None for no GPU
        :returns: exactly as many cards as asked for, in the order of
            addresses
        :raises NotEnoughGPUs: if this host cannot give them
        """
        if request is None:
            self._claims.give_up(uuid)
            return ()
        with telemetry.timed('claim'):
            return self._claim(uuid, request)

    def _claim(self, uuid: str, request: flavor.GPURequest
               ) -> tuple[host_cards.Card, ...]:
        sockets = (self._sysfs.sockets() if request.affinity.nodes else {})
        while True:
            picked = self._claims.claim(uuid, request, self._cards, sockets)
            lost = {card for card in picked if not self._is_ready_now(card)}
            if not lost:
                return picked
            for card in lost:
                LOG.warning('GPU %s is not given: since the last look it went '
                            'to a host driver or fell off the bus', card)
            self._cards = tuple(
                card.withheld('it went to a host driver or fell off the bus '
                              'at run time; restart nova-compute once it is '
                              'back') if card in lost else card
                for card in self._cards)

    def _is_ready_now(self, card: host_cards.Card) -> bool:
        functions = (self._sysfs.function(f.address) for f in card.functions)
        return all(f is not None and f.on_stub and
                   self._sysfs.responds(f.address) for f in functions)

    def restore(self, requests: Iterable[tuple[str, flavor.GPURequest]]
                ) -> None:
        """Claims again, after a restart, for the instances of this host.

        Most have a domain that names their cards. One that lost it when the
        service ended, in a hard reboot say, or that was about to get more in
        a resize, gets cards picked for it now, so that nobody takes the last
        ones before it starts.

        :param requests: uuid and request of each instance that asks for GPUs
        """
        lacking = []
        for uuid, request in requests:
            held = self._claims.held_by(uuid)
            self._claims.keep(uuid)
            if sum(bool(card.addresses & held)
                   for card in self._cards) < request.count:
                lacking.append((uuid, request))
        for uuid, request in lacking:
            try:
                self.claim(uuid, request)
            except exceptions.NotEnoughGPUs as error:
                LOG.warning('%s It cannot start until there are.', error)

    def kept(self, uuid: str) -> contextlib.AbstractContextManager[None]:
        """Lets an instance keep its cards while it may have no domain.

        Until the end release() does nothing for this instance.
        """
        return self._claims.kept(uuid)

    def release(self, uuid: str) -> None:
        """Takes an instance's cards back once it has no domain."""
        if self._claims.release(uuid):
            LOG.info('GPUs of instance %(uuid)s are given back; free now: '
                     '%(free)d', {'uuid': uuid,
                                  'free': self.usage().free_gpus})

    def keep_for_revert(self, uuid: str) -> None:
        """Keeps what an instance has until confirm() or revert()."""
        self._claims.keep_for_revert(uuid)

    def for_revert(self, uuid: str) -> frozenset[pci.PCIAddress]:
        """What is kept for an instance in case its resize is reverted."""
        return self._claims.for_revert(uuid)

    def revert(self, uuid: str) -> None:
        """Lets an instance have what it had before, if it was kept."""
        self._claims.revert(uuid)

    def confirm(self, uuid: str) -> None:
        """Gives up what was kept for an instance in case of a revert."""
        self._claims.confirm(uuid)

    def check_own(self, uuid: str) -> None:
        """Looks whether an instance's domain may start as it is defined.

        :raises NotEnoughGPUs: if an address means another device by now
        """
        self._claims.check_own(uuid, self._cards)

    def held_by(self, uuid: str) -> frozenset[pci.PCIAddress]:
        """What an instance holds, by a claim or by its domain."""
        return self._claims.held_by(uuid)

    def holders(self) -> dict[pci.PCIAddress, tuple[str, ...]]:
        """Tells who holds each card: uuids by the card's address."""
        return self._claims.holders(self._cards)

    def usage(self) -> Usage:
        """Counts the cards of this host.

        While nobody knows what the domains hold, none is free.
        """
        return Usage(host_pools.count(self._cards, self.holders(),
                                      self._claims.known))

    def has_candidates(self) -> bool:
        """Whether the host has what is or could become an offered card."""
        return any(not card.host_display and card.main.physfn is None
                   for card in self._cards)

    def _with_failure(self, card: host_cards.Card) -> host_cards.Card:
        if not card.offered or card.on_stub:
            self._failures.pop(card.address, None)
            return card
        if card.address in self._failures:
            return card.withheld(self._failures[card.address])
        return card

    def _log_guests_of_nova(self, policy: host_policy.Policy) -> None:
        """Says who has to give up a card before it can be offered."""
        holders = self.holders()
        for card in self._cards:
            if card.address in holders and policy.nova_gives_part_of(
                    card.functions):
                LOG.warning(
                    'GPU %(card)s is held by instance %(uuids)s, and [pci] '
                    'device_spec names it. An instance that has it by an '
                    'alias has to be resized to a flavor that asks for GPUs '
                    'by free_gpus, or deleted, before the card is free for '
                    'others', {'card': card, 'uuids': ' and '.join(
                        holders[card.address])})

    def _log_changes(self) -> None:
        """Says each verdict once, and again when it changes."""
        for card in self._cards:
            if self._reported.get(card.address) == card.reason:
                continue
            self._reported[card.address] = card.reason
            if card.offered:
                LOG.info('GPU %s is offered to guests', card)
            else:
                LOG.info('GPU %(card)s is withheld: %(reason)s',
                         {'card': card, 'reason': card.reason})
        for address in self._reported.keys() - {
                card.address for card in self._cards}:
            del self._reported[address]
            LOG.warning('GPU %s is gone from the bus', address)
