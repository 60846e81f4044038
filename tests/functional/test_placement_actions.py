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


"""Placement's records after each server action.

Whatever a test says, placement.PlacementTestCase compares the records with
the cards of all guests at its end.
"""

import os
import pathlib
from typing import Any

from nova_gpu_passthru import driver
from tests.functional import base
from tests.functional import placement
from tests.functional import test_moves

# One that Nova's fake image service has.
IMAGE = '155d900f-4e14-4e4c-a73d-069cbf4541e6'


class ActionsTestCase(placement.PlacementTestCase, test_moves.MovesTestCase):

    def migration_of(self, server: dict[str, Any]) -> str:
        """The consumer that has the source's part while a server moves."""
        migration, = self.api.api_get(
            f"/os-migrations?instance_uuid={server['id']}"
        ).body['migrations']
        uuid: str = migration['uuid']
        return uuid

    def assertGivenToNobody(self, *hosts: str) -> None:
        for host in hosts:
            for model, pool in self.pools(host).items():
                self.assertEqual((0, 0), (pool.reserved, pool.used),
                                 f'{model} of {host}')


class StaysTest(ActionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_pgpu_server()

    def _check_unchanged(self) -> None:
        self.run_periodic()
        self.assertGiven(self.server, 'host1', 1)
        self.assertPool('host1', 2, used=1)
        self.assertGPUs(self.server, base.CARD_1)

    def test_reboot(self) -> None:
        for kind in ('HARD', 'SOFT'):
            self._reboot_server(self.server, hard=kind == 'HARD')
            self._check_unchanged()

    def test_stop_and_start(self) -> None:
        self._stop_server(self.server)
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self._start_server(self.server)
        self._check_unchanged()

    def test_rebuild(self) -> None:
        self._rebuild_server(self.server, IMAGE)
        self._check_unchanged()

    def test_rebuild_while_the_host_is_full(self) -> None:
        self.create_pgpu_server()
        self.run_periodic()
        self._rebuild_server(self.server, IMAGE)
        self.run_periodic()
        self.assertGiven(self.server, 'host1', 1)
        self.assertPool('host1', 2, used=2)

    def test_rescue_and_unrescue(self) -> None:
        # Nova's fixtures make no images, and so no folder for them.
        os.makedirs(pathlib.Path(driver.CONF.instances_path,
                                 self.server['id']))
        self.api.post_server_action(
            self.server['id'], {'rescue': {'rescue_image_ref': IMAGE}})
        self._wait_for_state_change(self.server, 'RESCUE')
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self.api.post_server_action(self.server['id'], {'unrescue': None})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self._check_unchanged()

    def test_shelve_without_offload(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, expected_state='SHELVED')
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self._unshelve_server(self.server)
        self._check_unchanged()

    def test_restart_of_the_service(self) -> None:
        self.restart_compute_service('host1')
        self._check_unchanged()

    def test_delete(self) -> None:
        self._delete_server(self.server)
        self.assertGivenToNobody('host1')
        self.assertEqual({}, self.given(self.server['id']))

    def test_create_that_fails(self) -> None:
        connection = self._prepared['host1']
        connection.start_errors.append(Exception('QEMU does not start'))
        server = self.create_pgpu_server(state='ERROR')
        self.assertNoHost(server)
        self.assertPool('host1', 2, used=1)
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)


class MovesTest(ActionsTestCase):
    """The scheduler's first choice, host1, is where guests come from."""

    def setUp(self) -> None:
        super().setUp()
        # Nova compares with CONF.host, which is the last one's.
        self.add_host('host2', test_moves.ON_HOST_2)
        self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_pgpu_server()
        self.assertGiven(self.server, 'host1', 1)

    def _check_moving(self, source: int, destination: int) -> None:
        self.run_periodic()
        self.assertEqual({('host1', base.T400): source},
                         self.given(self.migration_of(self.server)))
        self.assertGiven(self.server, 'host2', destination)
        self.assertPool('host1', 2, used=source)
        self.assertPool('host2', 2, used=destination)

    def test_migrate_and_confirm(self) -> None:
        self._migrate_server(self.server)
        self._check_moving(1, 1)
        self._confirm_resize(self.server)
        self.assertGiven(self.server, 'host2', 1)
        self.assertGivenToNobody('host1')
        self.assertEqual({}, self.given(self.migration_of(self.server)))

    def test_migrate_and_revert(self) -> None:
        self._migrate_server(self.server)
        neighbour = self.create_pgpu_server()
        self.assertEqual('host1', self.host_of(neighbour))
        self._revert_resize(self.server)
        self.assertGiven(self.server, 'host1', 1)
        self.assertGivenToNobody('host2')
        self.assertPool('host1', 2, used=2)
        self.assertEqual({}, self.given(self.migration_of(self.server)))

    def test_resize_to_more_and_confirm(self) -> None:
        self._resize_server(self.server, self.pgpu_flavor(2))
        self._check_moving(1, 2)
        self._confirm_resize(self.server)
        self.assertGiven(self.server, 'host2', 2)
        self.assertGivenToNobody('host1')

    def test_resize_to_more_and_revert(self) -> None:
        self._resize_server(self.server, self.pgpu_flavor(2))
        self._revert_resize(self.server)
        self.assertGiven(self.server, 'host1', 1)
        self.assertGivenToNobody('host2')

    def test_resize_to_none_and_confirm(self) -> None:
        self._resize_server(self.server, self.create_flavor())
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self._confirm_resize(self.server)
        self.assertGivenToNobody('host1', 'host2')

    def test_resize_from_none_and_revert(self) -> None:
        server = self.create_server()
        self._resize_server(server, self.pgpu_flavor(1))
        self.assertGiven(server, 'host2', 1)
        self._revert_resize(server)
        self.assertEqual({}, self.given(server['id']))
        self.assertGivenToNobody('host2')

    def test_resize_to_a_flavor_that_does_not_ask(self) -> None:
        self._resize_server(self.server, self.gpu_flavor(1))
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self.assertPool('host2', 2, reserved=1)
        self._confirm_resize(self.server)
        self.run_periodic()
        self.assertGivenToNobody('host1')
        self.assertPool('host2', 2, reserved=1)

    def test_resize_to_a_flavor_that_does_not_ask_and_revert(self) -> None:
        self._resize_server(self.server, self.gpu_flavor(1))
        self._revert_resize(self.server)
        self.run_periodic()
        self.assertGiven(self.server, 'host1', 1)
        self.assertPool('host1', 2, used=1)
        self.assertGivenToNobody('host2')

    def test_restart_of_both_before_the_revert(self) -> None:
        self._migrate_server(self.server)
        for host in ('host2', 'host1'):
            self.restart_compute_service(host)
        self._check_moving(1, 1)
        self._revert_resize(self.server)
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self.assertGivenToNobody('host2')

    def test_delete_before_the_confirm(self) -> None:
        self._migrate_server(self.server)
        self._delete_server(self.server)
        self.run_periodic()
        self.assertGivenToNobody('host1', 'host2')

    def test_a_full_host_is_no_destination(self) -> None:
        self.create_pgpu_server(2, az='nova:host2')
        self.api.post_server_action(
            self.server['id'], {'migrate': None},
            check_response_status=[202])
        self._wait_for_migration_status(self.server, ['error'])
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertGiven(self.server, 'host1', 1)
        self.assertPool('host2', 2, used=2)

    def test_a_migration_that_fails_on_the_destination(self) -> None:
        """By then it is Nova's instance there, for a hard reboot."""
        self._prepared['host2'].start_errors.append(
            Exception('QEMU does not start'))
        self.api.post_server_action(self.server['id'], {'migrate': None})
        self._wait_for_migration_status(self.server, ['error'])
        self._wait_for_state_change(self.server, 'ERROR')
        self.run_periodic()
        self.assertGiven(self.server, 'host2', 1)
        self.assertPool('host2', 2, used=1)
        # Nova left its domain on the source.
        self.assertPool('host1', 2, reserved=1)
        self._reboot_server(self.server, hard=True)
        self.run_periodic()
        self.assertPool('host2', 2, used=1)

    def test_shelve_and_unshelve(self) -> None:
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server)
        self.run_periodic()
        self.assertEqual({}, self.given(self.server['id']))
        self.assertGivenToNobody('host1', 'host2')
        self._unshelve_server(self.server)
        self.assertGiven(self.server, 'host1', 1)

    def test_evacuate(self) -> None:
        self.evacuate(self.server)
        self.run_periodic('host2')
        # The source's part is Nova's to take back, once the source is there.
        self.assertEqual(
            {('host1', base.T400): 1, ('host2', base.T400): 1},
            self.given(self.server['id']))
        self.assertPool('host2', 2, used=1)
        self.restart_compute_service('host1')
        self.run_periodic()
        self.assertGiven(self.server, 'host2', 1)
        self.assertGivenToNobody('host1')
