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

"""nova-gpu-passthru list"""

import argparse
from collections.abc import Iterable, Iterator
import pathlib
from typing import Any

from cliff import columns
from cliff import lister
import libvirt
from oslo_config import cfg

from nova_gpu_passthru.cmd import libvirt_host
from nova_gpu_passthru.cmd import pci_ids
from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy


class Addresses(columns.FormattableColumn):
    """A list of addresses; machines get it as a list."""

    def human_readable(self) -> str:
        return ' '.join(self._value)

    def machine_readable(self) -> list[str]:
        return list(self._value)


class Optional(columns.FormattableColumn):
    """A value that may be missing; people get a dash for it."""

    def human_readable(self) -> str:
        return '-' if self._value in (None, '') else str(self._value)

    def machine_readable(self) -> Any:
        return self._value


COLUMNS = ('address', 'verdict', 'reason', 'companions', 'model', 'name',
           'numa_node', 'iommu_group', 'driver', 'instance')


class List(lister.Lister):
    """List the GPUs of this host, which are offered to guests, and why not.

    Each row is a card, named by its GPU function; a display that stays with
    the host has a row as well, with the reason.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--sysfs', metavar='DIR', type=pathlib.Path,
            help='read this folder in place of /sys; libvirt is not asked '
                 'then, and no configuration is read unless it is given')
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        root = parsed_args.sysfs
        if root is not None and not (root / 'bus' / 'pci').is_dir():
            raise exceptions.Unreadable(
                f'{root} is not a sysfs: it has no folder bus/pci')
        policy = host_policy.Policy()
        holders: dict[pci.PCIAddress, str] = {}
        if root is None or self.app.options.config_file:
            config = self.app.read_config()
            policy = conf.read_policy(config)
            if root is None:
                holders = self._holders(config)
        cards = host_cards.find(pci.Sysfs(root or '/sys'), policy)
        if not cards:
            self.app.stderr.write('This host has no display and no '
                                  'accelerator.\n')
        names = pci_ids.names({card.model for card in cards})
        return COLUMNS, (_row(card, names, holders) for card in cards)

    def _holders(self, config: cfg.ConfigOpts) -> dict[pci.PCIAddress, str]:
        """Reads which domain holds each function, if libvirt can be asked."""
        try:
            domains = libvirt_host.read_domains(config)
        except libvirt.libvirtError as error:
            self.app.stderr.write(
                f'libvirt cannot be asked which guests hold the cards: '
                f'{error}\n')
            return {}
        return {address: devices.uuid for devices in domains
                for address in devices.addresses}


def _row(card: host_cards.Card, names: dict[str, str],
         holders: dict[pci.PCIAddress, str]) -> tuple[Any, ...]:
    holder = next(_held_by(card, holders), None)
    return (
        str(card.address), 'offered' if card.offered else 'withheld',
        card.reason, Addresses([str(f.address) for f in card.companions]),
        card.model, Optional(names.get(card.model, '')),
        Optional(card.numa_node), Optional(card.main.iommu_group),
        Optional(card.main.driver), Optional(holder))


def _held_by(card: host_cards.Card,
             holders: dict[pci.PCIAddress, str]) -> Iterator[str]:
    return (holders[address] for address in sorted(card.addresses)
            if address in holders)
