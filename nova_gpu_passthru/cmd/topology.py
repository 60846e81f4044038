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

"""nova-gpu-passthru topology"""

import argparse
from collections.abc import Iterator

from cliff import command

from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import pci_ids
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci


class Topology(command.Command):
    """Show where the GPUs of this host are, as a tree.

    From the NUMA nodes over the root ports and switches down to the cards,
    with who holds each.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        host_view.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        view = host_view.look(self.app, parsed_args.sysfs)
        names = pci_ids.names({card.model for card in view.cards})
        for line in draw(view, names):
            self.app.stdout.write(line + '\n')


def draw(view: host_view.HostView, names: dict[str, str]) -> Iterator[str]:
    """Draws the tree.

    :param view: the host
    :param names: of the models that have one
    :returns: its lines
    """
    nodes = {card.numa_node for card in view.cards}
    for node in sorted(nodes, key=lambda n: (n is None, n or 0)):
        yield 'no NUMA node' if node is None else f'NUMA node {node}'
        above: tuple[pci.PCIAddress, ...] = ()
        for card in sorted(
                (c for c in view.cards if c.numa_node == node),
                key=lambda c: (c.main.bridges, c.address)):
            bridges = card.main.bridges
            for depth, bridge in enumerate(bridges):
                if above[:depth + 1] != bridges[:depth + 1]:
                    yield _line(depth + 1, _bridge(bridge, depth, view))
            above = bridges
            yield _line(len(bridges) + 1, _card(card, names, view))


def _line(depth: int, text: str) -> str:
    return '  ' * depth + text


def _bridge(address: pci.PCIAddress, depth: int,
            view: host_view.HostView) -> str:
    function = view.functions.get(address)
    model = f' ({function.model})' if function is not None else ''
    return f'{"root port" if depth == 0 else "bridge"} {address}{model}'


def _card(card: host_cards.Card, names: dict[str, str],
          view: host_view.HostView) -> str:
    holder = view.holder(card)
    if holder is not None:
        state = f'held by {holder}'
    else:
        state = 'offered' if card.offered else f'withheld: {card.reason}'
    name = names.get(card.model, '')
    return f'GPU {card.address} {name or card.model}, {state}'
