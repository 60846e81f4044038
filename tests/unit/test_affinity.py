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

from nova_gpu_passthru import affinity
from tests.unit import base

# Nodes 0 and 1 on one socket, 2 on another, 3 has memory only.
SOCKETS = {0: 0, 1: 0, 2: 1}


class AffinityTest(base.TestCase):
    def allowed(self, policy: str) -> list[int | None]:
        """Of which nodes a guest on node 0 may have cards."""
        guest = affinity.Affinity(frozenset([0]), policy)
        return [node for node in (0, 1, 2, 3, None)
                if guest.allows(node, SOCKETS)]

    def test_required_is_the_very_node(self) -> None:
        self.assertEqual([0], self.allowed(affinity.REQUIRED))

    def test_legacy_also_takes_cards_that_the_firmware_puts_nowhere(
            self) -> None:
        self.assertEqual([0, None], self.allowed(affinity.LEGACY))

    def test_socket_is_any_node_of_it(self) -> None:
        self.assertEqual([0, 1], self.allowed(affinity.SOCKET))

    def test_preferred_is_any(self) -> None:
        self.assertEqual([0, 1, 2, 3, None],
                         self.allowed(affinity.PREFERRED))

    def test_guest_without_a_topology_may_have_any(self) -> None:
        guest = affinity.Affinity(policy=affinity.REQUIRED)
        self.assertTrue(all(guest.allows(node, SOCKETS)
                            for node in (0, 1, 2, 3, None)))
        self.assertEqual('', str(guest))

    def test_it_says_what_was_asked_for(self) -> None:
        self.assertEqual(
            ' near NUMA node 0, 1 (policy required)',
            str(affinity.Affinity(frozenset([1, 0]), affinity.REQUIRED)))
