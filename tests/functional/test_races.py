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


"""Requests that meet at a card: one gets it, nothing leaks.

The scheduler knows what hosts last reported. Without a periodic report
between two requests it sends the second one to a host that is full.
"""

from typing import Any

from tests.functional import base


class StaleReportTest(base.GPUTestCase):

    def test_the_loser_goes_to_another_host(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        self.add_host('host2', base.ONE_CARD)
        first = self.create_gpu_server()
        self.assertFree(1, 'host1')
        second = self.create_gpu_server()
        self.assertEqual(['host1', 'host2'],
                         [self.host_of(first), self.host_of(second)])
        self.assertGPUs(first, base.CARD_1)
        self.assertGPUs(second, base.CARD_1)
        self.assertEqual({self._get_provider_uuid_by_host('host2')},
                         self._providers(second))
        self.run_periodic()
        self.assertFree(0, 'host1')
        self.assertFree(0, 'host2')

    def test_the_loser_without_another_host_fails(self) -> None:
        connection = self.add_host('host1', base.ONE_CARD)
        first = self.create_gpu_server()
        self.assertFree(1, 'host1')
        second = self.create_gpu_server(state='ERROR')
        self.assertNoHost(second)
        self.assertEqual([first['id']],
                         [d.UUIDString() for d in connection.domains])
        self._delete_server(second)
        self.assertGPUs(first, base.CARD_1)
        self.run_periodic()
        self.assertFree(0, 'host1')

    def test_the_loser_leaves_no_part_of_a_claim(self) -> None:
        """A host with one card free refuses two, and keeps the one."""
        self.add_host('host1', base.TWO_CARDS)
        self.create_gpu_server()
        self.assertFree(2, 'host1')
        self.create_gpu_server(2, state='ERROR')
        third = self.create_gpu_server()
        self.assertGPUs(third, base.CARD_2)

    def test_two_servers_of_one_request(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        self.add_host('host2', base.ONE_CARD)
        servers = self.create_at_once(
            2, self.create_flavor({'free_gpus': '1'}))
        self.assertEqual({'host1', 'host2'},
                         {self.host_of(server) for server in servers})
        for server in servers:
            self.assertGPUs(server, base.CARD_1)

    def _providers(self, server: dict[str, Any]) -> set[str]:
        return set(self._get_allocations_by_server_uuid(server['id']))


class ConcurrentTest(base.GPUTestCase):

    # The services work on several requests at a time.
    CAST_AS_CALL = False

    def test_four_requests_for_two_cards(self) -> None:
        connection = self.add_host('host1', base.TWO_CARDS)
        flavor_id = self.create_flavor({'free_gpus': '1'})
        servers = [
            self.api.post_server({'server': self._build_server(
                flavor_id=flavor_id, networks='none')})
            for _ in range(4)]
        ended = [self._wait_until_built(server) for server in servers]
        self.assertEqual(
            ['ACTIVE', 'ACTIVE', 'ERROR', 'ERROR'],
            sorted(server['status'] for server in ended))
        self.assertCountEqual(
            base.CARD_1 + base.CARD_2,
            [f for domain in connection.domains for f in domain.functions])
        for server in ended:
            if server['status'] == 'ERROR':
                self.assertNoHost(server)

    def _wait_until_built(self, server: dict[str, Any]) -> dict[str, Any]:
        def built() -> dict[str, Any]:
            shown = self.api.get_server(server['id'])
            self.assertNotEqual('BUILD', shown['status'])
            self.assertTrue(shown['status'] == 'ACTIVE' or 'fault' in shown)
            return shown
        return self._wait_for_assert(built, max_retries=30)


class ForcedHostTest(base.GPUTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.ONE_CARD)
        self.add_host('host2', base.ONE_CARD)
        self.first = self.create_gpu_server()
        self.assertEqual('host1', self.host_of(self.first))

    def test_a_full_host_is_refused_by_the_scheduler(self) -> None:
        self.run_periodic()
        server = self.create_gpu_server(host='host1', state='ERROR')
        self.assertNoHost(server)
        self._check_refused(server)

    def test_a_full_host_refuses_although_its_report_is_stale(self) -> None:
        server = self.create_gpu_server(host='host1', state='ERROR')
        self._check_refused(server)

    def test_a_full_host_refuses_what_bypasses_the_filters(self) -> None:
        self.run_periodic()
        server = self.create_gpu_server(az='nova:host1', state='ERROR')
        self.assertIn('asks for 1 GPU', server['fault']['message'])
        self._check_refused(server)

    def _check_refused(self, server: dict[str, Any]) -> None:
        self.assertNoAllocations(server)
        self.assertEqual([self.first['id']],
                         [d.UUIDString() for d in self.connection.domains])
        self._delete_server(server)
        self.assertGPUs(self.first, base.CARD_1)
