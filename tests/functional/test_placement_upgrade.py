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


"""Hosts on which Nova's own [pci] options name devices.

Nova keeps account of such a device itself and gives it to guests that ask by
an alias.
"""

import json
import re
from typing import Any

from nova.tests.fixtures import libvirt as fakelibvirt

from nova_gpu_passthru import driver
from tests.functional import base
from tests.functional import placement
from tests.functional import test_moves

NIC = '0000:04:00.0'
# Cards of one function each: Nova gives functions, not cards.
H100_HOST = """
0000:81:00.0 030200 10de:2330 driver=nvidia group=41
0000:82:00.0 030200 10de:2330 driver=nvidia group=42
"""


def pci_info(*addresses: str, vendor: str,
             product: str) -> fakelibvirt.HostPCIDevicesInfo:
    """What libvirt tells Nova of functions that are in sysfs too."""
    info = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0, num_vfs=0)
    for address in addresses:
        _, bus, slot, function = (
            int(part, 16) for part in re.split('[:.]', address))
        info.add_device('PCI', bus, slot, function, iommu_group=bus,
                        numa_node=0, vend_id=vendor, prod_id=product)
    return info


class UpgradeTestCase(placement.PlacementTestCase):

    MORE_FILTERS = ['PciPassthroughFilter']

    def set_pci(self, vendor: str, product: str, in_placement: bool) -> None:
        """Lets Nova give devices of a product for pci_passthrough:alias."""
        ids = {'vendor_id': vendor, 'product_id': product}
        self.flags(device_spec=[json.dumps(ids)],
                   alias=[json.dumps({**ids, 'name': 'theirs',
                                      'device_type': 'type-PCI'})],
                   report_in_placement=in_placement, group='pci')
        self.flags(pci_in_placement=in_placement, group='filter_scheduler')

    def create_alias_server(self, **kwargs: Any) -> dict[str, Any]:
        return self.create_server({'pci_passthrough:alias': 'theirs:1'},
                                  **kwargs)

    def provider_names(self) -> set[str]:
        return {provider['name'] for provider in self._get_all_providers()}


class OtherDevicesTest(UpgradeTestCase):
    """Nova gives a NIC, this driver the cards: they do not meet."""

    def _check(self, names: set[str]) -> None:
        self.prepare_host('host1', base.TWO_CARDS).pci_info = pci_info(
            NIC, vendor='8086', product='1572')
        self.start_compute('host1')
        self.assertEqual({'host1', 'host1_gpu_10de_1ff2', *names},
                         self.provider_names())
        both = self.create_server({'pci_passthrough:alias': 'theirs:1',
                                   'resources:PGPU': '1'})
        self.assertCountEqual([NIC, *base.CARD_1],
                              self.domain_of(both).functions)
        self.assertGiven(both, 'host1', 1)
        self.run_periodic()
        self.assertPool('host1', 2, used=1)
        self.restart_compute_service('host1')
        self.assertEqual({'host1', 'host1_gpu_10de_1ff2', *names},
                         self.provider_names())
        self.assertPool('host1', 2, used=1)
        self._delete_server(both)
        # As libvirt does when the guest is gone, since Nova says managed.
        self.sysfs['host1'].set_driver(NIC, 'i40e')

    def test_that_placement_knows(self) -> None:
        self.set_pci('8086', '1572', in_placement=True)
        self._check({'host1_0000:04:00.0'})

    def test_that_placement_does_not_know(self) -> None:
        self.set_pci('8086', '1572', in_placement=False)
        self._check(set())


class SameDevicesTestCase(UpgradeTestCase):
    """Nova was told to give the very cards that this driver offers."""

    IN_PLACEMENT = False

    def setUp(self) -> None:
        super().setUp()
        self.set_pci('10de', '2330', in_placement=self.IN_PLACEMENT)
        self.prepare_host('host1', H100_HOST).pci_info = pci_info(
            *placement.TWO_H100S, vendor='10de', product='2330')
        self.flags(compute_driver='libvirt.LibvirtDriver')
        self.start_compute('host1')
        self.theirs = self.create_alias_server()
        self.assertEqual(1, len(self.domain_of(self.theirs).functions))

    def _upgrade(self, device_spec: bool) -> None:
        self.flags(
            compute_driver='nova_gpu_passthru.driver.GPUPassthruDriver')
        if not device_spec:
            self.flags(device_spec=[], group='pci')
        self.restart_compute_service('host1')
        self.run_periodic()


class SameDevicesTest(SameDevicesTestCase):

    def test_without_the_option_each_card_counts_once(self) -> None:
        self._upgrade(device_spec=False)
        self.assertPool('host1', 2, reserved=1, model=base.H100)
        ours = self.create_pgpu_server()
        self.assertNotIn(self.domain_of(self.theirs).functions[0],
                         self.domain_of(ours).functions)
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))
        self.assertNoHost(self.create_alias_server(state='ERROR'))
        self._delete_server(self.theirs)
        self.run_periodic()
        self.assertPool('host1', 2, used=1, model=base.H100)
        self.create_pgpu_server()

    def test_with_the_option_no_card_is_offered_twice(self) -> None:
        self._upgrade(device_spec=True)
        pools = self.pools('host1')
        left = sum(pool.total - pool.reserved - pool.used
                   for pool in pools.values())
        self.assertEqual(0, left, pools)
        self.assertFree(0, 'host1')
        # The other card is still Nova's to give.
        self.create_alias_server()
        self.assertNoHost(self.create_gpu_server(state='ERROR'))
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))

    def test_guests_to_move_are_named(self) -> None:
        self._upgrade(device_spec=True)
        self.assertRegex(
            self.stdlog.logger.output,
            f'WARNING .*GPU {self.domain_of(self.theirs).functions[0]} .* is '
            f'held by instance {self.theirs["id"]}, and .pci. device_spec')

    def test_guest_that_stays_keeps_its_card(self) -> None:
        functions = self.domain_of(self.theirs).functions
        self._upgrade(device_spec=False)
        for _ in range(2):
            self._reboot_server(self.theirs, hard=True)
            self.run_periodic()
            self.assertPool('host1', 2, reserved=1, model=base.H100)
            self.assertGPUs(self.theirs, functions)
        ours = self.create_pgpu_server()
        self._stop_server(self.theirs)
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))
        self._start_server(self.theirs)
        self.assertGPUs(self.theirs, functions)
        self.assertEqual(
            placement.TWO_H100S,
            sorted(functions + self.domain_of(ours).functions))


class SameDevicesInPlacementTest(SameDevicesTest):

    IN_PLACEMENT = True


class DrainTest(test_moves.MovesTestCase, SameDevicesTestCase):
    """As doc/source/operating.rst says: guests first, then the options."""

    def setUp(self) -> None:
        super().setUp()
        spec = driver.CONF.pci.device_spec
        self.flags(
            compute_driver='nova_gpu_passthru.driver.GPUPassthruDriver')
        # A host that is done already, or new.
        self.flags(device_spec=[], group='pci')
        self.add_host('host2', H100_HOST)
        self.flags(device_spec=spec, group='pci')
        # Nova compares with CONF.host, which is the last one's.
        self._upgrade(device_spec=True)

    def _check_drained(self) -> None:
        self._upgrade(device_spec=False)
        self.assertPool('host1', 2, model=base.H100)
        self.assertFree(2, 'host1')
        self.assertEqual(
            {f'{host}{pool}' for host in ('host1', 'host2')
             for pool in ('', '_gpu_10de_2330')}, self.provider_names())

    def test_resize(self) -> None:
        self._resize_server(self.theirs, self.pgpu_flavor(1))
        self.run_periodic()
        self.assertGiven(self.theirs, 'host2', 1, base.H100)
        self.assertPool('host2', 2, used=1, model=base.H100)
        self._confirm_resize(self.theirs)
        self.assertGPUs(self.theirs, placement.TWO_H100S[:1])
        self._check_drained()
        self.assertPool('host2', 2, used=1, model=base.H100)

    def test_resize_and_revert(self) -> None:
        functions = self.domain_of(self.theirs).functions
        self._resize_server(self.theirs, self.pgpu_flavor(1))
        self._revert_resize(self.theirs)
        self.assertGPUs(self.theirs, functions)
        self.run_periodic()
        self.assertPool('host2', 2, model=base.H100)
        self.assertFree(0, 'host1')

    def test_delete(self) -> None:
        self._delete_server(self.theirs)
        self._check_drained()


class DrainInPlacementTest(DrainTest):

    IN_PLACEMENT = True
