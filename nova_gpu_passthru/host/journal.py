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

"""What the log says of cards, once each time that it changes."""

from collections.abc import Collection, Mapping

from oslo_log import log as logging

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy

LOG = logging.getLogger(__name__)

# Uuids of those who hold a card, by its address.
Holders = Mapping[pci.PCIAddress, tuple[str, ...]]


class Journal:
    """Tells what is new since it was told last."""

    def __init__(self) -> None:
        self._reasons: dict[pci.PCIAddress, str] = {}
        self._shared: Holders = {}

    def tell(self, cards: Collection[host_cards.Card],
             holders: Holders) -> None:
        """Logs new verdicts, cards that are gone and cards held twice.

        :param cards: all candidates of the host
        :param holders: of those that somebody holds
        """
        for card in cards:
            self._tell_verdict(card)
        for address in self._reasons.keys() - {c.address for c in cards}:
            del self._reasons[address]
            LOG.warning('GPU %s is gone from the bus', address)
        self._tell_shared(cards, holders)

    def _tell_verdict(self, card: host_cards.Card) -> None:
        before = self._reasons.get(card.address)
        if before == card.reason:
            return
        self._reasons[card.address] = card.reason
        if card.offered:
            LOG.info('GPU %s is offered to guests', card)
            return
        LOG.log(logging.WARNING if before == '' and not card.by_choice
                else logging.INFO,
                'GPU %(card)s is withheld: %(reason)s',
                {'card': card, 'reason': card.reason})

    def _tell_shared(self, cards: Collection[host_cards.Card],
                     holders: Holders) -> None:
        shared = {address: uuids for address, uuids in holders.items()
                  if len(uuids) > 1}
        for card in cards:
            uuids = shared.get(card.address)
            if uuids and uuids != self._shared.get(card.address):
                LOG.warning(
                    'GPU %(card)s is named by domains %(uuids)s and counts '
                    'as used once. Remove it from all but one: only one can '
                    'run', {'card': card, 'uuids': ' and '.join(uuids)})
        self._shared = shared


def tell_guests_of_nova(cards: Collection[host_cards.Card], holders: Holders,
                        policy: host_policy.Policy) -> None:
    """Says who has to give up a card before it can be offered.

    :param cards: all candidates of the host
    :param holders: of those that somebody holds
    :param policy: what the operator wants
    """
    for card in cards:
        if card.address in holders and policy.nova_gives_part_of(
                card.functions):
            LOG.warning(
                'GPU %(card)s is held by instance %(uuids)s, and [pci] '
                'device_spec names it. An instance that has it by an alias '
                'has to be resized to a flavor that asks for GPUs by '
                'free_gpus, or deleted, before the card is free for others',
                {'card': card,
                 'uuids': ' and '.join(holders[card.address])})
