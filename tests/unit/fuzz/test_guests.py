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

"""Guests that come and go on a host that breaks meanwhile."""

import hypothesis
from hypothesis import strategies

from nova_gpu_passthru import affinity
from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import gpus
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import terms as host_terms
from tests import sysfs_tree
from tests.unit import base
from tests.unit import fakes
from tests.unit.fuzz import damage
from tests.unit.fuzz import examples
from tests.unit.fuzz import test_domains

OWNER = test_domains.OWNER
OWNED = ('0000:65:00.0', '0000:65:00.1')
ONE = flavor.GPURequest(1)
NEAR = flavor.GPURequest(1, affinity=affinity.Affinity(
    frozenset([0]), affinity.SOCKET))


class BreakingHostTest(base.TestCase):
    @examples.SETTINGS
    @hypothesis.given(damage.WOUNDS, damage.WOUNDS,
                      strategies.sampled_from((ONE, NEAR)))
    def test_what_breaks_while_guests_come_and_go(
            self, before: list[damage.Wound], later: list[damage.Wound],
            request: flavor.GPURequest) -> None:
        with sysfs_tree.SysfsTree(examples.HOST) as tree:
            host, hypervisor = started(tree, before)
            self.assertGivesWhatIsFree(host, tree)
            claim(host, 'first', request)
            damage.hurt(tree, later)
            claim(host, 'second', request)
            host.refresh()
            self.assertGivesWhatIsFree(host, tree)
            host.release('first')
            host.refresh()
            self.assertGivesWhatIsFree(host, tree)
            self.assertTrue(set(OWNED).isdisjoint(hypervisor.detached))

    @examples.SETTINGS
    @hypothesis.given(damage.WOUNDS, strategies.integers(1, 400),
                      strategies.sampled_from(examples.ADDRESSES))
    def test_what_vanishes_between_two_looks(
            self, wounds: list[damage.Wound], looks: int, address: str
    ) -> None:
        with sysfs_tree.SysfsTree(examples.HOST) as tree:
            host, hypervisor = started(tree, wounds)
            damage.plan_removal(tree, address, looks)
            claim(host, 'first', ONE)
            host.refresh()
            claim(host, 'second', ONE)
            host.release('first')
            damage.INTERRUPTION.cancel()
            host.refresh()
            self.assertGivesWhatIsFree(host, tree)
            self.assertTrue(set(OWNED).isdisjoint(hypervisor.detached))

    def assertGivesWhatIsFree(self, host: gpus.HostGPUs,
                              tree: sysfs_tree.SysfsTree) -> None:
        """Checks that a guest can have all that is free, and no more."""
        free = host.usage().free_gpus
        holders = host.holders()
        self.assertRaises(exceptions.NotEnoughGPUs, host.claim, 'probe',
                          flavor.GPURequest(free + 1))
        if not free:
            return
        cards = host.claim('probe', flavor.GPURequest(free))
        self.assertEqual(free, len({card.address for card in cards}))
        for card in cards:
            self.assertNotIn(card.address, holders)
            for address in map(str, card.addresses):
                self.assertNotIn(address, OWNED)
                self.assertReadable(pci.Sysfs(tree.root), address)
        host.release('probe')

    def assertReadable(self, sysfs: pci.Sysfs, text: str) -> None:
        address = pci.PCIAddress.parse(text)
        function = sysfs.function(address)
        assert function is not None
        self.assertEqual('', function.fault)
        self.assertEqual(fakes.STUB, function.driver)
        self.assertTrue(sysfs.responds(address))


def started(tree: sysfs_tree.SysfsTree, wounds: list[damage.Wound]
            ) -> tuple[gpus.HostGPUs, fakes.Hypervisor]:
    """Starts on a host where one guest runs."""
    hypervisor = fakes.Hypervisor(tree)
    hypervisor.start(OWNER, *OWNED)
    damage.hurt(tree, wounds)
    host = test_domains.new_host(hypervisor)
    host.start(base.policy(include=['1a03:2000', '10de:20b5']), 30,
               host_terms.Terms())
    host.restore([(OWNER, ONE)])
    return host, hypervisor


def claim(host: gpus.HostGPUs, uuid: str,
          request: flavor.GPURequest) -> None:
    try:
        host.claim(uuid, request)
    except exceptions.NotEnoughGPUs:
        pass  # there may be none left
