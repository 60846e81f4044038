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

"""Picking, against every possible choice."""

from collections.abc import Collection
import itertools
import random

import hypothesis
from hypothesis import strategies

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import fitting
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import picking
from tests.unit import base

Cards = tuple[host_cards.Card, ...]

SETTINGS = hypothesis.settings(deadline=None, derandomize=True,
                               max_examples=150)


def card(bus: int, *groups: int) -> host_cards.Card:
    """A card with one function in each group."""
    functions = tuple(
        pci.PCIFunction(
            address=pci.PCIAddress(0, bus, 0, number), class_code=0x030200,
            vendor=0x10de, device=0x2330, driver='vfio-pci',
            iommu_group=group, physfn=None, bridges=())
        for number, group in enumerate(groups))
    return host_cards.Card(functions[0].address, functions)


def hosts(most_groups: int) -> strategies.SearchStrategy[Cards]:
    """Hosts of up to 7 cards, many of which share IOMMU groups."""
    groups = strategies.lists(strategies.integers(0, 4), min_size=1,
                              max_size=most_groups)
    return strategies.lists(groups, max_size=7).map(lambda host: tuple(
        card(bus, *numbers) for bus, numbers in enumerate(host, 1)))


def lost(picked: Collection[host_cards.Card],
         free: Collection[host_cards.Card],
         own: Collection[host_cards.Card]) -> int:
    """How many cards other guests cannot have any more."""
    def available(held: Collection[host_cards.Card]) -> int:
        return len(fitting.available(
            free, frozenset().union(*(c.addresses for c in held)), free))
    return available(own) - available([*own, *picked])


def choose(free: Cards, count: int,
           own: Collection[host_cards.Card] = ()) -> Cards:
    """Picks cards where there are enough."""
    picked = picking.choose(free, count, own)
    assert picked is not None
    return picked


def buses(cards: Collection[host_cards.Card] | None) -> list[int] | None:
    return None if cards is None else [c.address.bus for c in cards]


class ChooseTest(base.TestCase):
    """Every card has its functions in one group, as nearly all have."""

    @SETTINGS
    @hypothesis.given(hosts(1), strategies.integers(1, 8))
    def test_exactly_as_many_as_asked_for_or_none(
            self, free: Cards, count: int) -> None:
        if count > len(free):
            self.assertIsNone(picking.choose(free, count))
        else:
            picked = choose(free, count)
            self.assertEqual(count, len({c.address for c in picked}))
            self.assertEqual(set(), set(picked) - set(free))

    @SETTINGS
    @hypothesis.given(hosts(1), strategies.integers(1, 7))
    def test_no_choice_takes_fewer_from_others_or_comes_earlier(
            self, free: Cards, count: int) -> None:
        hypothesis.assume(count <= len(free))
        best = min(itertools.combinations(free, count),
                   key=lambda choice: (lost(choice, free, ()),
                                       [c.address for c in choice]))
        self.assertEqual(buses(best), buses(picking.choose(free, count)))

    @SETTINGS
    @hypothesis.given(hosts(1), strategies.data())
    def test_guest_keeps_its_cards_and_takes_the_fewest_more(
            self, free: Cards, data: strategies.DataObject) -> None:
        hypothesis.assume(free)
        own = data.draw(strategies.lists(
            strategies.sampled_from(free), min_size=1, unique=True))
        # Others cannot have what shares a group with its cards.
        count = data.draw(strategies.integers(len(own), len(free)))
        picked = choose(free, count, own)
        self.assertEqual(set(), set(own) - set(picked))
        best = min(lost(choice, free, own)
                   for choice in itertools.combinations(free, count)
                   if set(own) <= set(choice))
        self.assertEqual(best, lost(picked, free, own))

    @SETTINGS
    @hypothesis.given(hosts(1), strategies.data())
    def test_guest_that_needs_fewer_gives_the_highest_back(
            self, free: Cards, data: strategies.DataObject) -> None:
        hypothesis.assume(free)
        own = data.draw(strategies.lists(
            strategies.sampled_from(free), min_size=1, unique=True))
        count = data.draw(strategies.integers(1, len(own)))
        self.assertEqual(
            sorted(c.address for c in own)[:count],
            [c.address for c in choose(free, count, own)])

    @SETTINGS
    @hypothesis.given(hosts(1), strategies.integers(1, 7),
                      strategies.randoms(use_true_random=False))
    def test_choice_does_not_depend_on_the_order_of_cards(
            self, free: Cards, count: int, random: random.Random) -> None:
        shuffled = list(free)
        random.shuffle(shuffled)
        self.assertEqual(buses(picking.choose(free, count)),
                         buses(picking.choose(shuffled, count)))

    @SETTINGS
    @hypothesis.given(hosts(2), strategies.integers(1, 7))
    def test_cards_come_in_the_order_of_addresses(
            self, free: Cards, count: int) -> None:
        hypothesis.assume(count <= len(free))
        picked = [card.address for card in choose(free, count)]
        self.assertEqual(sorted(picked), picked)


class ChainTest(base.TestCase):
    """Cards whose functions are in several groups."""

    @SETTINGS
    @hypothesis.given(hosts(2), strategies.integers(1, 7))
    def test_no_choice_takes_fewer_from_others(
            self, free: Cards, count: int) -> None:
        hypothesis.assume(count <= len(free))
        picked = choose(free, count)
        best = min(lost(choice, free, ())
                   for choice in itertools.combinations(free, count))
        self.assertEqual(best, lost(picked, free, ()))


class ExampleTest(base.TestCase):
    def test_card_that_is_alone_in_its_group_is_taken_first(self) -> None:
        self.assertEqual([3], buses(picking.choose(
            (card(1, 10), card(2, 10), card(3, 11)), 1)))

    def test_whole_group_is_taken_for_two(self) -> None:
        self.assertEqual([4, 5], buses(picking.choose(
            (card(1, 10), card(2, 10), card(3, 10), card(4, 11),
             card(5, 11)), 2)))

    def test_stranded_cards_are_first_for_their_own_guest(self) -> None:
        free = (card(1, 9), card(5, 10), card(6, 10))
        self.assertEqual([5, 6], buses(picking.choose(free, 2, [free[2]])))

    def test_own_card_that_is_not_free_is_not_picked(self) -> None:
        self.assertEqual([1], buses(picking.choose(
            (card(1, 9),), 1, [card(2, 10)])))

    def test_lowest_addresses_win_among_equals(self) -> None:
        self.assertEqual([1, 2], buses(picking.choose(
            (card(3, 3), card(1, 1), card(2, 2)), 2)))


class ConnectedTest(base.TestCase):
    @SETTINGS
    @hypothesis.given(hosts(2))
    def test_cards_hang_together_exactly_where_groups_lead_from_one_to_other(
            self, cards: Cards) -> None:
        reached = {c.address: {c.address} for c in cards}
        for _ in cards:
            for one, other in itertools.permutations(cards, 2):
                if one.iommu_groups & other.iommu_groups:
                    reached[one.address] |= reached[other.address]
        self.assertEqual(
            sorted({tuple(sorted(addresses))
                    for addresses in reached.values()}),
            [tuple(c.address for c in together)
             for together in picking.connected(cards)])
