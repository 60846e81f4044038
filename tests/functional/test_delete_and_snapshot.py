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


"""Deferred deletes, and images that are made of guests with cards."""

import time
from typing import Any
from unittest import mock

import fixtures
from nova import context as nova_context

from tests.functional import base
from tests.functional import crash_base
from tests.functional import guest_domain


class DeleteTest(base.GPUTestCase):
    """One card, so that it is free or it is not."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.add_host('host1', base.ONE_CARD)
        self.flags(reclaim_instance_interval=3600)
        self.server = self.create_gpu_server()

    def test_soft_delete_keeps_the_card(self) -> None:
        self._soft_delete()
        self.run_periodic()
        self.assertFree(0, 'host1')
        self.assertNoHost(self.create_gpu_server(state='ERROR'))

    def test_restore(self) -> None:
        self._soft_delete()
        self._act({'restore': {}})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertGPUs(self.server, base.CARD_1)

    def test_restore_after_a_restart_of_the_service(self) -> None:
        self._soft_delete()
        self.restart_compute_service('host1')
        self.assertFree(0, 'host1')
        self._act({'restore': {}})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertGPUs(self.server, base.CARD_1)

    def test_reclaim_frees_the_card(self) -> None:
        self._soft_delete()
        self.flags(reclaim_instance_interval=1)
        time.sleep(1.5)
        self.computes['host1'].manager._reclaim_queued_deletes(
            nova_context.get_admin_context())
        self._wait_until_deleted(self.server)
        self._check_free()

    def test_force_delete(self) -> None:
        self._act({'forceDelete': {}})
        self._wait_until_deleted(self.server)
        self._check_free()

    def test_force_delete_after_a_soft_delete(self) -> None:
        self._soft_delete()
        self._act({'forceDelete': {}})
        self._wait_until_deleted(self.server)
        self._check_free()

    def _soft_delete(self) -> None:
        self.api.delete_server(self.server['id'])
        self._wait_for_state_change(self.server, 'SOFT_DELETED')

    def _act(self, action: dict[str, Any]) -> None:
        self.api.post_server_action(self.server['id'], action)

    def _check_free(self) -> None:
        self.run_periodic()
        self.assertFree(1, 'host1')
        self.assertGPUs(self.create_gpu_server(), base.CARD_1)


class SnapshotTest(base.GPUTestCase):

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.flags(group='libvirt', snapshots_directory=self.useFixture(
            fixtures.TempDir()).path)
        self.live = self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver._live_snapshot')).mock
        self.saves = 0
        self._count_saves()
        self.add_host('host1', crash_base.TWO_H100)
        self.server = self.create_gpu_server()
        self.places = self.guest_places(self.server)

    def test_live(self) -> None:
        self._snapshot()
        self.live.assert_called_once()
        self.assertEqual(0, self.saves)
        self._check_as_before()

    def test_cold(self) -> None:
        """Nova suspends the guest and resumes it without resume()."""
        self._go_cold()
        self._snapshot()
        self.live.assert_not_called()
        self.assertEqual(1, self.saves)
        self._check_as_before()

    def test_cold_twice(self) -> None:
        self._go_cold()
        for number in (1, 2):
            self._snapshot()
            self.assertEqual(number, self.saves)
            self._check_as_before()

    def test_cold_that_fails(self) -> None:
        self._go_cold()
        self._disk().snapshot_extract.side_effect = OSError('disk full')
        self._act({'createImage': {'name': 'snapshot'}})
        self._wait_until_done()
        self.assertEqual([], self._images('snapshot'))
        self.assertEqual(1, self.saves)
        self._check_as_before()

    def test_cold_of_a_stopped_guest(self) -> None:
        self._go_cold()
        self._stop_server(self.server)
        self._snapshot()
        self.assertEqual(0, self.saves)
        self.run_periodic()
        self.assertFree(1, 'host1')
        self._start_server(self.server)
        self._check_as_before()

    def test_cold_keeps_the_card_meanwhile(self) -> None:
        self._go_cold()
        free = []

        def extracting(*args: Any, **kwargs: Any) -> None:
            self.assertEqual([], self.domain_of(self.server).functions)
            for _ in range(2):
                self.run_periodic()
                free.append(self.reported('host1')['free_gpus'])

        self._disk().snapshot_extract.side_effect = extracting
        self._snapshot()
        self.assertEqual([1, 1], free)
        self._check_as_before()

    def test_backup(self) -> None:
        self._go_cold()
        self._act({'createBackup': {'name': 'backup', 'rotation': 99,
                                    'backup_type': 'daily'}})
        self._wait_until_stored('backup')
        self.assertEqual(1, self.saves)
        self._check_as_before()

    def _count_saves(self) -> None:
        original = guest_domain.Domain.managedSave

        def counting(domain: guest_domain.Domain, flags: int) -> None:
            original(domain, flags)
            self.saves += 1

        self.useFixture(fixtures.MockPatchObject(
            guest_domain.Domain, 'managedSave', counting))

    def _go_cold(self) -> None:
        self.flags(disable_libvirt_livesnapshot=True, group='workarounds')

    def _disk(self) -> mock.Mock:
        """The server's disk, as Nova's image backend gives it."""
        host = self.computes['host1'].driver
        return host.image_backend.backend()(path='/any/disk')

    def _act(self, action: dict[str, Any]) -> None:
        self.api.post_server_action(self.server['id'], action)

    def _snapshot(self) -> None:
        self._act({'createImage': {'name': 'snapshot'}})
        self._wait_until_stored('snapshot')

    def _wait_until_done(self) -> None:
        self._wait_for_server_parameter(
            self.server, {'OS-EXT-STS:task_state': None})

    def _wait_until_stored(self, name: str) -> None:
        self._wait_until_done()
        self.assertEqual('active', self._images(name)[-1]['status'])

    def _images(self, name: str) -> list[dict[str, Any]]:
        return [image for image in self.glance.images.values()
                if image['name'] == name]

    def _check_as_before(self) -> None:
        self.assertGPUs(self.server, crash_base.H100_1)
        self.assertEqual(self.places, self.guest_places(self.server))
        self.assertEqual('ACTIVE', self._show_server(self.server)['status'])
        self.run_periodic()
        self.assertFree(1, 'host1')


class SnapshotManyFunctionsTest(base.GPUTestCase):

    CAST_AS_CALL = False

    def test_cold_is_refused_and_the_guest_runs_on(self) -> None:
        self.flags(disable_libvirt_livesnapshot=True, group='workarounds')
        self.add_host('host1', base.ONE_CARD)
        server = self.create_gpu_server()
        number = self.domain_of(server).ID()
        self.api.post_server_action(
            server['id'], {'createImage': {'name': 'snapshot'}})
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None, 'status': 'ACTIVE'})
        self.assertNotIn('snapshot', [
            image['name'] for image in self.glance.images.values()])
        self.assertEqual(number, self.domain_of(server).ID())
        self.assertGPUs(server, base.CARD_1)
