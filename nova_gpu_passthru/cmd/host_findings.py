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

"""What can stand between a host and working GPU passthrough."""

from collections.abc import Iterable, Iterator, Sequence
import pathlib
import platform

import libvirt
from oslo_config import cfg

from nova_gpu_passthru.cmd import findings
from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import libvirt_host
from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import health
from nova_gpu_passthru.host import iomem
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy
from nova_gpu_passthru.host import processes as host_processes
from nova_gpu_passthru.host import records as host_records
from nova_gpu_passthru.host import standing

DRIVER = 'nova_gpu_passthru.driver.GPUPassthruDriver'


def of_host(config: cfg.ConfigOpts) -> Iterator[findings.Finding]:
    """Looks at this host.

    :param config: the options that nova-compute has
    """
    sysfs = pci.Sysfs()
    yield from of_configuration(config)
    yield from of_kernel(sysfs)
    try:
        conf.check(config)
        policy = host_view.read_policy(config)
    except (exceptions.InvalidDeviceEntry, exceptions.InvalidOption):
        return  # of_configuration() has told
    owners = iomem.owners()
    cards = [health.obstructed(card, owners)
             for card in host_cards.find(sysfs, policy)]
    yield from of_users(cards, host_processes.Processes(sysfs))
    domains: list[domain.DomainDevices] = []
    try:
        domains = libvirt_host.read_domains(config)
    except libvirt.libvirtError as error:
        yield findings.Finding(
            'libvirt', f'it does not answer: {error}',
            'start libvirtd (or virtqemud), and run this as root or in the '
            'group libvirt')
    yield from of_device_spec(cards, policy, domains)
    yield from of_cards(cards)
    yield from of_domains(domains, cards, policy)
    yield from of_records(cards, conf.records_of(config), domains)


def of_configuration(config: cfg.ConfigOpts) -> Iterator[findings.Finding]:
    """Looks at nova-compute's options.

    :param config: with [DEFAULT] compute_driver, [libvirt] virt_type and
        the options of [gpu_passthru]
    """
    if config.compute_driver != DRIVER:
        yield findings.Finding(
            'nova.conf',
            f'compute_driver is {config.compute_driver or "not set"}',
            f'set [DEFAULT] compute_driver = {DRIVER}')
    if config.libvirt.virt_type not in conf.VIRT_TYPES:
        yield findings.Finding(
            'nova.conf',
            f'[libvirt] virt_type is {config.libvirt.virt_type}, whose guests '
            f'cannot have GPUs', 'set [libvirt] virt_type = kvm')
    try:
        conf.check(config)
    except exceptions.InvalidOption as error:
        what, _, cure = str(error).rpartition('; ')
        yield findings.Finding('nova.conf', what, cure)
        return
    try:
        conf.read_policy(config)
    except exceptions.InvalidDeviceEntry as error:
        yield findings.Finding('nova.conf', str(error), 'correct the entry')
    try:
        conf.read_terms(config)
    except exceptions.InvalidReleaseHook as error:
        yield findings.Finding('nova.conf', str(error), 'correct the path')


def of_kernel(sysfs: pci.Sysfs, root: pathlib.Path = pathlib.Path('/'),
              release: str = platform.release()) -> Iterator[findings.Finding]:
    """Looks for the IOMMU and the stub driver.

    :param sysfs: of the host
    :param root: the root folder of the host
    :param release: the kernel's
    """
    if sysfs.is_xen():
        return
    if not sysfs.has_iommu():
        yield findings.Finding(
            'IOMMU', 'the kernel has no IOMMU groups',
            'enable VT-d or AMD-Vi in the firmware, and on Intel boot with '
            'intel_iommu=on')
    modules = root / 'lib' / 'modules' / release
    if not (sysfs.has_driver('vfio-pci') or any(
            'vfio-pci.ko' in _text(modules / name)
            for name in ('modules.dep', 'modules.builtin'))):
        yield findings.Finding(
            'vfio-pci', f'kernel {release} has no module vfio-pci',
            "install the kernel's module package (on Ubuntu: "
            'linux-modules-extra)')


def of_cards(cards: Sequence[host_cards.Card]) -> Iterator[findings.Finding]:
    """Looks at the verdicts.

    :param cards: all candidates of the host
    """
    for card in cards:
        if not (card.offered or card.stays_with_host):
            what, _, cure = card.reason.partition('; ')
            yield findings.Finding(
                f'GPU {card.address}', what,
                cure or 'none is known: name it in [gpu_passthru] exclude',
                findings.WARNING)
    if not cards:
        yield findings.Finding(
            'GPUs', 'the kernel sees no display and no accelerator',
            'look for the cards in lspci, in the firmware and in '
            'their slots')
    elif not any(card.offered for card in cards):
        yield findings.Finding(
            'GPUs',
            f'none of {len(cards)} displays and accelerators is offered to '
            f'guests', 'see nova-gpu-passthru list')


def of_records(cards: Sequence[host_cards.Card],
               records: host_records.Records,
               domains: Iterable[domain.DomainDevices]
               ) -> Iterator[findings.Finding]:
    """Looks for cards that were set apart at run time.

    :param cards: all candidates of the host, with their own verdicts
    :param records: what is remembered of them
    :param domains: all domains of the host that are known
    """
    try:
        found = records.read()
    except exceptions.RecordsUnavailable as error:
        what, _, cure = str(error).partition('; ')
        yield findings.Finding('records', what, cure)
        return
    domains = list(domains)
    for card in cards:
        judged = standing.judged(
            card, found.get(card.address),
            [d.uuid for d in domains if card.addresses & d.addresses])
        if card.offered and not judged.offered:
            what, _, cure = judged.reason.rpartition('; ')
            yield findings.Finding(
                f'GPU {card.address}', what, cure, findings.WARNING)
    for address, what in standing.strangers(cards, found).items():
        yield findings.Finding(
            f'GPU {address}', what,
            f'if that card is gone for good: nova-gpu-passthru '
            f'offer {address}', findings.WARNING)


def of_users(cards: Iterable[host_cards.Card],
             processes: host_processes.Processes
             ) -> Iterator[findings.Finding]:
    """Looks for processes that keep cards from being detached.

    :param cards: all candidates of the host
    """
    for card in cards:
        if not card.offered or card.on_stub:
            continue
        users = processes.users(f.address for f in card.functions
                                if not f.on_stub)
        if users.processes:
            yield findings.Finding(
                f'GPU {card.address}', str(users),
                'stop what uses it: nova-compute cannot detach it '
                'until then', findings.WARNING)


def of_device_spec(cards: Sequence[host_cards.Card],
                   policy: host_policy.Policy,
                   domains: Iterable[domain.DomainDevices]
                   ) -> Iterator[findings.Finding]:
    """Looks for cards that Nova's own PCI tracker gives to guests.

    :param cards: all candidates of the host
    :param policy: the policy by which they were judged
    :param domains: all domains of the host, each once, as far as they are
        known
    """
    domains = list(domains)
    for card in cards:
        if not policy.nova_gives_part_of(card.functions):
            continue
        what, _, cure = card.reason.partition('; ')
        # This driver writes down which cards it gave.
        names = ' and '.join(sorted(
            f'{d.name} ({d.uuid})' for d in domains
            if card.addresses & d.addresses and card.address not in d.models))
        if names:
            what += f'; domain {names} has it so'
            cure = (f'resize that guest to a flavor that asks for GPUs by '
                    f'free_gpus, or delete it; then {cure}')
        yield findings.Finding(
            f'GPU {card.address}', what, cure, findings.WARNING)


def of_domains(domains: Iterable[domain.DomainDevices],
               cards: Sequence[host_cards.Card],
               policy: host_policy.Policy) -> Iterator[findings.Finding]:
    """Looks for guests that get in each other's way.

    Nova's PCI tracker gives functions, not cards: of those,
    of_device_spec() tells.

    :param domains: all domains of the host, each once
    :param cards: all candidates of the host
    :param policy: the policy by which they were judged
    """
    domains = list(domains)
    for card in cards:
        holders = [d for d in domains if card.addresses & d.addresses]
        names = ' and '.join(sorted(d.name for d in holders))
        if len(holders) > 1:
            yield findings.Finding(
                f'GPU {card.address}', f'domains {names} name it',
                'remove it from all but one: only one can run',
                findings.WARNING)
        elif (holders and not card.addresses <= holders[0].addresses and
                not policy.nova_gives_part_of(card.functions)):
            missing = sorted(card.addresses - holders[0].addresses)
            yield findings.Finding(
                f'GPU {card.address}',
                f'domain {names} has it without '
                f'{", ".join(str(address) for address in missing)}',
                'give that domain the whole card or nothing of it',
                findings.WARNING)


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ''
