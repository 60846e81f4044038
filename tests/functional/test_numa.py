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

"""Guests with a NUMA topology on a host of two nodes."""

import itertools
from typing import Any

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import base
from tests.functional import gpu_libvirt

# On each node two CPUs, and one or two cards.
ONE_AND_TWO = """
0000:17:00.0 030000 10de:1ff2 driver=nvidia group=33 numa=0
0000:17:00.1 040300 10de:10fa driver=snd_hda_intel group=33 numa=0
0000:65:00.0 030200 10de:2330 driver=nvidia group=34 numa=1
0000:82:00.0 030200 10de:2330 driver=nvidia group=35 numa=1
"""

# Nova puts a guest of one node on node 0.
FAR_AND_NOWHERE = """
0000:65:00.0 030200 10de:2330 driver=nvidia group=34 numa=1
0000:82:00.0 030200 10de:2330 driver=nvidia group=35
"""


class NUMATestCase(base.GPUTestCase):

    MORE_FILTERS = ['NUMATopologyFilter']

    def setUp(self) -> None:
        super().setUp()
        self.flags(hw_machine_type=['x86_64=q35'], group='libvirt')

    def add_numa_host(self, description: str = ONE_AND_TWO) -> None:
        self.prepare_host('host1', description)
        self._prepared['host1'] = gpu_libvirt.Connection(
            self.sysfs['host1'], hostname='host1',
            host_info=fakelibvirt.HostInfo(
                cpu_nodes=2, cpu_sockets=1, cpu_cores=2, cpu_threads=1,
                kB_mem=8 * 1024 ** 2))
        self.start_compute('host1')

    def create_numa_server(self, nodes: int, count: int, **kwargs: Any
                           ) -> dict[str, Any]:
        flavor = self._create_flavor(
            memory_mb=1024, vcpu=2, disk=1, ephemeral=0, extra_spec={
                'free_gpus': str(count), 'hw:numa_nodes': str(nodes),
                **kwargs.pop('extra_specs', {})})
        return self.create_server(flavor_id=flavor, **kwargs)

    def nodes_of(self, server: dict[str, Any]) -> dict[str, str | None]:
        """The guest's NUMA node of each host function."""
        root = etree.fromstring(self.domain_of(server).XMLDesc(0))
        controllers = {int(c.get('index')): c for c in root.iterfind(
            "devices/controller[@type='pci'][@index]")}
        found = {}
        for function, place in zip(self.domain_of(server).functions,
                                   self.guest_places(server)):
            port = controllers[int(place.partition(':')[0], 16)]
            address = port.find('address')
            found[function] = (
                None if address is None else controllers[
                    int(address.get('bus'), 16)].findtext('target/node'))
        return found


class GuestNodesTest(NUMATestCase):

    def test_cards_are_on_the_nodes_that_they_are_on(self) -> None:
        self.add_numa_host()
        server = self.create_numa_server(2, 3)
        self.assertEqual(
            {'0000:17:00.0': '0', '0000:17:00.1': '0', '0000:65:00.0': '1',
             '0000:82:00.0': '1'}, self.nodes_of(server))
        places = self.guest_places(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(places, self.guest_places(server))

    def test_guest_on_one_node(self) -> None:
        self.add_numa_host()
        server = self.create_numa_server(
            1, 3, extra_specs={'hw:pci_numa_affinity_policy': 'preferred'})
        root = etree.fromstring(self.domain_of(server).XMLDesc(0))
        node, = root.iterfind('numatune/memnode')
        on = {'0': base.CARD_1, '1': ['0000:65:00.0', '0000:82:00.0']}
        near = on[node.get('nodeset')]
        self.assertEqual(
            {f: '0' if f in near else None
             for f in itertools.chain(*on.values())}, self.nodes_of(server))

    def test_switched_off(self) -> None:
        self.flags(guest_numa_placement=False, group='gpu_passthru')
        self.add_numa_host()
        self.assertEqual({None}, set(self.nodes_of(
            self.create_numa_server(2, 3)).values()))

    def test_guest_without_numa_topology(self) -> None:
        self.add_numa_host()
        self.assertEqual({None}, set(self.nodes_of(
            self.create_gpu_server(3)).values()))


class PolicyTest(NUMATestCase):
    """Which cards a guest on node 0 may have."""

    def setUp(self) -> None:
        super().setUp()
        self.add_numa_host(FAR_AND_NOWHERE)

    def create(self, policy: str | None, count: int,
               **kwargs: Any) -> dict[str, Any]:
        return self.create_numa_server(
            1, count, extra_specs=(
                {'hw:pci_numa_affinity_policy': policy} if policy else {}),
            **kwargs)

    def test_required_is_none_of_them(self) -> None:
        self.assertNoHost(self.create('required', 1, state='ERROR'))

    def test_legacy_is_the_one_without_a_node(self) -> None:
        self.assertNoHost(self.create(None, 2, state='ERROR'))
        for policy in (None, 'legacy'):
            server = self.create(policy, 1)
            self.assertGPUs(server, ['0000:82:00.0'])
            self._delete_server(server)

    def test_preferred_is_any(self) -> None:
        server = self.create('preferred', 2)
        self.assertEqual({'0000:65:00.0': None, '0000:82:00.0': None},
                         self.nodes_of(server))
