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
from collections.abc import Iterable
from typing import Any

from cliff import columns
from cliff import lister

from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import pci_ids
from nova_gpu_passthru.cmd import states
from nova_gpu_passthru.host import cards as host_cards


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


COLUMNS = ('address', 'verdict', 'state', 'reason', 'companions', 'model',
           'name', 'numa_node', 'iommu_group', 'driver', 'instance')


class List(lister.Lister):
    """List the GPUs of this host, which are offered to guests, and why not.

    Each row is a card, named by its GPU function; a display that stays with
    the host has a row as well, with the reason.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        host_view.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        view = host_view.look(self.app, parsed_args.sysfs)
        names = pci_ids.names({card.model for card in view.cards})
        state = states.of(view)
        return COLUMNS, (
            _row(card, state[card.address], names, view.holder(card))
            for card in view.cards)


def _row(card: host_cards.Card, state: str, names: dict[str, str],
         holder: str | None) -> tuple[Any, ...]:
    return (
        str(card.address), 'offered' if card.offered else 'withheld', state,
        card.reason, Addresses([str(f.address) for f in card.companions]),
        card.model, Optional(names.get(card.model, '')),
        Optional(card.numa_node), Optional(card.main.iommu_group),
        Optional(card.main.driver), Optional(holder))
