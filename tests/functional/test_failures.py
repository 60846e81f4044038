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


"""A create that fails gives its cards back, whatever made it fail."""

from typing import Any

import fixtures
from nova.compute import manager
from nova import exception

from nova_gpu_passthru import driver
from tests.functional import base
from tests.functional import libvirt_errors


class StartFailsTest(base.GPUTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.ONE_CARD)
        self.connection.start_errors.append(
            libvirt_errors.invalid('vfio says no'))

    def test_the_next_host_takes_over(self) -> None:
        self.add_host('host2', base.ONE_CARD)
        server = self.create_gpu_server()
        self.assertEqual([], self.connection.start_errors)
        self.assertEqual('host2', self.host_of(server))
        self.assertGPUs(server, base.CARD_1)
        self.assertEqual([], self.connection.domains)
        self.run_periodic()
        self.assertFree(1, 'host1')

    def test_the_card_is_free_for_the_next_request(self) -> None:
        failed = self.create_gpu_server(state='ERROR')
        self.assertNoAllocations(failed)
        self.assertEqual([], self.connection.domains)
        server = self.create_gpu_server()
        self.assertGPUs(server, base.CARD_1)

    def test_the_count_is_right_before_the_failed_one_is_deleted(
            self) -> None:
        self.create_gpu_server(state='ERROR')
        self.run_periodic()
        self.assertFree(1, 'host1')


class LostDriverTest(base.GPUTestCase):

    def test_a_card_that_a_host_driver_took_is_not_passed(self) -> None:
        """Somebody rebinds a card between two reports of the host."""
        connection = self.add_host('host1', base.TWO_CARDS)
        connection.sysfs.set_driver('0000:17:00.0', 'nvidia')
        server = self.create_gpu_server(2, state='ERROR')
        self.assertNoAllocations(server)
        self.assertEqual([], connection.domains)
        self.run_periodic()
        self.assertFree(1, 'host1')
        connection.sysfs.set_driver('0000:17:00.0', 'vfio-pci')
        self.run_periodic()
        self.assertFree(2, 'host1')


class PreparationFailsTest(base.GPUTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.ONE_CARD)

    def test_block_devices(self) -> None:
        self._check_failure_of(manager.ComputeManager, '_prep_block_device')

    def test_networks(self) -> None:
        self._check_failure_of(driver.GPUPassthruDriver,
                               'prepare_networks_before_block_device_mapping')

    def test_images(self) -> None:
        self._check_failure_of(driver.GPUPassthruDriver, '_create_image')

    def test_interfaces(self) -> None:
        self._check_failure_of(driver.GPUPassthruDriver,
                               '_create_guest_with_network')

    def _check_failure_of(self, owner: type, method: str) -> None:
        free_meanwhile = []

        def failing(*args: Any, **kwargs: Any) -> None:
            self.run_periodic('host1')
            free_meanwhile.append(self.reported('host1')['free_gpus'])
            raise exception.NovaException('no volume, no network, no image')

        with fixtures.MonkeyPatch(
                f'{owner.__module__}.{owner.__name__}.{method}', failing):
            failed = self.create_gpu_server(state='ERROR')
        self.assertEqual([0], free_meanwhile)
        self.assertNoAllocations(failed)
        self.assertEqual([], self.connection.domains)
        self.run_periodic()
        self.assertFree(1, 'host1')
        server = self.create_gpu_server()
        self.assertGPUs(server, base.CARD_1)
