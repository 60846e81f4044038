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


"""A guest that moves has cards where it is, and where it may go back to."""

from typing import Any

import fixtures
from nova.compute import instance_actions

from tests.functional import base

ON_HOST_2 = """
0000:17:00.0 030000 10de:1ff2 driver=nvidia group=33
0000:17:00.1 040300 10de:10fa driver=snd_hda_intel group=33
0000:65:00.0 030000 10de:1ff2 driver=nvidia group=34
0000:65:00.1 040300 10de:10fa driver=snd_hda_intel group=34
"""


class MovesTestCase(base.GPUTestCase):

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.copy_no_disks()
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.snapshot',
            lambda *args, **kwargs: None))

    def gpu_flavor(self, count: int) -> str:
        return self.create_flavor({'free_gpus': f'>={count}'})

    def assertReported(self, **free: int) -> None:
        """Checks what each host reports to be free, after a periodic."""
        self.run_periodic()
        self.assertEqual(free, {name: self.reported(name)['free_gpus']
                                for name in free})


class OtherHostTest(MovesTestCase):
    """The scheduler's first choice, host1, is where guests come from."""

    def setUp(self) -> None:
        super().setUp()
        # Nova compares with CONF.host, which is the last one's.
        self.add_host('host2', ON_HOST_2)
        self.add_host('host1', base.TWO_CARDS)

    def test_migrate_and_confirm(self) -> None:
        server = self.create_gpu_server()
        self._migrate_server(server)
        self.assertEqual('host2', self.host_of(server))
        self.assertReported(host1=1, host2=1)
        self._confirm_resize(server)
        self.assertGPUs(server, base.CARD_1)
        self.assertEqual([], self._prepared['host1'].domains)
        self.assertReported(host1=2, host2=1)

    def test_migrate_and_revert(self) -> None:
        server = self.create_gpu_server()
        self._migrate_server(server)
        neighbour = self.create_gpu_server()
        self.assertGPUs(neighbour, base.CARD_2)
        self._revert_resize(server)
        self.assertEqual('host1', self.host_of(server))
        self.assertGPUs(server, base.CARD_1)
        self.assertEqual([], self._prepared['host2'].domains)
        self.assertReported(host1=0, host2=2)

    def test_resize_to_more_and_confirm(self) -> None:
        server = self.create_gpu_server()
        self._resize_server(server, self.gpu_flavor(2))
        self.assertReported(host1=1, host2=0)
        self._confirm_resize(server)
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)
        self.assertReported(host1=2, host2=0)

    def test_resize_to_fewer_and_revert(self) -> None:
        server = self.create_gpu_server(2)
        self._resize_server(server, self.gpu_flavor(1))
        self.assertReported(host1=0, host2=1)
        self._revert_resize(server)
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)
        self.assertReported(host1=0, host2=2)

    def test_resize_to_none_and_confirm(self) -> None:
        server = self.create_gpu_server()
        self._resize_server(server, self.create_flavor())
        self._confirm_resize(server)
        self.assertGPUs(server, [])
        self.assertReported(host1=2, host2=2)

    def test_resize_from_none_and_revert(self) -> None:
        server = self.create_server()
        self._resize_server(server, self.gpu_flavor(1))
        self.assertGPUs_on('host2', server, base.CARD_1)
        self._revert_resize(server)
        self.assertGPUs(server, [])
        self.assertReported(host1=2, host2=2)

    def test_a_full_host_is_no_destination(self) -> None:
        server = self.create_gpu_server()
        self.create_gpu_server(2, az='nova:host2')
        self.run_periodic()
        self.api.post_server_action(server['id'], {'migrate': None})
        self._wait_for_action_fail_completion(
            server, instance_actions.MIGRATE, 'cold_migrate')
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual('host1', self.host_of(server))
        self.assertGPUs(server, base.CARD_1)

    def test_restart_of_the_source_before_the_confirm(self) -> None:
        server = self.create_gpu_server()
        self._migrate_server(server)
        self.restart_compute_service('host1')
        self.assertReported(host1=1, host2=1)
        self._confirm_resize(server)
        self.assertReported(host1=2, host2=1)

    def test_restart_of_the_source_before_the_revert(self) -> None:
        server = self.create_gpu_server()
        self._migrate_server(server)
        self.restart_compute_service('host1')
        self._revert_resize(server)
        self.assertGPUs(server, base.CARD_1)
        self.assertReported(host1=1, host2=2)

    def test_delete_before_the_confirm(self) -> None:
        server = self.create_gpu_server()
        self._migrate_server(server)
        self._delete_server(server)
        self.assertEqual([], self._prepared['host1'].domains)
        self.assertReported(host1=2, host2=2)

    def test_shelve_and_unshelve(self) -> None:
        self.flags(shelved_offload_time=0)
        server = self.create_gpu_server()
        self._shelve_server(server)
        self.assertReported(host1=2, host2=2)
        self._unshelve_server(server)
        self.assertGPUs(server, base.CARD_1)
        self.assertReported(host1=1, host2=2)

    def test_shelve_without_offload_keeps_the_card(self) -> None:
        self.flags(shelved_offload_time=-1)
        server = self.create_gpu_server()
        self._shelve_server(server, expected_state='SHELVED')
        self.assertReported(host1=1, host2=2)
        self._unshelve_server(server)
        self.assertGPUs(server, base.CARD_1)

    def test_evacuate(self) -> None:
        server = self.create_gpu_server()
        self.evacuate(server)
        self._start_server(server)
        self.assertGPUs_on('host2', server, base.CARD_1)
        # The source finds out when it is back.
        self.restart_compute_service('host1')
        self.assertEqual([], self._prepared['host1'].domains)
        self.assertReported(host1=2, host2=1)

    def assertGPUs_on(self, name: str, server: dict[str, Any],
                      functions: list[str]) -> None:
        domain = self._prepared[name].lookupByUUIDString(server['id'])
        self.assertEqual(functions, domain.functions)


class SameHostTest(MovesTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.add_host('host1', base.TWO_CARDS)

    def test_to_more_and_confirm(self) -> None:
        server = self.create_gpu_server()
        self._resize_server(server, self.gpu_flavor(2))
        self._confirm_resize(server)
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)
        self.assertReported(host1=0)

    def test_to_more_and_revert(self) -> None:
        server = self.create_gpu_server()
        self._resize_server(server, self.gpu_flavor(2))
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)
        self._revert_resize(server)
        self.assertGPUs(server, base.CARD_1)
        self.assertReported(host1=1)

    def test_to_fewer_and_confirm(self) -> None:
        server = self.create_gpu_server(2)
        self._resize_server(server, self.gpu_flavor(1))
        self.held_without_domain['host1'] = 1
        self.assertReported(host1=0)
        self._confirm_resize(server)
        self.held_without_domain.clear()
        self.assertGPUs(server, base.CARD_1)
        self.assertReported(host1=1)

    def test_to_fewer_and_revert(self) -> None:
        server = self.create_gpu_server(2)
        self._resize_server(server, self.gpu_flavor(1))
        self.assertNoHost(self.create_gpu_server(state='ERROR'))
        self._revert_resize(server)
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)
        self.assertReported(host1=0)

    def test_to_fewer_restart_and_revert(self) -> None:
        server = self.create_gpu_server(2)
        self._resize_server(server, self.gpu_flavor(1))
        self.restart_compute_service('host1')
        self.assertReported(host1=0)
        self._revert_resize(server)
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)

    def test_to_none_and_revert(self) -> None:
        server = self.create_gpu_server()
        self._resize_server(server, self.create_flavor())
        self.assertGPUs(server, [])
        self.assertReported(host1=1)
        self._revert_resize(server)
        self.assertGPUs(server, base.CARD_1)

    def test_to_none_and_confirm(self) -> None:
        server = self.create_gpu_server()
        self._resize_server(server, self.create_flavor())
        self._confirm_resize(server)
        self.assertReported(host1=2)
