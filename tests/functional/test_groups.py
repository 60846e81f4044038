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


"""Cards that share an IOMMU group go to one guest."""

from tests.functional import base

# The first two share a group, the third has its own.
SHARED = """
0000:17:00.0 030200 10de:2330 driver=nvidia group=33
0000:18:00.0 030200 10de:2330 driver=nvidia group=33
0000:65:00.0 030200 10de:2330 driver=nvidia group=34
"""
SHARED_1, SHARED_2 = '0000:17:00.0', '0000:18:00.0'
ALONE = '0000:65:00.0'


class SharedGroupTest(base.GPUTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', SHARED)
        self.assertFree(3, 'host1')

    def test_one_guest_gets_the_card_that_strands_no_other(self) -> None:
        server = self.create_gpu_server()
        self.assertGPUs(server, [ALONE])
        self.run_periodic()
        self.assertFree(2, 'host1')

    def test_a_stranded_card_is_not_free(self) -> None:
        self.create_gpu_server()
        second = self.create_gpu_server()
        self.assertGPUs(second, [SHARED_1])
        self.run_periodic()
        self.assertFree(0, 'host1')
        self.assertNoHost(self.create_gpu_server(state='ERROR'))

    def test_a_stranded_card_is_not_passed_while_the_report_is_stale(
            self) -> None:
        self.create_gpu_server()
        self.create_gpu_server()
        self.assertFree(3, 'host1')
        self.assertNoHost(self.create_gpu_server(state='ERROR'))

    def test_one_guest_can_have_the_group(self) -> None:
        server = self.create_gpu_server(2)
        self.assertGPUs(server, [SHARED_1, SHARED_2])
        self.run_periodic()
        self.assertFree(1, 'host1')

    def test_the_last_of_a_group_frees_the_others(self) -> None:
        servers = [self.create_gpu_server() for _ in range(2)]
        for server in servers:
            self._delete_server(server)
        self.run_periodic()
        self.assertFree(3, 'host1')
