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


"""A guest keeps its cards through everything that is done to it."""

import os
import pathlib
from typing import Any

import fixtures
from lxml import etree
from nova.compute import instance_actions
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver as libvirt_driver

from nova_gpu_passthru import driver
from tests.functional import base
from tests.functional import guest_domain
from tests.functional import libvirt_errors

IMAGE = '155d900f-4e14-4e4c-a73d-069cbf4541e6'


class ActionsTest(base.GPUTestCase):

    # What is refused shall not surface in the API.
    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.TWO_CARDS)
        # With a neighbour the other card is not the same as the first.
        self.server: Any = self.create_gpu_server()
        self.neighbour = self.create_gpu_server()
        self.calls = list(self.connection.calls)
        self.places = self.guest_places(self.server)

    def tearDown(self) -> None:
        if self.server is not None:
            self.assertGPUs(self.server, base.CARD_1)
            self.assertEqual(self.places, self.guest_places(self.server))
        self.assertGPUs(self.neighbour, base.CARD_2)
        self.assertEqual(self.calls, self.connection.calls)
        super().tearDown()

    def test_stop_and_start(self) -> None:
        self._stop_server(self.server)
        self._check_held()
        self._start_server(self.server)

    def test_soft_reboot(self) -> None:
        number = self.domain_of(self.server).ID()
        self._reboot_server(self.server)
        self.assertNotEqual(number, self.domain_of(self.server).ID())

    def test_hard_reboot(self) -> None:
        domain = self.domain_of(self.server)
        self._reboot_server(self.server, hard=True)
        self.assertIsNot(domain, self.domain_of(self.server))

    def test_two_hard_reboots(self) -> None:
        for _ in range(2):
            self._reboot_server(self.server, hard=True)

    def test_hard_reboot_of_a_stopped_guest(self) -> None:
        self._stop_server(self.server)
        self._reboot_server(self.server, hard=True)

    def test_rebuild(self) -> None:
        domain = self.domain_of(self.server)
        self._rebuild_server(self.server, IMAGE)
        self.assertIsNot(domain, self.domain_of(self.server))

    def test_rebuild_of_a_stopped_guest(self) -> None:
        self._stop_server(self.server)
        self._rebuild_server(self.server, IMAGE, expected_state='SHUTOFF')
        self._start_server(self.server)

    def test_pause_and_unpause(self) -> None:
        self._act({'pause': None}, 'PAUSED')
        self._check_held()
        self._act({'unpause': None}, 'ACTIVE')

    def test_rescue_and_unrescue(self) -> None:
        self._rescue()
        self.assertGPUs(self.server, base.CARD_1)
        self._check_held()
        self._act({'unrescue': None}, 'ACTIVE')

    def test_hard_reboot_after_a_restart_of_the_service(self) -> None:
        self.restart_compute_service('host1')
        self._reboot_server(self.server, hard=True)

    def test_delete_of_a_stopped_guest(self) -> None:
        self._stop_server(self.server)
        self._delete_own()

    def test_delete_of_a_rescued_guest(self) -> None:
        self._rescue()
        self._delete_own()

    def test_live_migration_is_refused(self) -> None:
        self.add_host('host2', base.TWO_CARDS)
        self._live_migrate(self.server, migration_expected_state='error')
        self.assertEqual('host1', self.host_of(self.server))
        self.assertEqual([], self._prepared['host2'].domains)

    def _rescue(self) -> None:
        # Nova's fixtures make no images, and so no folder for them.
        os.makedirs(pathlib.Path(driver.CONF.instances_path,
                                 self.server['id']))
        self._act({'rescue': {'rescue_image_ref': IMAGE}}, 'RESCUE')

    def _act(self, action: dict[str, Any], state: str) -> None:
        self.api.post_server_action(self.server['id'], action)
        self._wait_for_state_change(self.server, state)

    def _check_held(self) -> None:
        """The card of a guest that does not run is nobody else's."""
        self.run_periodic()
        self.assertFree(0, 'host1')
        self.assertNoHost(self.create_gpu_server(state='ERROR'))

    def _delete_own(self) -> None:
        self._delete_server(self.server)
        self.server = None
        self.run_periodic()
        self.assertFree(1, 'host1')


class UndefinedDomainTest(base.GPUTestCase):
    """Nova undefines a domain to define it anew; the card is not free."""

    def setUp(self) -> None:
        super().setUp()
        self.add_host('host1', base.ONE_CARD)
        self.server = self.create_gpu_server()
        self.free: list[int] = []
        original = libvirt_driver.LibvirtDriver.destroy

        def destroy(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            self.assertEqual([], self._prepared['host1'].domains)
            for _ in range(2):
                self.run_periodic()
                self.free.append(self.reported('host1')['free_gpus'])

        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.destroy', destroy))

    def test_hard_reboot(self) -> None:
        self._reboot_server(self.server, hard=True)
        self.assertEqual([0, 0], self.free)

    def test_rebuild(self) -> None:
        self._rebuild_server(self.server, IMAGE)
        self.assertEqual([0, 0], self.free)


class FailedActionsTest(base.GPUTestCase):

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_gpu_server()

    def test_a_start_that_fails_keeps_the_card(self) -> None:
        self._stop_server(self.server)
        self.connection.start_errors.append(libvirt_errors.invalid('no'))
        self.api.post_server_action(self.server['id'], {'os-start': None})
        self._wait_for_action_fail_completion(
            self.server, instance_actions.START, 'compute_start_instance')
        self.run_periodic()
        self.assertFree(1, 'host1')
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, base.CARD_1)

    def test_a_hard_reboot_that_fails_keeps_the_card(self) -> None:
        self.connection.start_errors.append(libvirt_errors.invalid('no'))
        # Nova's _reboot_server() waits for the end of one that works.
        self.api.post_server_action(self.server['id'],
                                    {'reboot': {'type': 'HARD'}})
        self._wait_for_state_change(self.server, 'ERROR')
        self.run_periodic()
        self.assertFree(1, 'host1')
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, base.CARD_1)

    def test_a_domain_never_loses_its_definition(self) -> None:
        """What is defined names the cards too, not only what runs."""
        for _ in range(2):
            xml = self.domain_of(self.server).XMLDesc(
                fakelibvirt.VIR_DOMAIN_XML_INACTIVE)
            self.assertEqual(base.CARD_1, guest_domain.host_functions(
                etree.fromstring(xml)))
            self._reboot_server(self.server, hard=True)
