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

"""Cards near the guest's memory and near each other."""

from nova_gpu_passthru import affinity
from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import pci
from tests import sysfs_tree
from tests.unit.host import claims_base

# Two sockets, each with a switch for two cards and one card beside it.
HOST = """
0000:10:01.0 060400 8086:0001 driver=pcieport
0000:11:00.0 060400 10b5:0001 driver=pcieport below=0000:10:01.0
0000:12:00.0 060400 10b5:0001 driver=pcieport below=0000:11:00.0
0000:12:01.0 060400 10b5:0001 driver=pcieport below=0000:11:00.0
0000:13:00.0 030200 10de:2330 driver=vfio-pci group=1 numa=0 below=0000:12:00.0
0000:14:00.0 030200 10de:2330 driver=vfio-pci group=2 numa=0 below=0000:12:01.0
0000:10:00.0 060400 8086:0001 driver=pcieport
0000:0f:00.0 030200 10de:2330 driver=vfio-pci group=3 numa=0 below=0000:10:00.0
0000:80:01.0 060400 8086:0001 driver=pcieport
0000:81:00.0 060400 10b5:0001 driver=pcieport below=0000:80:01.0
0000:82:00.0 060400 10b5:0001 driver=pcieport below=0000:81:00.0
0000:82:01.0 060400 10b5:0001 driver=pcieport below=0000:81:00.0
0000:83:00.0 030200 10de:2330 driver=vfio-pci group=4 numa=1 below=0000:82:00.0
0000:84:00.0 030200 10de:2330 driver=vfio-pci group=5 numa=1 below=0000:82:01.0
"""
ALONE, LEFT, RIGHT, LEFT_1, RIGHT_1 = (
    f'0000:{bus}:00.0' for bus in ('0f', '13', '14', '83', '84'))


class TopologyTest(claims_base.TestCase):
    HOST = HOST

    def near(self, count: int, *nodes: int,
             policy: str = affinity.LEGACY) -> list[str]:
        request = flavor.GPURequest(count, affinity=affinity.Affinity(
            frozenset(nodes), policy))
        return [str(card.address) for card in self.claims.claim(
            claims_base.A, request, self.all_cards)]

    def test_one_card_is_the_lowest(self) -> None:
        self.assertEqual([ALONE], self.near(1))

    def test_two_cards_are_below_one_switch(self) -> None:
        self.assertEqual([LEFT, RIGHT], self.near(2))

    def test_the_other_switch_if_the_first_is_taken(self) -> None:
        self.claims.claim(claims_base.B, flavor.GPURequest(2), self.all_cards)
        self.assertEqual([LEFT_1, RIGHT_1], self.near(2))

    def test_a_card_for_a_guest_that_has_one_is_below_its_switch(
            self) -> None:
        self.hypervisor.define(claims_base.A, LEFT_1)
        self.assertEqual([LEFT_1, RIGHT_1], self.near(2))

    def test_three_cards_for_want_of_a_switch(self) -> None:
        self.assertEqual([ALONE, LEFT, RIGHT], self.near(3))

    def test_memory_decides_before_the_switch(self) -> None:
        self.assertEqual([LEFT_1, RIGHT_1], self.near(2, 1))
        self.claims.release(claims_base.A)
        self.assertEqual([LEFT_1],
                         self.near(1, 1, policy=affinity.PREFERRED))

    def test_preferred_takes_as_many_as_there_are(self) -> None:
        picked = self.near(3, 1, policy=affinity.PREFERRED)
        self.assertEqual({LEFT_1, RIGHT_1}, set(picked) & {LEFT_1, RIGHT_1})

    def test_required_refuses_what_is_far(self) -> None:
        error = self.assertRaises(exceptions.NotEnoughGPUs, self.near, 3, 1,
                                  policy=affinity.REQUIRED)
        self.assertIn('near NUMA node 1 (policy required)', str(error))

    def test_a_guest_keeps_its_card_wherever_its_memory_is(self) -> None:
        self.hypervisor.define(claims_base.A, LEFT)
        self.assertEqual([LEFT], self.near(1, 1, policy=affinity.REQUIRED))


class SocketsTest(claims_base.TestCase):
    def test_each_node_has_the_socket_of_its_cpus(self) -> None:
        tree = self.useFixture(sysfs_tree.SysfsTree())
        for node, cpu, socket in ((0, 0, 0), (1, 8, 0), (2, 16, 1)):
            folder = (tree.root / f'devices/system/node/node{node}'
                      / f'cpu{cpu}/topology')
            folder.mkdir(parents=True)
            (folder / 'physical_package_id').write_text(f'{socket}\n')
        (tree.root / 'devices/system/node/node3').mkdir()
        (tree.root / 'devices/system/node/possible').write_text('0-3\n')
        self.assertEqual({0: 0, 1: 0, 2: 1}, pci.Sysfs(tree.root).sockets())
