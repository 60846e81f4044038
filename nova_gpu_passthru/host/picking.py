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

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci


def choose(free: Collection[host_cards.Card], count: int,
           own: Collection[host_cards.Card] = ()
           ) -> tuple[host_cards.Card, ...] | None:
    """Picks cards so that the fewest are lost to other guests.

    Cards that share an IOMMU group can only go to one guest: picking one of
    them strands the rest. The cards that the guest has come first, and those
    beside them in a group cost nothing. Among equals the lowest addresses
    win, so the same input gives the same choice.

    :param free: the cards that the guest may have
    :param count: how many it gets
    :param own: of these, the ones that it has already
    :returns: the cards in the order of addresses, None if there are too few
    """
    kept = [card for card in _by_address(set(own)) if card in free][:count]
    missing = count - len(kept)
    # The cheapest choice for each number of cards, set by set (a knapsack).
    best: dict[int, _Choice] = {0: (0, ())}
    for together in connected(free):
        number = len([card for card in together if card not in kept])
        options = [_cheapest(together, kept, count)
                   for count in range(min(number, missing) + 1)]
        best = _combined(best, options, missing)
    if missing not in best:
        return None
    return tuple(_by_address((*kept, *best[missing][1])))


# How many cards a choice takes from other guests, and what it picks.
_Choice = tuple[int, tuple[host_cards.Card, ...]]


def _cheapest(together: Sequence[host_cards.Card],
              own: Collection[host_cards.Card], number: int) -> _Choice:
    """Picks so many more cards of a set that hangs together."""
    others = [card for card in together if card not in own]
    common = frozenset.intersection(*(c.iommu_groups for c in together))
    # Nearly always one group holds all of a set, and any card is as good.
    picks: Iterable[tuple[host_cards.Card, ...]] = (
        [tuple(others[:number])] if common or len(together) == 1 else
        itertools.combinations(others, number))
    lost_already = _lost(together, own)
    return min(((_lost(together, (*own, *cards)) - lost_already, cards)
                for cards in picks), key=_rank)


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
            choice = (cost + added_cost, cards + added)
            number = len(choice[1])
            if number <= most and (number not in combined or
                                   _rank(choice) < _rank(combined[number])):
                combined[number] = choice
    return combined


def _rank(choice: _Choice) -> tuple[int, list[pci.PCIAddress]]:
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
