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

"""nova-gpu-passthru check"""

import argparse
from collections.abc import Iterator

from cliff import lister
import libvirt

from nova_gpu_passthru.cmd import findings
from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import libvirt_host
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci


class Check(lister.Lister):
    """Say what stands between this host and working GPU passthrough.

    Each row is a problem with its cure. The exit status is 1 if there is
    any, else 0.
    """

    def run(self, parsed_args: argparse.Namespace) -> int:
        self._found: list[findings.Finding] = []
        super().run(parsed_args)
        return 1 if self._found else 0

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[findings.Finding]]:
        self._found = list(self._look())
        if not self._found:
            self.app.stderr.write('Nothing stands in the way.\n')
        return findings.Finding._fields, self._found

    def _look(self) -> Iterator[findings.Finding]:
        config = self.app.read_config()
        sysfs = pci.Sysfs()
        yield from findings.of_nova()
        yield from findings.of_configuration(config)
        yield from findings.of_kernel(sysfs)
        try:
            policy = host_view.read_policy(config)
        except exceptions.InvalidDeviceEntry:
            return  # of_configuration() has told
        cards = host_cards.find(sysfs, policy)
        yield from findings.of_device_spec(cards, policy)
        yield from findings.of_cards(cards)
        try:
            domains = libvirt_host.read_domains(config)
        except libvirt.libvirtError as error:
            yield findings.Finding(
                'libvirt', f'it does not answer: {error}',
                'start libvirtd (or virtqemud), and run this as root or in '
                'the group libvirt')
        else:
            yield from findings.of_domains(domains, cards)
