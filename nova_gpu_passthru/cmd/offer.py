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


"""nova-gpu-passthru offer"""

import argparse

from cliff import command

from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import one_card
from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import records as host_records


class Offer(command.Command):
    """Give a card back that was set apart.

    Whether by an operator, by [gpu_passthru] hold_after_release, because its
    release failed, because a guest did not start with it, or because it could
    not be detached from its host driver. That the card is clean and well is
    the operator's word: the hook does not run again. Run it as root or as the
    user of nova-compute.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        one_card.add_argument(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        records = conf.records_of(self.app.read_config())
        view = host_view.look(self.app, None)
        try:
            card = one_card.find(view, parsed_args.address)
        except exceptions.UnknownCard:
            self._forget(records, parsed_args.address)
            return
        record = records.change(card, _offered, also_unreadable=True)
        if not card.offered:
            raise exceptions.NotOffered(
                f'GPU {card} stays withheld, and this command cannot change '
                f'that: {card.reason}{_cure(card)}.')
        self._tell(card, record, view)

    def _forget(self, records: host_records.Records,
                address: pci.PCIAddress) -> None:
        """Drops what is remembered of a card that is not there any more.

        :raises UnknownCard: if there is nothing
        """
        if not records.forget(address):
            raise exceptions.UnknownCard(
                f'No GPU of this host has the function {address}, and nothing '
                f'is remembered of one. See nova-gpu-passthru list.')
        self.app.stdout.write(f'There is no GPU {address} any more; what was '
                              f'remembered of it is deleted.\n')

    def _tell(self, card: host_cards.Card, record: host_records.Record,
              view: host_view.HostView) -> None:
        holder = view.holder(card)
        if holder is not None:
            text = (f'Instance {holder} has GPU {card}; it is not set apart '
                    f'any more when that instance is gone.')
        elif record.given_to:
            text = (f'GPU {card} is not set apart any more, but was given to '
                    f'{record.given_to} and is still being released; the log '
                    f'of nova-compute tells how that goes.')
        else:
            text = (f'GPU {card} is offered to guests; nova-compute reports '
                    f'it with its next periodic update.')
        self.app.stdout.write(text + '\n')


def _offered(record: host_records.Record) -> host_records.Record:
    """Drops all that sets a card apart.

    A release that goes on is left to come to its end.
    """
    return host_records.Record(
        record.model, retry=True,
        given_to='' if record.failed_release else record.given_to)


def _cure(card: host_cards.Card) -> str:
    if not card.by_choice or '; ' in card.reason:
        return ''
    return '; change that in nova.conf and restart nova-compute'
