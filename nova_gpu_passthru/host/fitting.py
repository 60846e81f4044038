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

"""Which cards an instance can have, and which of them it gets."""

from collections.abc import Collection, Iterable, Mapping
import dataclasses

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import picking


@dataclasses.dataclass(frozen=True)
class Situation:
    """What an instance finds on this host.

    :ivar cards: all cards of this host
    :ivar own: those that it has
    :ivar moved: models of cards that it had, in whose place others are now
    :ivar taken: the functions that others hold
    :ivar sockets: the CPU socket of each NUMA node
    :ivar readable: whether libvirt told what is in use; if not, the instance
        can only have what it has
    """

    cards: Collection[host_cards.Card]
    own: Collection[host_cards.Card]
    moved: Collection[str]
    taken: Collection[pci.PCIAddress]
    sockets: Mapping[int, int]
    readable: bool


def pick(uuid: str, request: flavor.GPURequest,
         situation: Situation) -> tuple[host_cards.Card, ...]:
    """Picks the cards that an instance gets.

    :param uuid: the instance's
    :param request: what its flavor asks for
    :param situation: what it has and what is there
    :returns: exactly as many cards as asked for
    :raises NotEnoughGPUs: if this host cannot give them
    """
    for allocated in request.allocated:
        if request.model not in (None, allocated):
            raise exceptions.NotEnoughGPUs(
                f'Instance {uuid} asks for {request}, but Placement '
                f'allocated cards of model {allocated} to it.')
    picked: tuple[host_cards.Card, ...] = ()
    for model, count in request.parts():
        fitting = [card for card in situation.cards
                   if model in (None, card.model) and card not in picked and
                   _fits(card, request, situation)]
        free = available(fitting, situation.taken, situation.cards)
        # In the place of cards that moved, others of their model.
        mine = list(situation.own)
        for had in situation.moved:
            mine += [card for card in free
                     if card.model == had and card not in mine][:1]
        near = [card for card in free
                if request.affinity.is_near(card.numa_node)]
        more = picking.choose(free, count, mine,
                              near if request.affinity.nodes else None)
        if more is None and not situation.readable:
            raise exceptions.NotEnoughGPUs(
                f'Instance {uuid} asks for {request}, but libvirt does not '
                f'tell which cards are in use; see the log of nova-compute.')
        if more is None:
            given = (f', and Placement allocated {count} of model {model} to '
                     f'it' if request.allocated else '')
            raise exceptions.NotEnoughGPUs(
                f'Instance {uuid} asks for {request}{given}; of '
                f'{len(fitting)} such on this host {len(free)} are free for '
                f'it.')
        picked += more
    return picked


def _fits(card: host_cards.Card, request: flavor.GPURequest,
          situation: Situation) -> bool:
    # What a guest has stays its own, also where the operator has excluded it
    # since.
    if card in situation.own and card.on_stub and (
            card.offered or card.by_choice or card.kept_by_holder):
        return True
    return (card.ready and situation.readable and
            request.affinity.allows(card.numa_node, situation.sockets))


def available(cards: Iterable[host_cards.Card],
              held: Collection[pci.PCIAddress],
              all_cards: Iterable[host_cards.Card]
              ) -> list[host_cards.Card]:
    """Finds the cards that nobody holds and that are not stranded.

    vfio opens no IOMMU group of which a host driver has a function
    (Documentation/driver-api/vfio.rst).

    :param cards: the cards to choose from
    :param held: the functions that somebody holds
    :param all_cards: the cards of the host, whose IOMMU groups are closed
        for others when one is held, and for all while one is on a host driver
    """
    closed = {group for card in all_cards
              if card.on_host_driver or not card.addresses.isdisjoint(held)
              for group in card.iommu_groups}
    return [card for card in cards if card.addresses.isdisjoint(held) and
            card.iommu_groups.isdisjoint(closed)]
