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

from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import topology
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from tests import sysfs_tree
from tests.unit import base
from tests.unit.host import test_topology

TREE = """
NUMA node 0
  root port 0000:10:00.0 (8086:0001)
    GPU 0000:0f:00.0 GH100 [H100 SXM5 80GB], offered
  root port 0000:10:01.0 (8086:0001)
    bridge 0000:11:00.0 (10b5:0001)
      bridge 0000:12:00.0 (10b5:0001)
        GPU 0000:13:00.0 GH100 [H100 SXM5 80GB], held by {holder}
      bridge 0000:12:01.0 (10b5:0001)
        GPU 0000:14:00.0 GH100 [H100 SXM5 80GB], offered
NUMA node 1
  root port 0000:80:01.0 (8086:0001)
    bridge 0000:81:00.0 (10b5:0001)
      bridge 0000:82:00.0 (10b5:0001)
        GPU 0000:83:00.0 GH100 [H100 SXM5 80GB], offered
      bridge 0000:82:01.0 (10b5:0001)
        GPU 0000:84:00.0 GH100 [H100 SXM5 80GB], offered
no NUMA node
  GPU 0000:ff:00.0 10de:2331, withheld: 0000:ff:00.0 is in no IOMMU group; \
enable the IOMMU in the firmware and on the kernel command line
"""


class TopologyTest(base.TestCase):
    def test_it_is_a_tree_from_nodes_to_cards(self) -> None:
        tree = self.useFixture(sysfs_tree.SysfsTree(
            test_topology.HOST + '0000:ff:00.0 030200 10de:2331'))
        sysfs = pci.Sysfs(tree.root)
        holder = 'aaaaaaaa-0000-4000-8000-000000000000'
        view = host_view.HostView(
            sysfs.functions(), host_cards.find(sysfs, base.policy()),
            {pci.PCIAddress.parse('0000:13:00.0'): holder})
        names = {'10de:2330': 'GH100 [H100 SXM5 80GB]'}
        self.assertEqual(TREE.strip().format(holder=holder),
                         '\n'.join(topology.draw(view, names)))
