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
    kept = sorted((card for card in own if card in free),
                  key=lambda card: card.address)[:count]
    missing = count - len(kept)
    # The cheapest choice for each number of cards, set by set (a knapsack).
    best: dict[int, _Choice] = {0: (0, ())}
    for together in connected(free):
        mine = [card for card in together if card in kept]
        others = [card for card in together if card not in kept]
        options = [(0 if mine or not number else len(together),
                    tuple(others[:number]))
                   for number in range(len(others) + 1)]
        best = _combined(best, options, missing)
    if missing not in best:
        return None
    return tuple(sorted((*kept, *best[missing][1]),
                        key=lambda card: card.address))


# How many cards a choice takes from other guests, and what it picks.
_Choice = tuple[int, tuple[host_cards.Card, ...]]


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
    for card in sorted(cards, key=lambda c: c.address):
        joined = [s for s in sets if any(
            card.iommu_groups & other.iommu_groups for other in s)]
        sets = [s for s in sets if s not in joined]
        sets.append(sorted([card, *(c for s in joined for c in s)],
                           key=lambda c: c.address))
    return sorted(sets, key=lambda s: s[0].address)
