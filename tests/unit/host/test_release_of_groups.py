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


"""Releases of cards that share an IOMMU group."""

from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import terms as host_terms
from tests.unit.host import gpus_base
from tests.unit.host import release_base

A, B, HOST = gpus_base.A, gpus_base.B, gpus_base.HOST
FIRST, SECOND, THIRD = gpus_base.FIRST, gpus_base.SECOND, gpus_base.THIRD
ADDRESS = pci.PCIAddress.parse(FIRST)


class GroupTest(release_base.TestCase):
    """The first two cards share an IOMMU group."""

    def setUp(self) -> None:
        super().setUp()
        self.host(HOST.replace('group=2', 'group=1'))
        self.terms = host_terms.Terms(self.hook(
            f'while [ ! -e {self.folder}/go -a -e "$0" ]; do sleep .02; done'))
        self.restart()
        self.assertEqual([FIRST], self.claim(
            A, flavor.GPURequest(1, '10de:2231')))
        self.take_back(A)

    def test_others_of_the_group_wait_for_the_release(self) -> None:
        # The hook may have the card on a host driver, and then vfio does not
        # open the group.
        self.gpus.refresh()
        self.assertUsage(total=3, free=1)
        self.assertEqual([THIRD], self.claim(B))

    def test_also_if_an_operator_withholds_the_card(self) -> None:
        card, = (c for c in self.gpus.cards if c.address == ADDRESS)
        self.records.change(card, lambda record: record.but(
            withheld='a fan is loud'))
        self.gpus.refresh()
        self.assertEqual(1, self.gpus.usage().free_gpus)
        self.assertEqual([THIRD], self.claim(B))
        self.gpus.release(B)
        (self.folder / 'go').touch()
        self.finish_releases()
        self.gpus.refresh()
        self.finish_releases()
        self.assertIn('a fan is loud', self.reason(FIRST))
        self.assertUsage(total=2, free=2)

    def test_and_are_free_after_it(self) -> None:
        (self.folder / 'go').touch()
        self.finish_releases()
        self.assertUsage(total=3, free=3)


class RunningGroupTest(release_base.TestCase):
    """A guest gives up one of two cards of an IOMMU group, and runs on.

    A host driver that takes a device of a group that vfio has open is refused
    since Linux 5.19, and before that the kernel stopped.
    """

    def setUp(self) -> None:
        super().setUp()
        self.host(HOST.replace('group=3', 'group=2'))
        self.terms = host_terms.Terms(self.hook(
            f'echo "$@" >>{self.folder}/runs'))
        self.restart()
        self.assertEqual([SECOND, THIRD], self.claim(
            A, flavor.GPURequest(2, '10de:2330')))
        self.one = flavor.GPURequest(1, '10de:2330')
        self.assertEqual([SECOND], self.claim(A, self.one))
        self.hypervisor.start(A, SECOND)
        self.gpus.refresh()
        self.finish_releases()

    def test_the_hook_waits_for_the_guest(self) -> None:
        self.assertEqual([], self.runs())
        self.assertUsage(total=3, free=1)
        self.assertEqual([FIRST], self.claim(B))
        self.take_back(A)
        self.finish_releases()
        self.assertEqual([SECOND, THIRD], sorted(self.runs()))
        self.assertUsage(total=3, free=2)

    def test_the_hook_waits_for_a_guest_made_by_hand_as_well(self) -> None:
        self.hypervisor.start('by-hand', SECOND)
        self.gpus.refresh()
        self.take_back(A)
        self.finish_releases()
        self.assertEqual([], self.runs())

    def test_the_guest_is_rebooted_meanwhile(self) -> None:
        self.hypervisor.undefine(A)
        self.hypervisor.define(A, SECOND)
        self.gpus.refresh()
        self.finish_releases()
        self.assertEqual([], self.runs())
        self.assertEqual([SECOND], self.claim(A, self.one))

    def test_the_guest_has_both_again(self) -> None:
        self.assertEqual([SECOND, THIRD], self.claim(
            A, flavor.GPURequest(2, '10de:2330')))
