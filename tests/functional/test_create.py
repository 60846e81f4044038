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


"""Guests get exactly what their flavor asks for, where there is enough."""

from tests.functional import base


class CreateTest(base.GPUTestCase):

    def test_one_gpu(self) -> None:
        connection = self.add_host('host1', base.TWO_CARDS)
        self.assertFree(2, 'host1')
        server = self.create_gpu_server()
        self.assertGPUs(server, base.CARD_1)
        self.assertEqual(base.CARD_1 + base.CARD_2, connection.detached)
