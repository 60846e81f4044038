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

"""What the cards of a host are to guests at the moment."""

from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import fitting
from nova_gpu_passthru.host import pci


def of(view: host_view.HostView) -> dict[pci.PCIAddress, str]:
    """Says what each card is to guests.

    :returns: by the card's address, one of: claimed; set_apart (at run time,
        on purpose); host (it stays with the host, which is as it should be);
        withheld; attached (to its host driver, so nova-compute has not
        detached it); stranded (by what holds its IOMMU group); free; unknown
        (libvirt or the records do not tell)
    """
    taken = {address for card in view.cards if view.holder(card)
             for address in card.addresses}
    free = {card.address for card in fitting.available(
        (card for card in view.cards if card.ready), taken, view.cards)}
    offered_by_itself = {card.address for card in view.own_verdicts
                         if card.offered}

    def state(card: host_cards.Card) -> str:
        if card.address in taken:
            return 'claimed'
        if card.by_choice and card.address in offered_by_itself:
            return 'set_apart'
        if card.stays_with_host:
            return 'host'
        if not card.offered:
            return 'withheld'
        if not card.on_stub:
            return 'attached'
        if view.libvirt_error or view.records_error:
            return 'unknown'
        return 'free' if card.address in free else 'stranded'

    return {card.address: state(card) for card in view.cards}
