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


"""Finds the one card that a command is about."""

import argparse

from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the address of a card."""
    parser.add_argument(
        'address', metavar='ADDRESS', type=_address,
        help="any function's of the card, such as 0000:3b:00.0")


def find(view: host_view.HostView,
         address: pci.PCIAddress) -> host_cards.Card:
    """Finds the card that has a function, with its own verdict.

    :raises UnknownCard: if none has
    """
    for card in view.own_verdicts:
        if address in card.addresses:
            return card
    raise exceptions.UnknownCard(
        f'No GPU of this host has the function {address}. See '
        f'nova-gpu-passthru list for those that there are.')


def _address(text: str) -> pci.PCIAddress:
    try:
        return pci.PCIAddress.parse(text)
    except exceptions.InvalidPCIAddress as error:
        raise argparse.ArgumentTypeError(str(error)) from error
