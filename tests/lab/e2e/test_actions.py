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

"""What servers with GPUs keep over what users and operators do to them."""

from collections.abc import Iterator
import contextlib
import typing

from lab import nova_compute
from lab import pci
from lab import steps
from lab import topology

from e2e import base

_SINGLE = {'gpu_passthru:model': topology.SINGLE}
_TWIN = {'gpu_passthru:model': topology.IDENTICAL}

_SEVERAL = 'has several functions in one slot of the guest'

Cards = list[dict[str, typing.Any]]


class ActionsTest(base.LabTestCase):
    """One server lives through many actions: each boot of a guest is long."""

    @contextlib.contextmanager
    def _bound_once(self) -> Iterator[None]:
        """Check that no function of the host changes its driver meanwhile."""
        with nova_compute.watch_bindings(self.lab.host) as bindings:
            yield
        self.assertEqual([], bindings)

    def _act(self, server: str, action: str, wanted: str = 'ACTIVE',
             **arguments: typing.Any) -> None:
        with steps.step(f'Call {action}'):
            self.lab.cloud.act(server, action, wanted, **arguments)

    def _assert_kept(self, server: str, cards: Cards) -> None:
        """Check who has the cards: libvirt, Placement and the scheduler."""
        self.assertEqual(
            sorted(address for card in cards
                   for address in (card['address'], *card['companions'])),
            self.lab.passed_functions(server))
        # What the scheduler was told before must not stand in for this.
        self.lab.cloud.forget_gpu_stats()
        self.assert_free(topology.TOTAL - len(cards))

    def _assert_goes_on(self, server: str, before: pci.Report) -> None:
        """Check that the guest was not started anew and sees what it saw."""
        self.assertEqual(before, self.report(server))

    def _assert_restarted(self, server: str,
                          before: pci.Report) -> pci.Report:
        """Check that the guest was started anew and sees what it saw."""
        after = self.report(server)
        self.assertNotEqual(before.boot, after.boot)
        self.assertEqual(before.functions, after.functions)
        return after

    def _snapshot(self, server: str) -> str:
        """Ask for a snapshot; returns what becomes of its image."""
        with steps.step('Make a snapshot'):
            compute = self.lab.cloud.connection.compute
            image = compute.create_server_image(server, f'of {server}')
            self.addCleanup(self.lab.cloud.delete_image, image.id)
            outcome = self.lab.cloud.wait_image(image.id)
            self.lab.cloud.wait_idle(server)
            return outcome

    @contextlib.contextmanager
    def _reverted(self, server: str) -> Iterator[None]:
        """Wait until Nova has done all that it does after a failed action.

        Last it clears the server's task, though that of another action may
        have begun by then (nova.compute.manager.reverts_task_state, in Nova
        31 to 34).
        """
        def count() -> int:
            return sum('reverted task state' in line and server in line
                       for line in self.lab.compute.new_log().splitlines())

        before = count()
        yield
        steps.wait_for(lambda: count() > before,
                       f'Nova is not done with what failed on {server}', 60)

    def test_a_card_with_one_function(self) -> None:
        server = self.boot(**_SINGLE)
        before = self.report(server)
        cards = self.assert_sees_its_cards(server, before)
        with self._bound_once():
            self.assertEqual('active', self._snapshot(server))
            self._assert_goes_on(server, before)
            self._assert_kept(server, cards)

            self._act(server, 'suspend_server', 'SUSPENDED')
            self._assert_kept(server, cards)
            self.assert_no_valid_host('>=1', **_SINGLE)
            self._act(server, 'resume_server')
            self._assert_goes_on(server, before)
            self._assert_kept(server, cards)

            with steps.step('Restart libvirtd'):
                self.lab.restart_libvirtd()
            self._assert_kept(server, cards)
            self._assert_goes_on(server, before)

            self._act(server, 'reboot_server', reboot_type='HARD')
            rebooted = self._assert_restarted(server, before)
            self._assert_kept(server, cards)

            self._act(server, 'stop_server', 'SHUTOFF')
            self._assert_kept(server, cards)
            self.assert_no_valid_host('>=1', **_SINGLE)
            self._act(server, 'start_server')
            self._assert_restarted(server, rebooted)
            self._assert_kept(server, cards)
        self.delete(server)
        self.assert_free(topology.TOTAL)

    def test_a_card_with_two_functions(self) -> None:
        server = self.boot(**_TWIN)
        before = self.report(server)
        cards = self.assert_sees_its_cards(server, before)
        with self._bound_once():
            # Nova 34 makes snapshots after it has called the action a success,
            # so only its log has the reason.
            self.assertEqual('', self._snapshot(server))
            with self._reverted(server):
                self._act(server, 'suspend_server')
                self.assertIn(_SEVERAL, self.lab.cloud.wait_error(server))
            self._assert_goes_on(server, before)
            self._assert_kept(server, cards)

            self._act(server, 'rescue_server', 'RESCUE')
            rescued = self.report(server)
            self.assertNotEqual(before.boot, rescued.boot)
            self.assertEqual(
                cards, self.assert_sees_its_cards(server, rescued))
            self._assert_kept(server, cards)
            self._act(server, 'unrescue_server')
            self._assert_restarted(server, before)
            self._assert_kept(server, cards)

            # Of any model: FreeGPUsFilter wants two that are free, and one of
            # the two twins is not.
            two = self.create_flavor('>=2')
            self._act(server, 'resize_server', 'VERIFY_RESIZE', flavor=two)
            both = self.assert_sees_its_cards(server, self.report(server), 2)
            self.assertIn(cards[0], both)
            self._assert_kept(server, both)
            self._act(server, 'revert_server_resize')
            self._assert_restarted(server, before)
            self._assert_kept(server, cards)

            self._act(server, 'resize_server', 'VERIFY_RESIZE', flavor=two)
            self._assert_kept(server, both)
            self._act(server, 'confirm_server_resize')
            self.assertEqual(both, self.assert_sees_its_cards(
                server, self.report(server), 2))
            self._assert_kept(server, both)

            # Nothing to take out of a guest that does not run.
            self._act(server, 'stop_server', 'SHUTOFF')
            self.assertEqual('active', self._snapshot(server))
            self._assert_kept(server, both)
        self.delete(server)
        self.assert_free(topology.TOTAL)
