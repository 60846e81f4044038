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

"""What the exporter sees of a host, as metrics."""

import collections
from collections.abc import Iterable, Iterator
from concurrent import futures
import os
import pathlib
import threading

import libvirt
from prometheus_client import core
from prometheus_client import parser

from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import pci_ids
from nova_gpu_passthru.cmd import states
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru import telemetry

_PREFIX = telemetry.PREFIX


class TimeLimited:
    """Asks libvirt in a thread, for a call into it cannot be called off.

    While one call has not returned no other is made.

    :param read: gives what each domain holds
    :param limit: seconds to wait for it
    """

    def __init__(self, read: host_view.ReadDomains, limit: float) -> None:
        self._read = read
        self._limit = limit
        self._lock = threading.Lock()
        self._call: futures.Future[list[domain.DomainDevices]] | None = None

    def __call__(self) -> Iterable[domain.DomainDevices]:
        """Gives what each domain holds.

        :raises libvirt.libvirtError: if libvirt does not tell in time
        """
        with self._lock:
            if self._call is None or self._call.done():
                self._call = futures.Future()
                # Not an executor's, whose threads keep a process from ending.
                threading.Thread(target=self._run, args=(self._call,),
                                 daemon=True, name='domains').start()
            call = self._call
        try:
            return call.result(self._limit)
        except futures.TimeoutError:
            raise libvirt.libvirtError(
                f'no answer within {self._limit:g} s') from None

    def _run(self, call: 'futures.Future[list[domain.DomainDevices]]'
             ) -> None:
        try:
            call.set_result(list(self._read()))
        except Exception as error:
            call.set_exception(error)


class HostCollector:
    """Looks at the host at each scrape; a collector of prometheus_client.

    :param host: where it is read
    """

    def __init__(self, host: host_view.Host) -> None:
        self._host = host
        self._names: dict[str, str] = {}

    def collect(self) -> Iterator[core.Metric]:
        view = self._host.look()
        yield core.GaugeMetricFamily(
            f'{_PREFIX}_libvirt_up',
            'Whether libvirt told in time who holds what.',
            value=not view.libvirt_error)
        yield _counts(view)
        yield from _details(view, self._names_of(view))

    def _names_of(self, view: host_view.HostView) -> dict[str, str]:
        """Looks up the names of models that were not there before."""
        new = {card.model for card in view.cards} - self._names.keys()
        if new:
            self._names |= dict.fromkeys(new, '') | pci_ids.names(new)
        return self._names


def _counts(view: host_view.HostView) -> core.Metric:
    family = core.GaugeMetricFamily(
        f'{_PREFIX}_cards', 'Cards of this host by what guests can have.',
        labels=['verdict', 'state', 'model', 'numa_node'])
    state = states.of(view)
    counts = collections.Counter(
        (_verdict(card), state[card.address], card.model,
         _text(card.numa_node)) for card in view.cards)
    for labels, number in sorted(counts.items()):
        family.add_metric(labels, number)
    return family


def _details(view: host_view.HostView,
             names: dict[str, str]) -> Iterator[core.Metric]:
    state = states.of(view)
    cards = core.GaugeMetricFamily(
        f'{_PREFIX}_card_info', 'What a card is and where.',
        labels=['address', 'verdict', 'state', 'model', 'name', 'numa_node',
                'iommu_group', 'driver'])
    withheld = core.GaugeMetricFamily(
        f'{_PREFIX}_card_withheld_info', 'Why a card is withheld.',
        labels=['address', 'state', 'model', 'reason'])
    # Not "instance", by which Prometheus names what it scrapes.
    holders = core.GaugeMetricFamily(
        f'{_PREFIX}_card_holder_info', 'Which guest holds a card.',
        labels=['address', 'model', 'instance_uuid'])
    for card in view.cards:
        address = str(card.address)
        cards.add_metric(
            [address, _verdict(card), state[card.address], card.model,
             names[card.model], _text(card.numa_node),
             _text(card.main.iommu_group), _text(card.main.driver)], 1)
        if not card.offered:
            withheld.add_metric([address, state[card.address], card.model,
                                 card.reason], 1)
        holder = view.holder(card)
        if holder is not None:
            holders.add_metric([address, card.model, holder], 1)
    yield from (cards, withheld, holders)


def _verdict(card: host_cards.Card) -> str:
    return 'offered' if card.offered else 'withheld'


def _text(value: object) -> str:
    return '' if value is None else str(value)


class ComputeCollector:
    """Hands on what nova-compute wrote; a collector of prometheus_client.

    :param file: see nova_gpu_passthru.telemetry
    """

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file

    def collect(self) -> Iterator[core.Metric]:
        try:
            with self._file.open(encoding='utf-8') as stream:
                written = os.fstat(stream.fileno()).st_mtime
                families = list(parser.text_fd_to_metric_families(stream))
        except (OSError, ValueError):
            # Not written yet, or no host with GPUs: the time is missing then.
            return
        yield core.GaugeMetricFamily(
            f'{_PREFIX}_compute_report_timestamp_seconds',
            'When nova-compute last wrote its metrics.',
            value=written)
        # prometheus_client writes when each series began, which in this format
        # is a series of its own that nobody asked for.
        yield from (family for family in families
                    if not family.name.endswith('_created'))
