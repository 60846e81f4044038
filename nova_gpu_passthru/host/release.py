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


"""Releases cards that a guest has given back, before others have them."""

from collections.abc import Callable, Collection, Iterable
import contextlib
import threading

from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import claims as host_claims
from nova_gpu_passthru.host import hook
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import records as host_records
from nova_gpu_passthru.host import standing as host_standing
from nova_gpu_passthru.host import terms as host_terms
from nova_gpu_passthru import telemetry as gpu_telemetry

LOG = logging.getLogger(__name__)


class Releaser:
    """Releases cards side by side, each in a thread of its own.

    That a card is to be released is recorded before a guest can have touched
    it, and that record is what keeps others off it until the end.

    Whoever starts a release marks the card first and then looks whether it
    has a holder; whoever claims a card claims first and then looks for the
    mark. So at least one of them sees the other and steps back, without a
    lock that both hold.

    :param standing: what is recorded of cards
    :param claims: who holds them
    :param make_ready: makes a card ready for guests again and says why that
        failed, if it did
    :param telemetry: where releases are measured
    :ivar terms: what has to happen
    """

    def __init__(self, standing: host_standing.Standing,
                 claims: host_claims.Claims,
                 make_ready: Callable[[host_cards.Card], str],
                 telemetry: gpu_telemetry.Telemetry) -> None:
        self.terms = host_terms.Terms()
        self._standing = standing
        self._records = standing.records
        self._claims = claims
        self._make_ready = make_ready
        self._telemetry = telemetry
        self._lock = threading.Lock()
        self._running: set[pci.PCIAddress] = set()

    def take(self, card: host_cards.Card, uuid: str, own: bool) -> str:
        """Records whose card it is from now on, if it may be given.

        :param card: claimed already, so nobody else is given it
        :param uuid: who claims it
        :param own: whether it was theirs before
        :returns: why it may not be given, empty if it may
        :raises RecordsUnavailable: if that cannot be recorded
        """
        if own:
            # It was recorded when they got it, or by mark_held().
            return ''
        refusals = []

        def taken(record: host_records.Record) -> host_records.Record:
            refusal = host_standing.judged(card, record, (uuid,)).reason
            if record.given_to == uuid and self._runs_for(card):
                refusal = 'it is being released at this moment'
            refusals.append(refusal)
            if refusal or record.given_to or not self.terms.needed:
                return record
            return record.but(given_to=uuid)

        if self.terms.needed:
            self._records.change(card, taken)
        else:
            taken(self._standing.read([card]).get(
                card.address, host_records.Record(card.model)))
        return refusals[0]

    def mark_held(self, cards: Iterable[host_cards.Card]) -> None:
        """Records of all cards that somebody has that they are to be released.

        Also of those given before the operator asked for that, or given by
        hand.
        """
        if not self.terms.needed:
            return
        cards = [card for card in cards if card.offered]
        records = self._standing.read(cards)
        for address, holders in self._claims.holders(cards).items():
            card = next(c for c in cards if c.address == address)
            known = records.get(address)
            if known and known.of(card) and known.given_to:
                continue
            holder = holders[0]
            try:
                self._records.change(card, lambda record: record if (
                    record.given_to) else record.but(given_to=holder))
            except exceptions.RecordsUnavailable as error:
                LOG.error('It cannot be remembered that GPU %(card)s is to be '
                          'released after %(uuid)s: %(error)s',
                          {'card': card, 'uuid': holder, 'error': error})

    def release_free(self, cards: Collection[host_cards.Card]) -> None:
        """Starts to release what nobody has any more.

        A card that does not answer waits until it does, and one whose IOMMU
        group a guest uses until that has gone: the hook may bind a host
        driver, which vfio forbids then. Before Linux 5.19 the kernel stops
        (BUG_ON in vfio_iommu_group_notifier of drivers/vfio/vfio.c).

        :param cards: all cards, with the verdicts that they have by
            themselves
        """
        records = self._standing.read(cards)
        holders = self._claims.holders(cards)
        running = self._claims.in_use(cards)
        for card in cards:
            record = records.get(card.address)
            if (record and record.of(card) and record.given_to and
                    not record.failed_release and
                    card.address not in holders and
                    (card.offered or card.by_choice) and
                    not any(other.address in running or record.given_to in
                            holders.get(other.address, ())
                            for other in _group_of(card, cards))):
                self._start(card, record.given_to)

    def _start(self, card: host_cards.Card, uuid: str) -> None:
        with self._lock:
            if card.address in self._running:
                return
            self._running.add(card.address)
        with contextlib.ExitStack() as undo:
            undo.callback(self._end, card)
            if not self._claims.is_free(card):
                return
            # A daemon, so that a hook that never ends does not keep the
            # service from stopping.
            thread = threading.Thread(
                target=self._run, args=(card, uuid), daemon=True,
                name=f'release-{card.address}')
            try:
                thread.start()
            except RuntimeError as error:
                LOG.error('GPU %(card)s cannot be released, and its release '
                          'starts anew with the next report: %(error)s',
                          {'card': card, 'error': error})
                return
            undo.pop_all()

    def _runs_for(self, card: host_cards.Card) -> bool:
        with self._lock:
            return card.address in self._running

    def _run(self, card: host_cards.Card, uuid: str) -> None:
        try:
            failure = self._release(card, uuid)
            self._records.change(card, lambda record: record.but(
                given_to='' if record.given_to == uuid else record.given_to,
                failed_release=failure,
                kept_back=self.terms.hold and not failure))
        except exceptions.RecordsUnavailable as error:
            LOG.error('GPU %(card)s cannot be given back, and its release '
                      'starts anew with the next report: %(error)s',
                      {'card': card, 'error': error})
        finally:
            self._end(card)

    def _release(self, card: host_cards.Card, uuid: str) -> str:
        """Does what the terms ask for, and says why that failed."""
        try:
            if self.terms.hook:
                LOG.info('GPU %(card)s is released after %(uuid)s: %(hook)s '
                         'runs', {'card': card, 'uuid': uuid,
                                  'hook': self.terms.hook})
                with self._telemetry.timed('release'):
                    hook.run(self.terms.hook, self.terms.hook_timeout, card,
                             uuid, self._records.folder)
            failure = self._make_ready(card)
        except exceptions.ReleaseFailed as error:
            failure = str(error)
        except Exception as error:
            LOG.exception('Releasing GPU %s failed', card)
            failure = f'unexpected error: {error}'
        if failure:
            LOG.error('GPU %(card)s is withheld, for its release after '
                      '%(uuid)s failed: %(failure)s. When it is clean, give '
                      'it back: nova-gpu-passthru offer %(address)s',
                      {'card': card, 'uuid': uuid, 'failure': failure,
                       'address': card.address})
        else:
            LOG.info('GPU %(card)s is released after %(uuid)s',
                     {'card': card, 'uuid': uuid})
        return failure

    def _end(self, card: host_cards.Card) -> None:
        with self._lock:
            self._running.discard(card.address)


def _group_of(card: host_cards.Card, cards: Iterable[host_cards.Card]
              ) -> list[host_cards.Card]:
    """Finds the others in a card's IOMMU groups."""
    return [other for other in cards if other.address != card.address and
            not other.iommu_groups.isdisjoint(card.iommu_groups)]
