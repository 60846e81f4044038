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

"""Which cards are near enough to a guest's memory.

The policies are Nova's (hw:pci_numa_affinity_policy), and mean for cards what
they mean for its PCI devices (nova.pci.stats.PciDeviceStats).
"""

from collections.abc import Mapping
import dataclasses

REQUIRED, PREFERRED, LEGACY, SOCKET = (
    'required', 'preferred', 'legacy', 'socket')


@dataclasses.dataclass(frozen=True)
class Affinity:
    """Where a guest's memory is and how near its cards have to be.

    :ivar nodes: the host's NUMA nodes that the guest is on; empty for a
        guest without a NUMA topology, for which all cards are alike
    :ivar policy: required, preferred, legacy or socket
    """

    nodes: frozenset[int] = frozenset()
    policy: str = LEGACY

    def is_near(self, node: int | None) -> bool:
        """Whether a card of a NUMA node is on one of the guest's."""
        return node in self.nodes

    def allows(self, node: int | None, sockets: Mapping[int, int]) -> bool:
        """Whether the guest may have a card of a NUMA node.

        :param node: the card's; None where the firmware names none
        :param sockets: the host's CPU socket of each node
        """
        if not self.nodes or self.policy == PREFERRED:
            return True
        if self.policy == LEGACY and node is None:
            return True
        if self.policy == SOCKET and node is not None:
            near = {sockets[n] for n in self.nodes if n in sockets}
            return sockets.get(node) in near
        return self.is_near(node)

    def __str__(self) -> str:
        if not self.nodes:
            return ''
        nodes = ', '.join(str(node) for node in sorted(self.nodes))
        return f' near NUMA node {nodes} (policy {self.policy})'
