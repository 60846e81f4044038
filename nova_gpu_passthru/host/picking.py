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

"""Picks the cards for one guest."""

from collections.abc import Collection, Iterable, Sequence
import itertools
import os

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci


# What a choice costs: cards far from the guest's memory, and cards that other
# guests cannot have any more.
_Cost = tuple[int, int]
_Choice = tuple[_Cost, tuple[host_cards.Card, ...]]


def choose(free: Collection[host_cards.Card], count: int,
           own: Collection[host_cards.Card] = (),
           near: Collection[host_cards.Card] | None = None
           ) -> tuple[host_cards.Card, ...] | None:
    """Picks the cards that suit a guest best and others the least.

    The cards that the guest has come first. Then it gets cards near its
    memory, then cards below one PCIe switch or root port, where they reach
    each other without the CPU, then those whose choice takes the fewest from
    other guests: cards that share an IOMMU group can only go to one guest, so
    picking one of them strands the rest, and those beside a card of its own
    cost nothing. Among equals the lowest addresses win, so the same input
    gives the same choice.

    :param free: the cards that the guest may have
    :param count: how many it gets
    :param own: of these, the ones that it has already
    :param near: of these, the ones near its memory; None if all are alike
    :returns: the cards in the order of addresses, None if there are too few
    """
    kept = [card for card in _by_address(set(own)) if card in free][:count]
    choices = []
    for below in _neighbourhoods(free) if count > 1 else [list(free)]:
        choice = _cheapest_below(below, free, kept, count - len(kept), near)
        if choice is not None:
            (far, lost), cards = choice
            cards = tuple(_by_address((*kept, *cards)))
            choices.append(((far, -_shared_bridges(cards), lost,
                             [card.address for card in cards]), cards))
    return min(choices)[1] if choices else None


def _neighbourhoods(cards: Collection[host_cards.Card]
                    ) -> list[list[host_cards.Card]]:
    """The cards below each bridge of the host, and all."""
    bridges = {bridge for card in cards for bridge in card.main.bridges}
    return [list(cards), *([card for card in cards
                            if bridge in card.main.bridges]
                           for bridge in sorted(bridges))]


def _shared_bridges(cards: Collection[host_cards.Card]) -> int:
    """How many bridges all of several cards are below."""
    if len(cards) < 2:
        return 0
    return len(os.path.commonprefix([card.main.bridges for card in cards]))


def _cheapest_below(below: Collection[host_cards.Card],
                    free: Collection[host_cards.Card],
                    kept: Sequence[host_cards.Card], missing: int,
                    near: Collection[host_cards.Card] | None
                    ) -> _Choice | None:
    """Picks the missing cards from one part of the host.

    The cheapest choice for each number of cards, set by set: a knapsack.
    """
    best: dict[int, _Choice] = {0: ((0, 0), ())}
    for together in connected(free):
        # Nearest first, for any others of a group are as good.
        others = sorted((card for card in together
                         if card in below and card not in kept),
                        key=lambda card: (_far(card, near), card.address))
        options = [_cheapest(together, kept, others, number, near)
                   for number in range(min(len(others), missing) + 1)]
        best = _combined(best, options, missing)
    return best.get(missing)


def _cheapest(together: Sequence[host_cards.Card],
              kept: Collection[host_cards.Card],
              others: Sequence[host_cards.Card], number: int,
              near: Collection[host_cards.Card] | None) -> _Choice:
    """Picks so many cards of a set that hangs together."""
    common = frozenset.intersection(*(c.iommu_groups for c in together))
    # Nearly always one group holds all of a set.
    picks: Iterable[tuple[host_cards.Card, ...]] = (
        [tuple(others[:number])] if common or len(together) == 1 else
        itertools.combinations(others, number))
    lost_already = _lost(together, kept)
    return min((((sum(_far(card, near) for card in cards),
                  _lost(together, (*kept, *cards)) - lost_already), cards)
                for cards in picks), key=_rank)


def _far(card: host_cards.Card,
         near: Collection[host_cards.Card] | None) -> int:
    return 0 if near is None or card in near else 1


def _lost(together: Iterable[host_cards.Card],
          taken: Collection[host_cards.Card]) -> int:
    """How many cards of a set other guests cannot have any more."""
    return sum(card in taken or any(card.iommu_groups & c.iommu_groups
                                    for c in taken) for card in together)


def _by_address(cards: Iterable[host_cards.Card]) -> list[host_cards.Card]:
    return sorted(cards, key=lambda card: card.address)


def _combined(best: dict[int, _Choice], options: Iterable[_Choice],
              most: int) -> dict[int, _Choice]:
    combined: dict[int, _Choice] = {}
    for cost, cards in best.values():
        for added_cost, added in options:
            choice = ((cost[0] + added_cost[0], cost[1] + added_cost[1]),
                      cards + added)
            number = len(choice[1])
            if number <= most and (number not in combined or
                                   _rank(choice) < _rank(combined[number])):
                combined[number] = choice
    return combined


def _rank(choice: _Choice) -> tuple[_Cost, list[pci.PCIAddress]]:
    cost, cards = choice
    return cost, sorted(card.address for card in cards)


def connected(cards: Iterable[host_cards.Card]
              ) -> Sequence[list[host_cards.Card]]:
    """Splits cards into sets that hang together by their IOMMU groups.

    :returns: the sets; each, and the cards in it, in the order of addresses
    """
    sets: list[list[host_cards.Card]] = []
    for card in _by_address(cards):
        joined = [s for s in sets if any(
            card.iommu_groups & other.iommu_groups for other in s)]
        sets = [s for s in sets if s not in joined]
        sets.append(_by_address([card, *(c for s in joined for c in s)]))
    return sorted(sets, key=lambda s: s[0].address)
