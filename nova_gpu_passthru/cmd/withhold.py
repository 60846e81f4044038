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


"""nova-gpu-passthru withhold"""

import argparse

from cliff import command

from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import one_card
from nova_gpu_passthru import conf


class Withhold(command.Command):
    """Set a card apart, so that no guest gets it any more.

    A guest that has the card keeps it until that guest is gone. It lasts,
    also over restarts of nova-compute and of the host, until the card is
    offered again. Run it as root or as the user of nova-compute.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        one_card.add_argument(parser)
        parser.add_argument('--reason', required=True, metavar='TEXT',
                            type=_reason, help='why, for who comes next')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        view = host_view.look(self.app, None)
        card = one_card.find(view, parsed_args.address)
        conf.records_of(self.app.read_config()).change(
            card, lambda record: record.but(withheld=parsed_args.reason),
            also_unreadable=True)
        self.app.stdout.write(f'GPU {card} is withheld: '
                              f'{parsed_args.reason}\n')
        holder = view.holder(card)
        if holder is not None:
            self.app.stdout.write(
                f'Instance {holder} has it and keeps it until it is gone; '
                f'from then on nobody gets it.\n')
        if not card.offered:
            self.app.stdout.write(f'It was not offered anyway: '
                                  f'{card.reason}\n')


def _reason(text: str) -> str:
    reason = ' '.join(text.split())
    if not reason:
        raise argparse.ArgumentTypeError('say why')
    try:
        reason.encode()
    except UnicodeEncodeError:
        # Whoever shows it later, and Prometheus, would fail.
        raise argparse.ArgumentTypeError(
            f'{reason!r} is no text in the encoding of this terminal; write '
            f'it in UTF-8') from None
    return reason
