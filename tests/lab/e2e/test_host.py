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

"""What nova-compute does to the host when it starts."""

import collections
import functools
import typing

from lab import pci
from lab import topology

from e2e import base

# virtio: the host's own disk, network card and file shares.
_HOST_ONLY = (topology.BOOT_VGA, topology.NETWORK_CARD, '1af4:1000',
              '1af4:1001')


class StartTest(base.LabTestCase):
    """The first start of nova-compute, which the session has made."""

    @classmethod
    @functools.cache
    def _rows(cls) -> list[dict[str, typing.Any]]:
        """What the command says; nothing here changes it."""
        return cls.cards()

    def _function(self, model: str) -> pci.Function:
        function, = (function for function in self.lab.functions()
                     if function.model == model)
        return function

    def test_offered_cards(self) -> None:
        offered = collections.Counter(
            row['model'] for row in self._rows()
            if row['verdict'] == 'offered')
        self.assertEqual(
            {topology.IDENTICAL: 2, topology.SINGLE: 1, topology.PAIR: 2},
            offered)

    def test_companions_and_numa_nodes(self) -> None:
        twins = [row for row in self._rows() if row['verdict'] == 'offered'
                 and row['model'] == topology.IDENTICAL]
        self.assertEqual([0, 1], sorted(row['numa_node'] for row in twins))
        for row in twins:
            companion = row['address'].replace('.0', '.1')
            self.assertEqual([companion], row['companions'])

    def test_withheld_displays_say_why(self) -> None:
        withheld = {row['address']: row['reason'] for row in self._rows()
                    if row['verdict'] == 'withheld'}
        console = self._function(topology.BOOT_VGA).address
        network = self._function(topology.NETWORK_CARD)
        beside, = (function.address for function in self.lab.functions()
                   if function.model == topology.IDENTICAL
                   and function.iommu_group == network.iommu_group)
        below, = (address for address, reason in withheld.items()
                  if ' on driver shpchp' in reason)
        self.assertEqual({console, beside, below}, set(withheld))
        self.assertIn(network.address, withheld[beside])
        self.assertTrue(withheld[console])

    def test_offered_cards_are_detached(self) -> None:
        addresses = [address for row in self._rows()
                     if row['verdict'] == 'offered'
                     for address in (row['address'], *row['companions'])]
        before = {function.address: function.driver
                  for function in self.lab.functions_before}
        after = {function.address: function.driver
                 for function in self.lab.functions()}
        self.assertEqual(7, len(addresses))
        for address in addresses:
            self.assertNotEqual('vfio-pci', before[address])
            self.assertEqual('vfio-pci', after[address])
        self.assertEqual(
            sorted([*(('unbind', address) for address in addresses
                      if before[address]),
                    *(('bind', address) for address in addresses)]),
            sorted(self.lab.first_bindings))

    def test_everything_else_keeps_its_driver(self) -> None:
        before = {function.address: function.driver
                  for function in self.lab.functions_before}
        after = self.lab.functions()
        for function in after:
            if function.driver != 'vfio-pci':
                self.assertEqual(before[function.address], function.driver)
        for model in _HOST_ONLY:
            drivers = {function.driver for function in after
                       if function.model == model}
            self.assertEqual(1, len(drivers), model)
            self.assertFalse(drivers & {'', 'vfio-pci'}, model)

    def test_topology(self) -> None:
        expected = collections.defaultdict(list)
        for function in self.lab.functions():
            if function.pci_class.startswith('0x03'):
                node = (f'NUMA node {function.numa_node}'
                        if function.numa_node >= 0 else 'no NUMA node')
                expected[node].append(function.address)
        self.assertEqual(2, len(expected['NUMA node 0']))
        self.assertEqual(2, len(expected['NUMA node 1']))

        shown = collections.defaultdict(list)
        for line in self.lab.host.run('nova-gpu-passthru topology'
                                      ).splitlines():
            if not line.startswith(' '):
                node = line
            elif line.split()[0] == 'GPU':
                shown[node].append(line.split()[1])
        self.assertEqual(
            {node: sorted(addresses) for node, addresses in expected.items()},
            {node: sorted(addresses) for node, addresses in shown.items()})

    def test_the_scheduler_is_told(self) -> None:
        stats = self.lab.cloud.gpu_stats()
        self.assertEqual(topology.TOTAL, stats['free_gpus'])
        self.assertEqual(topology.TOTAL, stats['total_gpus'])
        self.assertEqual(
            {topology.IDENTICAL: 2, topology.SINGLE: 1, topology.PAIR: 2},
            stats['free_by_model'])
        self.assertEqual(topology.TOTAL, self.lab.cloud.placement_free())
