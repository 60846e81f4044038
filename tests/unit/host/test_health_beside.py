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


"""Cards that fall sick beside others of their IOMMU group or guest."""

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from tests.unit.host import gpus_base

A, B, HOST = gpus_base.A, gpus_base.B, gpus_base.HOST
FIRST, SECOND, THIRD = gpus_base.FIRST, gpus_base.SECOND, gpus_base.THIRD


class GroupTest(gpus_base.TestCase):
    """One of two cards of an IOMMU group does not answer any more."""

    def setUp(self) -> None:
        super().setUp()
        self.host(HOST.replace('group=3', 'group=2'))
        self.start()
        self.gpus.restore([])

    def test_the_other_is_offered(self) -> None:
        self.sysfs.set_dead(THIRD)
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertEqual([FIRST], self.claim(A))
        self.assertEqual([SECOND], self.claim(B))

    def test_guest_that_has_the_other_starts_again(self) -> None:
        one = flavor.GPURequest(1, '10de:2330')
        self.assertEqual([SECOND], self.claim(A, one))
        self.hypervisor.define(A, SECOND)
        self.sysfs.set_dead(THIRD)
        self.gpus.refresh()
        self.assertEqual([SECOND], self.claim(A, one))

    # Somebody else may use it, beside libvirt.
    def test_it_must_not_be_excluded(self) -> None:
        self.sysfs.set_dead(THIRD)
        self.start(exclude=[THIRD])
        self.assertUsage(total=1, free=1)
        self.assertIn(f'also holds {THIRD}', self.reason(SECOND))

    # The guest could reach what a host driver has.
    def test_it_has_to_be_on_its_stub_driver(self) -> None:
        self.sysfs.set_driver(THIRD, 'nvidia')
        self.sysfs.set_dead(THIRD)
        self.gpus.refresh()
        self.assertUsage(total=1, free=1)
        self.assertIn(f'also holds {THIRD}', self.reason(SECOND))


class GuestTest(gpus_base.RestoredTestCase):
    """One of two cards of a guest does not answer any more."""

    TWO = flavor.GPURequest(2)

    def setUp(self) -> None:
        super().setUp()
        self.assertEqual([FIRST, SECOND], self.claim(A, self.TWO))
        self.hypervisor.start(A, FIRST, '0000:65:00.1', SECOND)
        self.sysfs.set_dead(SECOND)
        self.gpus.refresh()
        self.assertUsage(total=3, free=1)

    def test_it_starts_with_another_in_its_place(self) -> None:
        self.assertEqual([FIRST, THIRD], self.claim(A, self.TWO))
        self.hypervisor.start(A, FIRST, '0000:65:00.1', THIRD)
        self.gpus.refresh()
        self.assertUsage(total=2, free=0)

    def test_it_does_not_start_with_fewer_and_keeps_what_it_has(self) -> None:
        self.assertEqual([THIRD], self.claim(B))
        self.assertRaises(exceptions.NotEnoughGPUs, self.claim, A, self.TWO)
        self.assertUsage(total=3, free=0)
        self.sysfs.set_dead(SECOND, dead=False)
        self.gpus.refresh()
        self.assertEqual([FIRST, SECOND], self.claim(A, self.TWO))
