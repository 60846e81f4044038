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


"""A suspended guest keeps its cards, or is not suspended.

libvirt saves no guest that has host devices, and takes no device of several
functions out of a running guest.
"""

from typing import Any

from nova.compute import instance_actions

from tests.functional import base
from tests.functional import libvirt_errors
from tests.functional import node_device

TWO_H100 = """
0000:17:00.0 030200 10de:2330 driver=nvidia group=33
0000:65:00.0 030200 10de:2330 driver=nvidia group=34
"""
H100_1, H100_2 = ['0000:17:00.0'], ['0000:65:00.0']


class SuspendTest(base.GPUTestCase):

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', TWO_H100)
        self.server = self.create_gpu_server()
        self.places = self.guest_places(self.server)

    def test_and_resume(self) -> None:
        self._suspend_server(self.server)
        self._check_held()
        self._resume_server(self.server)
        self._check_as_before()

    def test_twice(self) -> None:
        for _ in range(2):
            self._suspend_server(self.server)
            self._resume_server(self.server)
        self._check_as_before()

    def test_restart_of_the_service_meanwhile(self) -> None:
        self._suspend_server(self.server)
        self.restart_compute_service('host1')
        self._check_held()
        self._resume_server(self.server)
        self._check_as_before()

    def test_and_hard_reboot(self) -> None:
        self._suspend_server(self.server)
        self._reboot_server(self.server, hard=True)
        self._check_as_before()

    def test_and_delete(self) -> None:
        self._suspend_server(self.server)
        self._delete_server(self.server)
        self.run_periodic()
        self.assertFree(2, 'host1')
        server = self.create_gpu_server(2)
        self.assertGPUs(server, H100_1 + H100_2)

    def test_a_guest_that_does_not_let_go_runs_on(self) -> None:
        self.flags(device_detach_timeout=1, group='libvirt')
        self.domain_of(self.server).lets_go = False
        self._check_suspend_refused(self.server)
        self._check_as_before()

    def test_a_save_that_fails_gives_the_card_back(self) -> None:
        domain = self.domain_of(self.server)
        domain.save_errors.append(libvirt_errors.invalid('no space left'))
        self.api.post_server_action(self.server['id'], {'suspend': None})
        # As Nova does when libvirt cannot save a guest.
        self._wait_for_state_change(self.server, 'ERROR')
        self._check_as_before()

    def test_a_resume_without_the_card_is_refused(self) -> None:
        """A host driver has the card and does not let go of it."""
        self._suspend_server(self.server)
        device = self.connection.device('0000:17:00.0')
        device.bind('nvidia')
        device.on_detach = node_device.fails('a job runs on it')
        self.api.post_server_action(self.server['id'], {'resume': None})
        self._wait_for_action_fail_completion(
            self.server, instance_actions.RESUME, 'compute_resume_instance')
        self.assertEqual('SUSPENDED',
                         self._show_server(self.server)['status'])
        self.assertEqual(0, self.domain_of(self.server).isActive())
        device.bind('vfio-pci')
        self.run_periodic()
        self._resume_server(self.server)
        self._check_as_before()

    def _check_held(self) -> None:
        self.run_periodic()
        self.assertFree(1, 'host1')
        neighbour = self.create_gpu_server()
        self.assertGPUs(neighbour, H100_2)

    def _check_as_before(self) -> None:
        self.assertGPUs(self.server, H100_1)
        self.assertEqual(self.places, self.guest_places(self.server))

    def _check_suspend_refused(self, server: dict[str, Any]) -> None:
        self.api.post_server_action(server['id'], {'suspend': None})
        self._wait_for_action_fail_completion(
            server, instance_actions.SUSPEND, 'compute_suspend_instance')
        self.assertEqual('ACTIVE', self._show_server(server)['status'])


class SuspendManyFunctionsTest(base.GPUTestCase):

    CAST_AS_CALL = False

    def test_is_refused_and_the_guest_runs_on(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        server = self.create_gpu_server()
        number = self.domain_of(server).ID()
        self.api.post_server_action(server['id'], {'suspend': None})
        self._wait_for_action_fail_completion(
            server, instance_actions.SUSPEND, 'compute_suspend_instance')
        self.assertEqual('ACTIVE', self._show_server(server)['status'])
        self.assertEqual(number, self.domain_of(server).ID())
        self.assertGPUs(server, base.CARD_1)
