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

"""All GPUs of this host: found, detached, claimed, released, counted."""

from collections.abc import Callable, Collection, Iterable, Iterator
import contextlib
import os

import libvirt
from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import binding
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import claims as host_claims
from nova_gpu_passthru.host import health
from nova_gpu_passthru.host import hypervisor as host_hypervisor
from nova_gpu_passthru.host import journal as host_journal
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy
from nova_gpu_passthru.host import pools as host_pools
from nova_gpu_passthru.host import processes
from nova_gpu_passthru.host import records as host_records
from nova_gpu_passthru.host import release as host_release
from nova_gpu_passthru.host import standing as host_standing
from nova_gpu_passthru.host import survey as host_survey
from nova_gpu_passthru.host import terms as host_terms
from nova_gpu_passthru import telemetry as gpu_telemetry

LOG = logging.getLogger(__name__)


def _unchanged(uuid: str, request: flavor.GPURequest) -> flavor.GPURequest:
    return request


class HostGPUs:
    """The GPUs of one host and who holds them.

    Until start() it has none.

    :param sysfs: where cards are found
    :param hypervisor: where domains are read and cards detached
    :param records: what is remembered of cards
    :param telemetry: where actions are measured
    :param root: the folder that has the proc and dev of this host
    """

    def __init__(self, sysfs: pci.Sysfs,
                 hypervisor: host_hypervisor.Hypervisor,
                 records: host_records.Records,
                 telemetry: gpu_telemetry.Telemetry,
                 root: str | os.PathLike[str] = '/') -> None:
        self._sysfs = sysfs
        self._telemetry = telemetry
        self._claims = host_claims.Claims(hypervisor)
        self._standing = host_standing.Standing(
            records, self._claims, telemetry)
        self._survey = host_survey.Survey(
            sysfs, binding.Binder(sysfs, hypervisor,
                                  processes.Processes(sysfs, root),
                                  telemetry),
            self._claims, self._standing.judged, root)
        self._releaser = host_release.Releaser(
            self._standing, self._claims, self._survey.make_ready, telemetry)
        self._journal = host_journal.Journal()
        self._restored = False

    @property
    def cards(self) -> tuple[host_cards.Card, ...]:
        """All candidates with their verdicts.

        As last read from the host, and with what is recorded now.
        """
        return self._standing.judged(self._survey.cards)

    def start(self, policy: host_policy.Policy, detach_timeout: float,
              terms: host_terms.Terms) -> None:
        """Finds the cards and detaches those that are offered and free.

        :param policy: what the operator wants
        :param detach_timeout: seconds that one card may take to be detached
        :param terms: what has to happen before a card goes to the next guest
        """
        self._releaser.terms = terms
        self._standing.start()
        self._survey.start(policy, detach_timeout)
        self.refresh()
        host_journal.tell_guests_of_nova(self.cards, self.holders(), policy)

    def refresh(self) -> None:
        """Looks at the host again and detaches what is offered.

        Call it once a period. Cards that have come back from guests are
        released. Not before restore() has said which instances of this host
        are about to get theirs again.
        """
        if self._survey.has_cards():
            self._claims.read_domains()
            self._look()

    def look(self) -> None:
        """As refresh(), between two periods: no domain counts as missing."""
        if self._survey.has_cards():
            self._claims.read_new_domains()
            self._look()

    def _look(self) -> None:
        self._survey.try_again(self._standing.retried(self._survey.cards))
        self._survey.look(detach=True)
        self._standing.tell_strangers(self._survey.cards)
        self._releaser.mark_held(self._survey.cards)
        self._release_free()
        self._journal.tell(self.cards, self.holders())

    def claim(self, uuid: str, request: flavor.GPURequest | None
              ) -> tuple[host_cards.Card, ...]:
        """Gives an instance the cards that it asks for, or those it has.

        One with which it did not start it gets again only where there is no
        other.

        :param uuid: the instance's
        :param request: what its flavor asks for, None for no GPU
        :returns: exactly as many cards as asked for, in the order of
            addresses
        :raises NotEnoughGPUs: if this host cannot give them
        """
        if request is None:
            self._claims.give_up(uuid)
            return ()
        with self._telemetry.timed('claim'):
            try:
                return self._claim(uuid, request)
            except exceptions.NotEnoughGPUs:
                if not self._standing.failed_with(uuid, self._survey.cards):
                    raise
                return self._claim(uuid, request, also_failed=True)

    def _claim(self, uuid: str, request: flavor.GPURequest,
               also_failed: bool = False) -> tuple[host_cards.Card, ...]:
        sockets = (self._sysfs.sockets() if request.affinity.nodes else {})
        had = self._claims.held_by(uuid)
        before = self._claims.claimed_by(uuid)
        lost: dict[pci.PCIAddress, str] = {}
        try:
            while True:
                cards = tuple(card.withheld(lost[card.address])
                              if card.address in lost else card
                              for card in self._standing.cards_for(
                                  uuid, self._survey.cards, also_failed))
                picked = self._claims.claim(uuid, request, cards, sockets)
                refused = self._refused(uuid, picked, had)
                if not refused:
                    given = [card for card in picked
                             if card.addresses.isdisjoint(had)]
                    if given:
                        LOG.info('GPUs %(cards)s are given to instance '
                                 '%(uuid)s',
                                 {'cards': _named(given), 'uuid': uuid})
                    return picked
                lost |= refused
                self._survey.look()
        except exceptions.NotEnoughGPUs:
            self._claims.put_back(uuid, before)
            raise

    def _refused(self, uuid: str, picked: Collection[host_cards.Card],
                 had: Collection[pci.PCIAddress]
                 ) -> dict[pci.PCIAddress, str]:
        """Finds claimed cards that are not to be given after all.

        :raises NotEnoughGPUs: if it cannot be recorded that a card has to be
            released some time
        """
        sick = {card.address: health.fault(card, self._sysfs)
                for card in picked}
        refused = {address: what for address, what in sick.items() if what}
        try:
            for card in picked if not refused else ():
                what = self._releaser.take(card, uuid,
                                           not card.addresses.isdisjoint(had))
                if what:
                    refused[card.address] = what
        except exceptions.RecordsUnavailable as error:
            raise exceptions.NotEnoughGPUs(
                f'Instance {uuid} is not given any GPU: {error}.') from error
        for card in picked:
            if card.address in refused:
                LOG.warning('GPU %(card)s is not given to instance %(uuid)s '
                            'after all: %(what)s',
                            {'card': card, 'uuid': uuid,
                             'what': refused[card.address]})
        return refused

    def restore(self, requests: Iterable[tuple[str, flavor.GPURequest]],
                completed: Callable[[str, flavor.GPURequest],
                                    flavor.GPURequest] = _unchanged) -> None:
        """Claims again, after a restart, for the instances of this host.

        Most have a domain that names their cards. One that lost it when the
        service ended, in a hard reboot say, or that was about to get more in
        a resize, gets cards picked for it now, so that nobody takes the last
        ones before it starts. So does one whose card is gone, or is another
        one by now, unless it runs.

        :param requests: uuid and request of each instance that asks for GPUs
        :param completed: adds to a request what is asked for only where cards
            have to be picked; may raise NotEnoughGPUs
        """
        lacking = []
        for uuid, request in requests:
            held = self._claims.held_by(uuid)
            self._claims.keep(uuid)
            runs = self._claims.runs(uuid)
            moved = self._claims.moved(uuid, self._survey.cards)
            if sum(bool(card.addresses & held) and (runs or not (
                    card.gone or card.address in moved))
                   for card in self._survey.cards) < request.count:
                lacking.append((uuid, request))
        for uuid, request in lacking:
            refused = ''
            try:
                self.claim(uuid, completed(uuid, request))
            except exceptions.NotEnoughGPUs as error:
                refused = str(error)
            if refused:
                LOG.warning('%s It cannot start until there are.', refused)
        self._restored = True
        self._release_free()

    def kept(self, uuid: str) -> contextlib.AbstractContextManager[None]:
        """Lets an instance keep its cards while it may have no domain.

        Until the end release() does nothing for this instance.
        """
        return self._claims.kept(uuid)

    def release(self, uuid: str) -> None:
        """Takes an instance's cards back once it has no domain.

        They are read before they count as free.
        """
        held = self._claims.held_by(uuid)
        if not held:
            return
        self._survey.look()
        if self._claims.release(uuid):
            LOG.info('GPUs %(cards)s of instance %(uuid)s are given back; '
                     'free now: %(free)d',
                     {'cards': _named(card for card in self._survey.cards
                                      if card.addresses & held),
                      'uuid': uuid, 'free': self.usage().free_gpus})
            self._release_free()

    @contextlib.contextmanager
    def starting(self, uuid: str) -> Iterator[None]:
        """Withholds the card because of which an instance does not start.

        And offers it again once it did start.

        :raises libvirt.libvirtError: what is raised within
        """
        try:
            yield
        except libvirt.libvirtError as error:
            self._standing.blame(uuid, str(error), self._survey.cards)
            raise
        self._standing.forgive(uuid, self._survey.cards)

    def keep_for_revert(self, uuid: str) -> None:
        """Keeps what an instance has until confirm() or revert()."""
        self._claims.keep_for_revert(uuid)

    def for_revert(self, uuid: str) -> frozenset[pci.PCIAddress]:
        """What is kept for an instance in case its resize is reverted."""
        return self._claims.for_revert(uuid)

    def revert(self, uuid: str) -> None:
        """Lets an instance have what it had before, if it was kept."""
        self._claims.revert(uuid)

    def confirm(self, uuid: str) -> None:
        """Gives up what was kept for an instance in case of a revert."""
        self._claims.confirm(uuid)
        self._release_free()

    def check_own(self, uuid: str) -> None:
        """Looks whether an instance's domain may start as it is defined.

        :raises NotEnoughGPUs: if an address means another device by now
        """
        self._claims.check_own(uuid, self._survey.cards)

    def held_by(self, uuid: str) -> frozenset[pci.PCIAddress]:
        """What an instance holds, by a claim or by its domain."""
        return self._claims.held_by(uuid)

    def models_of(self, uuid: str) -> dict[str, int]:
        """Tells how many cards of each model an instance was given."""
        return self._claims.models_of(uuid, self._survey.cards)

    @property
    def models(self) -> frozenset[str]:
        """The models of the cards that guests can be given."""
        return frozenset(card.model for card in self._survey.cards
                         if card.offered)

    def holders(self) -> dict[pci.PCIAddress, tuple[str, ...]]:
        """Tells who holds each card: uuids by the card's address."""
        return self._claims.holders(self._survey.cards)

    def usage(self) -> host_pools.Usage:
        """Counts the cards of this host.

        While nobody knows what the domains hold, none is free.
        """
        cards, holders = self._standing.snapshot(self._survey.cards)
        return host_pools.Usage(host_pools.count(cards, holders,
                                                 self._claims.known))

    def has_candidates(self) -> bool:
        """Whether the host has what is or could become an offered card."""
        return any(not card.host_display and card.main.physfn is None
                   for card in self._survey.cards)

    def _release_free(self) -> None:
        if self._restored and self._claims.known:
            self._releaser.release_free(self._survey.cards)


def _named(cards: Iterable[host_cards.Card]) -> str:
    return ', '.join(str(card) for card in cards)
