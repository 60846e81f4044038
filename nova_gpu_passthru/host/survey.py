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


"""Looks at the cards of the host again and again, and detaches them."""

from collections.abc import Callable, Collection, Iterable
import os
import pathlib
import threading

from nova_gpu_passthru.host import binding
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import claims as host_claims
from nova_gpu_passthru.host import health
from nova_gpu_passthru.host import iomem
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy

# Withholds cards for what is known of them otherwise.
Judge = Callable[[Collection[host_cards.Card]], tuple[host_cards.Card, ...]]


class Survey:
    """The cards of a host as they are, compared with what they were.

    :param sysfs: where cards are found
    :param binder: what detaches them
    :param claims: who holds what
    :param judge: withholds cards for what is recorded of them
    :param root: the folder that has the proc of this host
    :ivar cards: all candidates with the verdicts that they have by
        themselves; one that is gone while somebody holds it stays
    """

    def __init__(self, sysfs: pci.Sysfs, binder: binding.Binder,
                 claims: host_claims.Claims, judge: Judge,
                 root: str | os.PathLike[str] = '/') -> None:
        self.cards: tuple[host_cards.Card, ...] = ()
        self._sysfs = sysfs
        self._claims = claims
        self._judge = judge
        self._binder = binder
        self._iomem = pathlib.Path(root) / 'proc' / 'iomem'
        self._policy: host_policy.Policy | None = None
        self._lock = threading.Lock()
        self._failures: dict[pci.PCIAddress, str] = {}
        # Cards that waited for guests at the last look, and as which device.
        self._idle: dict[pci.PCIAddress, tuple[str, int | None]] = {}
        # The functions of each slot's card as far as they were ever seen, and
        # their models.
        self._whole: dict[tuple[int, int, int],
                          dict[pci.PCIAddress, str]] = {}

    def start(self, policy: host_policy.Policy,
              detach_timeout: float) -> None:
        """Sets what shall be found; nothing is before.

        :param policy: what the operator wants
        :param detach_timeout: seconds that one card may take to be detached
        """
        self._policy = policy
        self._binder.timeout = detach_timeout

    def has_cards(self) -> bool:
        """Whether the host has cards, or had them at the last look."""
        return self._policy is not None and bool(
            self.cards or host_cards.find(self._sysfs, self._policy))

    def look(self, detach: bool = False) -> None:
        """Reads the cards again.

        What a running domain has is left alone. One that is only defined
        needs its cards on a stub driver too, before it can start. While
        nobody knows what the domains hold nothing is detached. What failed to
        be detached, and what the host has taken while it waited for guests,
        is not tried again until nova-compute starts anew or an operator
        offers it, but is offered when it is on a stub driver after all.

        :param detach: whether to detach what is offered
        """
        with self._lock:
            waiting = self._update()
        if detach and waiting:
            failures = self._binder.detach(
                waiting, lambda card: self._belongs_to_guests(
                    card, *self._judge([card])))
            with self._lock:
                self._failures.update(failures)
                self._update()

    def _update(self) -> list[host_cards.Card]:
        """Reads the cards again.

        :returns: those that are to be detached
        """
        cards = self._found()
        waiting = self._waiting(cards) if self._claims.known else []
        self.cards = tuple(self._with_failure(card) for card in cards)
        holders = self._claims.holders(self.cards)
        self._idle = {card.address: self._device(card)
                      for card in self._judge(self.cards)
                      if card.ready and card.address not in holders}
        return waiting

    def try_again(self, addresses: Iterable[pci.PCIAddress]) -> None:
        """Lets the next look detach what it gave up."""
        with self._lock:
            for address in addresses:
                self._failures.pop(address, None)
                self._idle.pop(address, None)

    def make_ready(self, card: host_cards.Card) -> str:
        """Detaches a card again that its release left with a host driver.

        And reads it back, so that it does not count as what it was before.

        :returns: why that failed; a card that is sick has its own verdict
        """
        failure = self._detach_again(card)
        self.look()
        return failure

    def _detach_again(self, card: host_cards.Card) -> str:
        with self._lock:
            cards = self._found()
        now = next((c for c in cards if c.address == card.address),
                   None)
        if now is None or not now.offered or now.on_stub:
            return ''
        return self._binder.detach(
            [now], lambda card: self._judge([card])[0].returning
        ).get(card.address, '')

    def _found(self) -> list[host_cards.Card]:
        if self._policy is None:
            return []
        owners = iomem.owners(self._iomem)
        found = [health.obstructed(self._complete(card), owners)
                 for card in host_cards.find(self._sysfs, self._policy)]
        return sorted([*found, *self._gone(found)],
                      key=lambda card: card.address)

    def _complete(self, card: host_cards.Card) -> host_cards.Card:
        """Withholds a card of which functions have gone since it was found.

        Also where that is the function that named it and another one of the
        slot is a display as well.
        """
        if card.main.physfn is not None:
            return card  # it shares the slot with what serves it
        now = {f.address: f.model for f in card.functions if not f.fault}
        slot = (card.address.domain, card.address.bus, card.address.slot)
        before = self._whole.get(slot, {})
        if any(before.get(address, model) != model
               for address, model in now.items()):
            before = {}  # of another card
        self._whole[slot] = before | now
        lost = [address for address in before.keys() - card.addresses
                if self._sysfs.function(address) is None]
        return health.incomplete(card, lost) if (
            lost and card.offered) else card

    def _gone(self, found: Iterable[host_cards.Card]
              ) -> list[host_cards.Card]:
        """Finds cards that somebody holds and that are not there any more."""
        present = {address for card in found for address in card.addresses}
        missing = {card.address: card for card in health.missing(
            self._claims.given(), present)}
        # What it was when it was last seen says more.
        missing |= {card.address: card for card in self.cards
                    if card.address not in present}
        held = self._claims.holders(missing.values())
        for address in self._failures.keys() - present:
            del self._failures[address]
        left = []
        for address in held:
            now = self._sysfs.function(address)
            left.append(health.gone(missing[address], now.fault)
                        if now is not None and now.fault else
                        health.gone(missing[address]))
        return left

    def _waiting(self, cards: Collection[host_cards.Card]
                 ) -> list[host_cards.Card]:
        """Finds the cards to detach, and notes what the host has taken."""
        in_use = self._claims.in_use(cards)
        waiting = []
        for card, judged in zip(cards, self._judge(cards), strict=True):
            address = card.address
            if (card.on_stub or address in in_use or
                    address in self._failures or
                    not self._belongs_to_guests(card, judged)):
                continue
            if self._idle.get(address) != self._device(card):
                waiting.append(card)
                continue
            drivers = ', '.join(sorted({
                f.driver or 'no driver' for f in card.functions
                if not f.on_stub}))
            self._failures[address] = (
                f'it was taken from its stub driver while it waited for '
                f'guests, and is on {drivers} now; to have it detached again: '
                f'nova-gpu-passthru offer {address}')
        return waiting

    def _belongs_to_guests(self, card: host_cards.Card,
                           judged: host_cards.Card) -> bool:
        """Whether a card shall be on a stub driver.

        So shall one that is set apart as long as somebody keeps it.

        :param card: with the verdict that it has by itself
        :param judged: with that of what is recorded
        """
        return judged.offered or (
            card.offered and judged.kept_by_holder and
            not judged.returning and bool(self._claims.holders([card])))

    def _device(self, card: host_cards.Card) -> tuple[str, int | None]:
        """Tells a card from the next one at its address."""
        return card.model, self._sysfs.incarnation(card.address)

    def _with_failure(self, card: host_cards.Card) -> host_cards.Card:
        if not card.offered or card.on_stub:
            self._failures.pop(card.address, None)
            return card
        if card.address in self._failures:
            return card.withheld(self._failures[card.address])
        return card
