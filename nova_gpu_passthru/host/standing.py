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


"""Withholds cards for what is remembered of them, not seen on them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import claims as host_claims
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import records as host_records
from nova_gpu_passthru.host import start_failures
from nova_gpu_passthru import telemetry as gpu_telemetry

LOG = logging.getLogger(__name__)

_OFFER = 'nova-gpu-passthru offer {} gives it back'


def judged(card: host_cards.Card, record: host_records.Record | None,
           holders: Collection[str] = ()) -> host_cards.Card:
    """Withholds a card for what is recorded of it.

    Whoever holds the card keeps it, unless a guest could not start with it.

    :param card: with the verdict that it has by itself, which comes first
    :param record: what is recorded for its address, if anything
    :param holders: uuids of those who have the card
    """
    if record is None or not card.offered or not record.of(card):
        return card
    offer = _OFFER.format(card.address)
    if record.fault:
        return card.withheld(record.fault, kept_by_holder=True)
    # First, for its IOMMU group is closed meanwhile, whatever comes after.
    if (record.given_to and record.given_to not in holders and
            not record.failed_release):
        return card.withheld(
            f'it was given to {record.given_to} and has to be released; wait, '
            f'or see the log of nova-compute', by_choice=True, returning=True)
    if record.withheld:
        return card.withheld(
            f'an operator withholds it: {record.withheld}; {offer}',
            by_choice=True)
    if record.failed_release:
        return card.withheld(
            f'its release failed: {record.failed_release}; correct that, then '
            f'{offer}', kept_by_holder=True)
    if record.kept_back:
        return card.withheld(
            f'it was released and is kept back ([gpu_passthru] '
            f'hold_after_release); {offer}', kept_by_holder=True)
    if record.failed_start:
        return card.withheld(
            f'a guest did not start with it: {record.failed_start}; when it '
            f'is well again, {offer}')
    return card


def strangers(cards: Iterable[host_cards.Card],
              records: Mapping[pci.PCIAddress, host_records.Record]
              ) -> dict[pci.PCIAddress, str]:
    """Finds records that are about cards that are not there.

    :returns: by the recorded address, what is there instead
    """
    models = {card.address: card.model for card in cards}
    return {
        address: f'the record is about a card of model {record.model}; now '
                 f'{models.get(address, "no card")} is there'
        for address, record in records.items()
        if not record.fault and models.get(address) != record.model}


class Standing:
    """The records as nova-compute uses them, with who holds what.

    What cannot be read does not make a card free: then all are withheld that
    nobody holds.

    :param records: what is remembered of this host's cards
    :param claims: who holds what
    :param telemetry: where cards that fail are counted
    """

    def __init__(self, records: host_records.Records,
                 claims: host_claims.Claims,
                 telemetry: gpu_telemetry.Telemetry) -> None:
        self.records = records
        self._claims = claims
        self._telemetry = telemetry
        self._told: dict[pci.PCIAddress, str] = {}

    def start(self) -> None:
        """Drops what does not outlive nova-compute."""
        try:
            self.records.end_of_service()
        except exceptions.RecordsUnavailable as error:
            LOG.error('No GPU that is free now is given to guests: %s', error)

    def read(self, cards: Collection[host_cards.Card]
             ) -> Mapping[pci.PCIAddress, host_records.Record]:
        """Reads the records.

        :param cards: all cards of the host
        :returns: by the card's address; if they cannot be read, that as the
            fault of each
        """
        try:
            return self.records.read()
        except exceptions.RecordsUnavailable as error:
            return {card.address: host_records.Record('', fault=str(error))
                    for card in cards}

    def snapshot(self, cards: Collection[host_cards.Card]
                 ) -> tuple[tuple[host_cards.Card, ...],
                            dict[pci.PCIAddress, tuple[str, ...]]]:
        """Withholds cards for what is recorded, as things are now.

        The records are read first: a card that goes back between the two
        looks is then being released, never free.

        :param cards: with the verdicts that they have by themselves
        :returns: the cards, and uuids by the address of each that is held
        """
        records = self.read(cards)
        holders = self._claims.holders(cards)
        return tuple(
            judged(card, records.get(card.address),
                   holders.get(card.address, ())) for card in cards), holders

    def judged(self, cards: Collection[host_cards.Card]
               ) -> tuple[host_cards.Card, ...]:
        """As snapshot(), without the holders."""
        return self.snapshot(cards)[0]

    def cards_for(self, uuid: str, cards: Collection[host_cards.Card],
                  also_failed: bool = False) -> tuple[host_cards.Card, ...]:
        """Tells which cards an instance may be given.

        Not one that is to be released after somebody else, whoever holds it
        now: that may end while the instance claims.

        :param uuid: the instance's
        :param cards: with the verdicts that they have by themselves
        :param also_failed: whether it may have again with what it did not
            start
        """
        records = self.read(cards)
        held = self._claims.held_by(uuid)
        found = []
        for card in cards:
            record = records.get(card.address)
            if record and also_failed and card.addresses & held:
                record = record.but(failed_start='')
            found.append(judged(card, record, (uuid,)))
        return tuple(found)

    def failed_with(self, uuid: str, cards: Collection[host_cards.Card]
                    ) -> list[host_cards.Card]:
        """Finds the cards that an instance holds and did not start with."""
        held = self._claims.held_by(uuid)
        records = self.read(cards)
        return [card for card in cards if card.addresses & held and
                card.address in records and
                records[card.address].of(card) and
                records[card.address].failed_start]

    def blame(self, uuid: str, text: str,
              cards: Iterable[host_cards.Card]) -> None:
        """Withholds the cards because of which an instance did not start.

        :param uuid: the instance's
        :param text: what libvirt raised
        :param cards: all cards of the host
        """
        held = self._claims.held_by(uuid)
        for card in start_failures.blamed(
                text, (card for card in cards if card.addresses & held)):
            self._telemetry.failed('start', 'card')
            said = start_failures.shortened(text)
            LOG.error('GPU %(card)s is withheld, for instance %(uuid)s did '
                      'not start because of it: %(said)s. When it is well '
                      'again: nova-gpu-passthru offer %(address)s',
                      {'card': card, 'uuid': uuid, 'said': said,
                       'address': card.address})
            self._change(card, failed_start=said)

    def forgive(self, uuid: str, cards: Collection[host_cards.Card]) -> None:
        """Offers the cards again with which an instance did start."""
        given = self._claims.claimed_by(uuid)
        for card in self.failed_with(uuid, cards):
            if card.addresses.isdisjoint(given):
                continue
            LOG.info('GPU %(card)s is well again: instance %(uuid)s has '
                     'started with it', {'card': card, 'uuid': uuid})
            self._change(card, failed_start='')

    def retried(self, cards: Collection[host_cards.Card]
                ) -> list[pci.PCIAddress]:
        """Takes note of what an operator wants tried again, once."""
        records = self.read(cards)
        found = [card for card in cards if card.address in records and
                 records[card.address].of(card) and
                 records[card.address].retry]
        for card in found:
            self._change(card, retry=False)
        return [card.address for card in found]

    def _change(self, card: host_cards.Card, **changes: Any) -> None:
        try:
            self.records.change(card, lambda record: record.but(**changes))
        except exceptions.RecordsUnavailable as error:
            LOG.error('Of GPU %(card)s this cannot be remembered: %(error)s',
                      {'card': card, 'error': error})

    def tell_strangers(self, cards: Collection[host_cards.Card]) -> None:
        """Logs records that are about other cards, each once."""
        found = strangers(cards, self.read(cards))
        for address, what in found.items():
            if self._told.get(address) != what:
                LOG.warning('What is remembered of GPU %(address)s is left '
                            'aside: %(what)s. If that card is gone for good: '
                            'nova-gpu-passthru offer %(address)s',
                            {'address': address, 'what': what})
        self._told = found
