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


"""The host was rebooted, and guests are not resumed with it."""

from nova import context as nova_context

from tests.functional import base


class GuestsStayOffTest(base.GPUTestCase):
    """[DEFAULT] resume_guests_state_on_host_boot is off, as by default."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_gpu_server()
        self._reboot_host()

    def test_the_card_is_detached_again_and_kept(self) -> None:
        self.assertEqual(0, self.domain_of(self.server).isActive())
        self.assertFree(1, 'host1')
        self.assertGPUs(self.create_gpu_server(), base.CARD_2)
        self.create_gpu_server(state='ERROR')

    def test_start_brings_the_card_back(self) -> None:
        self._sync_power_states()
        self.assertGPUs(self.create_gpu_server(), base.CARD_2)
        self._start_server(self.server)
        self.assertGPUs(self.server, base.CARD_1)

    def test_hard_reboot_brings_the_card_back(self) -> None:
        self.assertGPUs(self.create_gpu_server(), base.CARD_2)
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, base.CARD_1)

    def test_delete_frees_the_card(self) -> None:
        self._sync_power_states()
        self._delete_server(self.server)
        self.run_periodic()
        self.assertFree(2, 'host1')

    def _sync_power_states(self) -> None:
        """Lets Nova see that the guest is off."""
        self.computes['host1'].manager._sync_power_states(
            nova_context.get_admin_context())
        self._wait_for_state_change(self.server, 'SHUTOFF')

    def _reboot_host(self) -> None:
        self.computes['host1'].stop()
        self.domain_of(self.server).destroy()
        for address, driver in self.connection.original_drivers.items():
            self.connection.sysfs.set_driver(address, driver)
        self.restart_compute_service('host1')
