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

"""All cards of one model on one host, as a number."""

import collections
from collections.abc import Collection, Mapping, Sequence
import dataclasses
import json

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import fitting
from nova_gpu_passthru.host import pci


@dataclasses.dataclass(frozen=True)
class Pool:
    """The cards of one model.

    :ivar total: cards that guests can have or have, or can have as soon as
        their release is done
    :ivar held: how many each holder has, by its uuid
    :ivar blocked: cards that nobody holds and nobody can have now
    """

    model: str
    total: int = 0
    held: Mapping[str, int] = dataclasses.field(default_factory=dict)
    blocked: int = 0

    @property
    def free(self) -> int:
        return self.total - sum(self.held.values()) - self.blocked


@dataclasses.dataclass(frozen=True)
class Usage:
    """What the scheduler is told of a host.

    :ivar pools: the cards by their model
    """

    pools: Sequence[Pool]

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


def count(cards: Collection[host_cards.Card],
          holders: Mapping[pci.PCIAddress, Collection[str]],
          known: bool) -> list[Pool]:
    """Counts the cards of a host.

    :param cards: all candidates
    :param holders: uuids by the address of each card that is held; a card
        that several domains name counts once, for the first
    :param known: whether it is known who holds what; if not, none is free
    :returns: the pools, in the order of models
    """
    taken = {address for card in cards
             if card.address in holders or card.returning
             for address in card.addresses}
    free = {card.address for card in fitting.available(
        (card for card in cards if card.ready and known), taken, cards)}
    pools: dict[str, list[host_cards.Card]] = collections.defaultdict(list)
    for card in cards:
        held = card.address in holders and card.main.physfn is None
        if card.ready or held or card.returning:
            pools[card.model].append(card)
    return [Pool(model, len(pool),
                 collections.Counter(
                     min(holders[card.address]) for card in pool
                     if card.address in holders),
                 sum(card.address not in free and card.address not in holders
                     for card in pool))
            for model, pool in sorted(pools.items())]
