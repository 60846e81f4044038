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


"""nova-compute is killed in a resize or a migration and started again.

The rules are those of test_crashes. Nova has no way back from most points of
a move but to delete the server, and so most tests end.
"""

from typing import Any

import ddt
from nova import context as nova_context

from tests.functional import base
from tests.functional import crash_base


class MoveTestCase(crash_base.CrashTestCase):

    def setUp(self) -> None:
        # Cards of host1 that nobody has in case a resize is reverted.
        self.kept_for_revert = 0
        super().setUp()
        self.copy_no_disks()

    def without_domain(self, name: str) -> int:
        return super().without_domain(name) + (
            self.kept_for_revert if name == 'host1' else 0)

    def check_deleted(self, server: dict[str, Any]) -> None:
        self.api.delete_server(server['id'])
        self._wait_until_deleted({**server, 'status': 'ERROR'})
        # Nova's own care for what a broken move leaves on the other host.
        for compute in self.computes.values():
            compute.manager._cleanup_running_deleted_instances(
                nova_context.get_admin_context())
        self.check_all_free()

    def resize(self, server: dict[str, Any], count: int) -> None:
        """Asks for another number of cards, and does not wait."""
        flavor_id = self.create_flavor({'free_gpus': f'>={count}'})
        self.act(server, {'resize': {'flavorRef': flavor_id}})

    def resize_and_wait(self, server: dict[str, Any], count: int) -> None:
        self.resize(server, count)
        self._wait_for_state_change(server, 'VERIFY_RESIZE')


@ddt.ddt
class SameHostTest(MoveTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)

    @ddt.data('before destroy', 'after destroy')
    def test_resize_before_the_switch_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.resize(server, 2))
        # Nova takes it back when it starts, and leaves off what is off.
        self._wait_for_state_change(server, 'ACTIVE')
        self._reboot_server(server, hard=True)
        self.assertGPUs(server, base.CARD_1)
        self.check_neighbour()
        self.check_deleted(server)

    @ddt.data('before keep_for_revert', 'after claim', 'after defineXML',
              'after createWithFlags')
    def test_resize_to_more_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.resize(server, 2))
        self.check_deleted(server)

    @ddt.data('after claim', 'after defineXML', 'after createWithFlags')
    def test_resize_to_fewer_at(self, point: str) -> None:
        server = self.create_gpu_server(2)
        # Its domain tells what is kept once it is defined.
        self.kept_for_revert = int(point != 'after claim')
        self.kill_in(point, lambda: self.resize(server, 1))
        self.kept_for_revert = 0
        self.check_deleted(server)

    @ddt.data('before confirm', 'before setMetadata', 'after setMetadata')
    def test_confirm_at(self, point: str) -> None:
        server = self.create_gpu_server(2)
        self.resize_and_wait(server, 1)
        self.kept_for_revert = int(point.startswith('before'))
        self.kill_in(point, lambda: self.act(server, {'confirmResize': None}))
        self.assertGPUs(server, base.CARD_1)
        self.kept_for_revert = 0
        self.check_deleted(server)

    def test_what_nova_does_not_confirm_again_is_free_at_last(self) -> None:
        """An administrator leads the server out of "confirming"."""
        server = self.create_gpu_server(2)
        self.resize_and_wait(server, 1)
        self.kept_for_revert = 1
        self.kill_in('before confirm',
                     lambda: self.act(server, {'confirmResize': None}))
        self.admin_api.post_server_action(
            server['id'], {'os-resetState': {'state': 'active'}})
        self._reboot_server(server, hard=True)
        self.kept_for_revert = 0
        self.assertGPUs(server, base.CARD_1)
        self.check_neighbour()
        self.check_deleted(server)

    @ddt.data('after destroy', 'after undefineFlags', 'after revert',
              'after defineXML', 'after createWithFlags')
    def test_revert_at(self, point: str) -> None:
        server = self.create_gpu_server(2)
        self.resize_and_wait(server, 1)
        self.kept_for_revert = int(point == 'after destroy')
        self.kill_in(point, lambda: self.act(server, {'revertResize': None}))
        self.kept_for_revert = 0
        self.check_deleted(server)


@ddt.ddt
class OtherHostTest(MoveTestCase):

    ON_START = False

    def setUp(self) -> None:
        super().setUp()
        # Nova compares with CONF.host, which is the last one's.
        self.add_host('host2', self.HOST)
        self.add_host('host1', self.HOST)

    @ddt.data('before destroy', 'after destroy')
    def test_migrate_source_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.act(server, {'migrate': None}))
        # Nova takes it back when it starts, and leaves off what is off.
        self._wait_for_state_change(server, 'ACTIVE')
        self._reboot_server(server, hard=True)
        self.assertGPUs(server, base.CARD_1)
        self.check_deleted(server)

    @ddt.data('after claim', 'after defineXML', 'after createWithFlags')
    def test_migrate_destination_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.act(server, {'migrate': None}),
                     'host2')
        self.check_deleted(server)

    @ddt.data('before undefineFlags', 'after undefineFlags', 'after release')
    def test_confirm_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self._migrate_server(server)
        self.kill_in(point, lambda: self.act(server, {'confirmResize': None}))
        self.check_deleted(server)
