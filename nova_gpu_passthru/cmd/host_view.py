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

"""What the commands look at: the cards of a host and who holds them."""

import argparse
from collections.abc import Callable, Iterable
import dataclasses
import pathlib

from cliff import app as cliff_app
import libvirt
from lxml import etree
from oslo_config import cfg

from nova_gpu_passthru.cmd import libvirt_host
from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import health
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy
from nova_gpu_passthru.host import records as host_records
from nova_gpu_passthru.host import standing

ReadDomains = Callable[[], Iterable[domain.DomainDevices]]


@dataclasses.dataclass(frozen=True)
class HostView:
    """The cards of a host.

    :ivar functions: all PCI functions of the host
    :ivar cards: all candidates with their verdicts
    :ivar holders: the uuid of the domain that has a function
    :ivar own_verdicts: the cards without what is recorded of them
    :ivar libvirt_error: why it is not known who holds what; empty if it is
    :ivar records_error: why it is not known what is withheld at run time;
        empty if it is
    :ivar notes: what else a person should know
    """

    functions: dict[pci.PCIAddress, pci.PCIFunction]
    cards: tuple[host_cards.Card, ...]
    holders: dict[pci.PCIAddress, str]
    own_verdicts: tuple[host_cards.Card, ...] = ()
    libvirt_error: str = ''
    records_error: str = ''
    notes: tuple[str, ...] = ()

    def holder(self, card: host_cards.Card) -> str | None:
        """The uuid of the domain that has a card."""
        return next((self.holders[address] for address in
                     sorted(card.addresses) if address in self.holders), None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what says which host to look at."""
    parser.add_argument(
        '--sysfs', metavar='DIR', type=pathlib.Path,
        help='read this folder in place of /sys; libvirt is not asked then, '
             'and no configuration is read unless it is given')


@dataclasses.dataclass(frozen=True)
class Host:
    """Where a host is read.

    :ivar sysfs: its PCI functions
    :ivar policy: what its operator wants
    :ivar read_domains: gives what each domain holds, and raises
        libvirt.libvirtError where libvirt does not tell
    :ivar records: what is remembered of its cards, None for nothing
    """

    sysfs: pci.Sysfs
    policy: host_policy.Policy
    read_domains: ReadDomains
    records: host_records.Records | None = None

    def look(self) -> HostView:
        """Looks at the host as it is now."""
        domains: list[domain.DomainDevices] = []
        libvirt_error = ''
        try:
            domains = list(self.read_domains())
        except (libvirt.libvirtError, etree.XMLSyntaxError) as error:
            libvirt_error = str(error)
        holders = {address: devices.uuid for devices in domains
                   for address in devices.held}
        found = host_cards.find(self.sysfs, self.policy)
        cards = tuple(sorted(
            [*found, *health.missing(domains, {a for card in found
                                               for a in card.addresses})],
            key=lambda card: card.address))
        view = HostView(self.sysfs.functions(), cards, holders, cards,
                        libvirt_error)
        return view if self.records is None else _with_records(view,
                                                               self.records)


def host_of(app: cliff_app.App, sysfs: pathlib.Path | None) -> Host:
    """Says where to read the host that the arguments name.

    :param app: the command, whose options name the configuration
    :param sysfs: a folder in place of /sys, None for this host
    :raises Unreadable: if the folder is no sysfs
    :raises InvalidDeviceEntry: if an option makes no sense
    """
    if sysfs is not None and not (sysfs / 'bus' / 'pci').is_dir():
        raise exceptions.Unreadable(
            f'{sysfs} is not a sysfs: it has no folder bus/pci')
    reader = pci.Sysfs(sysfs or '/sys')
    if sysfs is not None and not app.options.config_file:
        return Host(reader, host_policy.Policy(), lambda: ())
    config = app.read_config()
    return Host(
        reader, read_policy(config),
        (lambda: libvirt_host.read_domains(config)) if sysfs is None else
        (lambda: ()), conf.records_of(config) if sysfs is None else None)


def _with_records(view: HostView, records: host_records.Records) -> HostView:
    """Withholds the cards for which something is recorded."""
    try:
        found = records.read()
    except exceptions.RecordsUnavailable as error:
        return dataclasses.replace(view, records_error=str(error), notes=(
            f'What is withheld at run time is not known: {error}',))
    return dataclasses.replace(
        view, cards=tuple(
            standing.judged(card, found.get(card.address),
                            [uuid for uuid in [view.holder(card)] if uuid])
            for card in view.cards),
        notes=tuple(
            f'What is remembered of GPU {address} is left aside: {what}.'
            for address, what in
            standing.strangers(view.cards, found).items()))


def read_policy(config: cfg.ConfigOpts) -> host_policy.Policy:
    """Reads the options that decide about cards, Nova's own among them.

    :raises InvalidDeviceEntry: if an entry of include or exclude makes no
        sense
    """
    policy = conf.read_policy(config)
    if not config.pci.device_spec:
        return policy
    # Only here, for it imports Nova, which takes a while.
    from nova_gpu_passthru import nova_host
    return dataclasses.replace(
        policy, nova_gives=nova_host.given_by_nova(config.pci.device_spec))


def look(app: cliff_app.App, sysfs: pathlib.Path | None) -> HostView:
    """Looks at the host that the arguments name, and says what is amiss.

    :raises Unreadable: if the folder is no sysfs
    :raises InvalidDeviceEntry: if an option makes no sense
    """
    view = host_of(app, sysfs).look()
    if view.libvirt_error:
        app.stderr.write(f'libvirt cannot be asked which guests hold the '
                         f'cards: {view.libvirt_error}\n')
    if not view.cards:
        app.stderr.write('This host has no display and no accelerator.\n')
    for note in view.notes:
        app.stderr.write(note + '\n')
    return view
