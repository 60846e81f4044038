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

"""A host's GPUs when nova-compute starts anew, and when one is stuck."""

import threading

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from tests.unit import fakes
from tests.unit.host import gpus_base

A, B, HOST, ONE = gpus_base.A, gpus_base.B, gpus_base.HOST, gpus_base.ONE
FIRST, SECOND, THIRD = gpus_base.FIRST, gpus_base.SECOND, gpus_base.THIRD


class RestartTest(gpus_base.TestCase):
    # https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/1331
    def test_cards_on_a_stub_driver_are_counted_and_not_touched(
            self) -> None:
        self.host('\n'.join(
            f'0000:0{n}:00.0 030200 10de:2330 driver=vfio-pci group={n}'
            for n in range(1, 9)))
        for number in (1, 4, 8):
            self.hypervisor.start(f'guest-{number}', f'0000:0{number}:00.0')
        self.start()
        self.assertEqual([], self.hypervisor.detached)
        self.assertUsage(total=8, free=5)

    # https://github.com/harvester/harvester/issues/5957
    def test_cards_of_domains_that_are_shut_off_are_detached_after_a_host_boot(
            self) -> None:
        self.host(HOST)
        self.hypervisor.define(A, FIRST, '0000:65:00.1')
        self.hypervisor.define(B, THIRD)
        self.start()
        self.assertUsage(total=3, free=1)
        self.assertEqual(
            [fakes.STUB] * 4, [self.hypervisor.driver(address) for address in
                               (FIRST, '0000:65:00.1', SECOND, THIRD)])
        self.assertEqual([THIRD], self.claim(B))

    def test_function_of_a_running_domain_is_never_touched(self) -> None:
        # Half a card on a host driver: whoever made this domain, it runs.
        self.host(HOST)
        self.sysfs.set_driver(FIRST, 'vfio-pci')
        self.hypervisor.start('by-hand', FIRST)
        self.start()
        self.assertNotIn('0000:65:00.1', self.hypervisor.detached)
        self.assertUsage(total=3, free=2)

    def test_instance_without_domain_gets_its_cards_before_others(
            self) -> None:
        self.host(HOST)
        self.sysfs.set_driver(SECOND, 'vfio-pci')
        self.hypervisor.start(A, SECOND)
        self.start()
        self.gpus.restore([(B, flavor.GPURequest(2)),
                           (A, flavor.GPURequest(1))])
        self.assertUsage(total=3, free=0)
        self.assertEqual([SECOND], self.claim(A))
        self.assertEqual([FIRST, THIRD], self.claim(B, flavor.GPURequest(2)))

    def test_instance_that_cannot_be_served_is_logged_and_others_are(
            self) -> None:
        self.host(HOST)
        self.start()
        self.gpus.restore([(A, flavor.GPURequest(9)), (B, ONE)])
        self.assertIn(A, self.log.output)
        self.assertEqual([FIRST], self.claim(B))

    def test_while_domains_cannot_be_read_nothing_is_detached_or_free(
            self) -> None:
        self.host(HOST)
        self.sysfs.set_driver(SECOND, 'vfio-pci')
        self.hypervisor.failure = fakes.libvirt_error('no connection')
        self.start()
        self.assertEqual([], self.hypervisor.detached)
        self.assertUsage(total=1, free=0)
        self.assertRaises(exceptions.NotEnoughGPUs, self.claim, A)
        self.hypervisor.failure = None
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)

    # https://bugs.launchpad.net/nova/+bug/1633120
    def test_excluded_card_counts_until_its_guest_is_gone(self) -> None:
        self.host(HOST)
        self.start()
        self.claim(A)
        self.hypervisor.start(A, FIRST, '0000:65:00.1')
        self.start(exclude=[FIRST])
        self.assertUsage(total=3, free=2)
        self.hypervisor.undefine(A)
        self.gpus.release(A)
        self.assertUsage(total=2, free=2)

    # https://bugs.launchpad.net/nova/+bug/2115905
    def test_two_cards_excluded_at_once_are_both_gone(self) -> None:
        self.host(HOST)
        self.start()
        self.start(exclude=[FIRST, SECOND])
        self.assertUsage(total=1, free=1)


class FailureTest(gpus_base.TestCase):
    """A card that cannot be detached costs one card."""

    # https://github.com/kubernetes/kubernetes/issues/112795
    def test_card_whose_driver_does_not_let_go_is_withheld(self) -> None:
        self.host(HOST)
        let_go = threading.Event()
        self.addCleanup(let_go.set)
        self.hypervisor.blocked[SECOND] = let_go
        self.start(timeout=0.3)
        self.assertUsage(total=2, free=2)
        self.assertIn('nvidia has not let go', self.reason(SECOND))
        self.assertIn(f'GPU {SECOND} (10de:2330) is withheld',
                      self.log.output)
        # Later periods neither wait for it nor try again.
        self.gpus.refresh()
        self.assertEqual(1, self.hypervisor.detached.count(SECOND))
        self.assertUsage(total=2, free=2)
        let_go.set()
        for thread in threading.enumerate():
            if thread.name == f'detach-{SECOND}':
                thread.join(30)
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)

    # https://github.com/NVIDIA/k8s-driver-manager (75159256): the stub
    # driver's module is missing
    def test_what_libvirt_says_is_surfaced_once(self) -> None:
        self.host(HOST)
        self.hypervisor.refused.add('0000:65:00.1')
        self.start()
        for _ in range(3):
            self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertEqual(1, self.hypervisor.detached.count('0000:65:00.1'))
        self.assertEqual(1, self.log.output.count('failed to unbind'))

    def test_it_is_tried_again_when_the_service_starts_anew(self) -> None:
        self.host(HOST)
        self.hypervisor.refused.add(FIRST)
        self.start()
        self.hypervisor.refused.clear()
        self.start()
        self.assertUsage(total=3, free=3)

    def test_it_is_not_given_to_a_guest(self) -> None:
        self.host(HOST)
        self.hypervisor.lied_about.add(FIRST)
        self.start()
        self.assertEqual([SECOND], self.claim(A))
