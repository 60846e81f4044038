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


"""A restart of nova-compute, or of its host, changes nothing for guests."""

from tests.functional import base


class RestartTest(base.GPUTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.TWO_CARDS)

    def test_guests_keep_their_cards(self) -> None:
        server = self.create_gpu_server()
        domain = self.domain_of(server)
        number = domain.ID()
        self.restart_compute_service('host1')
        self.assertIs(domain, self.domain_of(server))
        self.assertEqual(number, domain.ID(), 'the domain was restarted')
        self.assertGPUs(server, base.CARD_1)

    def test_nothing_is_detached_again(self) -> None:
        self.create_gpu_server()
        calls = list(self.connection.calls)
        self.restart_compute_service('host1')
        self.run_periodic()
        self.assertEqual(calls, self.connection.calls)

    def test_the_first_report_is_right(self) -> None:
        self.create_gpu_server()
        self.assertFree(2, 'host1')
        self.restart_compute_service('host1')
        self.assertFree(1, 'host1')

    def test_other_guests_get_the_other_cards(self) -> None:
        first = self.create_gpu_server()
        self.restart_compute_service('host1')
        second = self.create_gpu_server()
        self.assertGPUs(first, base.CARD_1)
        self.assertGPUs(second, base.CARD_2)

    def test_a_guest_that_is_shut_off_keeps_its_card(self) -> None:
        first = self.create_gpu_server()
        self._stop_server(first)
        self.restart_compute_service('host1')
        self.assertFree(1, 'host1')
        second = self.create_gpu_server()
        self.assertGPUs(second, base.CARD_2)
        self._start_server(first)
        self.assertGPUs(first, base.CARD_1)

    def test_two_restarts_in_a_row(self) -> None:
        server = self.create_gpu_server()
        calls = list(self.connection.calls)
        for _ in range(2):
            self.restart_compute_service('host1')
            self.assertFree(1, 'host1')
        self.assertEqual(calls, self.connection.calls)
        self.assertGPUs(server, base.CARD_1)
        self._delete_server(server)
        self.run_periodic()
        self.assertFree(2, 'host1')

    def test_without_guests(self) -> None:
        calls = list(self.connection.calls)
        self.restart_compute_service('host1')
        self.assertFree(2, 'host1')
        self.assertEqual(calls, self.connection.calls)


class LostDomainTest(base.GPUTestCase):
    """A domain is undefined behind Nova's back."""

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_gpu_server()
        domain = self.domain_of(self.server)
        domain.destroy()
        domain.undefine()
        self.restart_compute_service('host1')
        self.held_without_domain['host1'] = 1

    def test_its_instance_still_counts(self) -> None:
        self.assertFree(1, 'host1')
        self.run_periodic()
        self.run_periodic()
        self.assertFree(1, 'host1')

    def test_nobody_takes_the_last_card_from_it(self) -> None:
        self.create_gpu_server()
        self.create_gpu_server(state='ERROR')

    def test_a_hard_reboot_brings_it_back(self) -> None:
        other = self.create_gpu_server()
        self._reboot_server(self.server, hard=True)
        self.held_without_domain.clear()
        self.assertEqual(2, len(self.domain_of(self.server).functions))
        self.assertCountEqual(
            base.CARD_1 + base.CARD_2,
            self.domain_of(self.server).functions +
            self.domain_of(other).functions)

    def test_its_deletion_gives_the_card_back(self) -> None:
        self._delete_server(self.server)
        self.held_without_domain.clear()
        self.run_periodic()
        self.assertFree(2, 'host1')

    def test_another_restart(self) -> None:
        self.restart_compute_service('host1')
        self.assertFree(1, 'host1')


class HostRebootTest(base.GPUTestCase):
    """The host starts anew: its own drivers have the cards again."""

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.TWO_CARDS)

    def test_a_stopped_guest_starts_on_its_card(self) -> None:
        server = self.create_gpu_server()
        self._stop_server(server)
        self._reboot_host()
        self.assertFree(1, 'host1')
        self._start_server(server)
        self.assertGPUs(server, base.CARD_1)

    def test_guests_are_resumed_on_their_cards(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        server = self.create_gpu_server()
        self._reboot_host()
        self.assertEqual('ACTIVE', self._show_server(server)['status'])
        self.assertGPUs(server, base.CARD_1)

    def test_cards_without_guests_are_detached_again(self) -> None:
        self._reboot_host()
        self.assertFree(2, 'host1')
        server = self.create_gpu_server(2)
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)

    def _reboot_host(self) -> None:
        self.computes['host1'].stop()
        for domain in self.connection.domains:
            if domain.isActive():
                domain.destroy()
        for address, driver in self.connection.original_drivers.items():
            self.connection.sysfs.set_driver(address, driver)
        self.restart_compute_service('host1')
