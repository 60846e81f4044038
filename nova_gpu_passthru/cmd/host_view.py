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
import dataclasses
import pathlib

from cliff import app as cliff_app
import libvirt

from nova_gpu_passthru.cmd import libvirt_host
from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy


@dataclasses.dataclass(frozen=True)
class HostView:
    """The cards of a host.

    :ivar functions: all PCI functions of the host
    :ivar cards: all candidates with their verdicts
    :ivar holders: the uuid of the domain that has a function
    """

    functions: dict[pci.PCIAddress, pci.PCIFunction]
    cards: tuple[host_cards.Card, ...]
    holders: dict[pci.PCIAddress, str]

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


def look(app: cliff_app.App, sysfs: pathlib.Path | None) -> HostView:
    """Looks at a host.

    :param app: the command, whose options name the configuration
    :param sysfs: a folder in place of /sys, None for this host
    :raises Unreadable: if the folder is no sysfs
    :raises InvalidDeviceEntry: if an option makes no sense
    """
    if sysfs is not None and not (sysfs / 'bus' / 'pci').is_dir():
        raise exceptions.Unreadable(
            f'{sysfs} is not a sysfs: it has no folder bus/pci')
    policy = host_policy.Policy()
    holders: dict[pci.PCIAddress, str] = {}
    if sysfs is None or app.options.config_file:
        config = app.read_config()
        policy = conf.read_policy(config)
        if sysfs is None:
            try:
                holders = {address: devices.uuid for devices in
                           libvirt_host.read_domains(config)
                           for address in devices.addresses}
            except libvirt.libvirtError as error:
                app.stderr.write(f'libvirt cannot be asked which guests hold '
                                 f'the cards: {error}\n')
    reader = pci.Sysfs(sysfs or '/sys')
    cards = host_cards.find(reader, policy)
    if not cards:
        app.stderr.write('This host has no display and no accelerator.\n')
    return HostView(reader.functions(), cards, holders)
