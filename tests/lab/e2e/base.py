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

"""What the end-to-end tests share.

A test finds nova-compute running and all cards free, and leaves it so: the
servers that it boots are deleted after it.
"""

import collections
import json
import typing
import unittest

from lab import pci
from lab import session
from lab import steps
from lab import topology

_STATS_LIMIT = 120
_BEAT_LIMIT = 180


class LabTestCase(unittest.TestCase):
    """A test that has a cloud with one virtual GPU host, self.lab."""

    lab: typing.ClassVar[session.Session]

    def setUp(self) -> None:
        super().setUp()
        if not self._is_told(topology.TOTAL):
            self.assert_free(topology.TOTAL)

    def create_flavor(self, free_gpus: str, **extra_specs: str) -> str:
        """Create a flavor; it is deleted after the test."""
        flavor = self.lab.cloud.create_flavor(
            {'free_gpus': free_gpus, **extra_specs})
        self.addCleanup(self.lab.cloud.delete_flavor, flavor)
        return flavor

    def create_server(self, free_gpus: str, machine: str = 'pc',
                      **extra_specs: str) -> str:
        """Ask for a server with GPUs; it is deleted after the test."""
        flavor = self.create_flavor(free_gpus, **extra_specs)
        server = self.lab.cloud.create_server(flavor, machine)
        self.addCleanup(self.lab.cloud.delete_server, server)
        return server

    def boot(self, free_gpus: str = '>=1', machine: str = 'pc',
             **extra_specs: str) -> str:
        """Create a server and wait until it is ACTIVE; return its id."""
        model = extra_specs.get('gpu_passthru:model', '')
        with steps.step(
                f'Create a {machine} server with {free_gpus} GPUs {model}'):
            server = self.create_server(free_gpus, machine, **extra_specs)
            status = self.lab.cloud.wait_built(server)
            self.assertEqual('ACTIVE', status,
                             self.lab.cloud.server(server).fault)
        return server

    def assert_no_valid_host(self, free_gpus: str,
                             **extra_specs: str) -> None:
        """Check that the scheduler finds no host for such a server."""
        model = extra_specs.get('gpu_passthru:model', '')
        with steps.step(f'Ask for {free_gpus} GPUs {model} in vain'):
            server = self.create_server(free_gpus, **extra_specs)
            self.assertEqual('ERROR', self.lab.cloud.wait_built(server))
        self.assertIn('No valid host was found',
                      self.lab.cloud.server(server).fault['message'])

    def report(self, server: str) -> pci.Report:
        """What a guest's kernel sees on PCI from now on, once it says so."""
        with steps.step('Read what the guest reports on its console'):
            return self.lab.cloud.wait_report(server)

    def delete(self, server: str) -> None:
        """Delete a server and wait until it is gone."""
        with steps.step('Delete the server'):
            self.lab.cloud.delete_server(server)

    def assert_free(self, count: int) -> None:
        """Wait until scheduler and Placement both go by this number."""
        with steps.step(f'Wait for a report of {count} free cards'):
            try:
                steps.wait_for(lambda: self._is_told(count), 'No such report',
                               _STATS_LIMIT)
            except steps.LabError:
                self.fail(f'Not {count} cards are free: '
                          f'{self.lab.cloud.gpu_stats()}, '
                          f'{self.lab.cloud.placement_free()} in Placement, '
                          f'{self.cards()}')

    def _is_told(self, count: int) -> bool:
        return (self.lab.cloud.gpu_stats().get('free_gpus') == count and
                self.lab.cloud.placement_free() == count)

    def assert_alive(self, server: str) -> None:
        """Check that a guest goes on writing to its console."""
        with steps.step('See that the guest goes on'):
            before = self._beats(server)
            steps.wait_for(
                lambda: self._beats(server) > before,
                f'Guest {server} writes nothing any more', _BEAT_LIMIT)

    def _beats(self, server: str) -> int:
        return self.lab.cloud.console(server).count('GUEST-ALIVE')

    @classmethod
    def cards(cls) -> list[dict[str, typing.Any]]:
        """The rows of nova-gpu-passthru list on the virtual host.

        Under software emulation that takes 10 to 20 seconds.
        """
        return json.loads(
            cls.lab.host.run('nova-gpu-passthru list --format json'))

    def cards_of(self, server: str) -> list[dict[str, typing.Any]]:
        """The cards that a server holds, as the product's command says."""
        return [row for row in self.cards() if row['instance'] == server]

    def assert_sees_its_cards(
            self, server: str, report: pci.Report,
            count: int = 1) -> list[dict[str, typing.Any]]:
        """Check that host and guest agree on which cards a guest has.

        Returns the rows of those cards.
        """
        cards = self.cards_of(server)
        self.assertEqual(count, len(cards), cards)
        on_host = {function.address: function
                   for function in self.lab.functions()}
        expected = []
        addresses = []
        for card in cards:
            functions = [card['address'], *card['companions']]
            addresses += functions
            expected.append(sorted(
                (on_host[address].model, on_host[address].mib)
                for address in functions))
        self.assertEqual(sorted(addresses),
                         self.lab.passed_functions(server))
        self.assertEqual({'vfio-pci'},
                         {on_host[address].driver for address in addresses})

        # Slots of the guest with something in them that we passed: nothing
        # else that these guests have carries such an id.
        passed = {model for slot in expected for model, _ in slot}
        slots = collections.defaultdict(list)
        for function in report.functions:
            slots[function.slot].append((function.model, function.mib))
        seen = sorted(sorted(slot) for slot in slots.values()
                      if passed & {model for model, _ in slot})
        if sorted(expected) != seen:
            self.fail(f'The guest should see {sorted(expected)} and sees '
                      f'{seen}: {self._why_not_seen(server)}')
        return cards

    def _why_not_seen(self, server: str) -> str:
        """What tells QEMU, the guest's kernel and the way here apart."""
        in_qemu = self.lab.host.try_run(
            f'virsh qemu-monitor-command {server} --hmp info pci').stdout
        again = self.report(server).functions
        return f'it reports {again} now, and its QEMU has\n{in_qemu}'
