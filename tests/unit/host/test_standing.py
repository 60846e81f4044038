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


"""Cards that are set apart at run time, and guests that do not start."""

import threading

import libvirt

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import records
from tests import proc_tree
from tests.unit import fakes
from tests.unit.host import gpus_base

A, B, HOST, ONE = gpus_base.A, gpus_base.B, gpus_base.HOST, gpus_base.ONE
FIRST, SECOND, THIRD = gpus_base.FIRST, gpus_base.SECOND, gpus_base.THIRD
AUDIO = '0000:65:00.1'
VIABLE = 'vfio {}: group 2 is not viable'


class TestCase(gpus_base.RestoredTestCase):
    def card(self, address: str) -> host_cards.Card:
        card, = (c for c in self.gpus.cards if str(c.address) == address)
        return card

    def record(self, address: str, **changes: object) -> None:
        self.records.change(self.card(address),
                            lambda record: record.but(**changes))

    def give(self, uuid: str, *addresses: str) -> None:
        self.hypervisor.start(uuid, *addresses)
        self.gpus.refresh()


class WithheldTest(TestCase):
    """An operator withholds a card while nova-compute runs."""

    def test_it_is_not_given_at_the_next_claim(self) -> None:
        self.record(FIRST, withheld='a fan is loud')
        self.assertEqual([SECOND], self.claim(A))

    def test_it_is_reported_with_the_next_look(self) -> None:
        self.record(FIRST, withheld='a fan is loud')
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertIn('an operator withholds it: a fan is loud',
                      self.reason(FIRST))
        self.assertIn('a fan is loud', self.log.output)
        self.assertNotIn('gone', self.log.output)

    def test_it_outlives_a_restart(self) -> None:
        self.record(FIRST, withheld='a fan is loud')
        self.start()
        self.assertUsage(total=2, free=2)
        self.assertNotIn('left aside', self.log.output)

    def test_what_the_operator_does_with_it_is_not_disturbed(self) -> None:
        self.record(FIRST, withheld='a fan is loud')
        self.sysfs.set_driver(FIRST, 'nvidia')
        self.gpus.refresh()
        self.start()
        self.assertEqual('nvidia', self.hypervisor.driver(FIRST))
        self.record(FIRST, withheld='', retry=True)
        self.gpus.refresh()
        self.assertEqual(fakes.STUB, self.hypervisor.driver(FIRST))
        self.assertUsage(total=3, free=3)

    def test_guest_that_has_it_keeps_it_until_it_is_gone(self) -> None:
        self.assertEqual([FIRST], self.claim(A))
        self.give(A, FIRST, AUDIO)
        self.record(FIRST, withheld='a fan is loud')
        self.gpus.refresh()
        self.assertUsage(total=3, free=2)
        # A reboot, say.
        self.assertEqual([FIRST], self.claim(A))
        self.hypervisor.undefine(A)
        self.gpus.release(A)
        self.assertUsage(total=2, free=2)

    def test_it_is_withheld_between_the_look_and_the_claim(self) -> None:
        self.assertEqual([FIRST], self.claim(A))
        self.record(SECOND, withheld='x')
        self.assertEqual([THIRD], self.claim(B))

    # The bus numbers changed: another device is at its address.
    def test_card_of_another_model_at_its_address_is_not_meant(
            self) -> None:
        self.record(SECOND, withheld='a fan is loud')
        self.sysfs.remove(SECOND)
        self.sysfs.add(f'{SECOND} 030200 10de:2331 driver=nvidia group=2')
        for _ in range(2):
            self.gpus.refresh()
        self.assertUsage(total=3, free=3)
        self.assertEqual(1, self.log.output.count(
            f'What is remembered of GPU {SECOND} is left aside: the record '
            f'is about a card of model 10de:2330; now 10de:2331 is there'))

    def test_record_that_cannot_be_read_withholds_its_card(self) -> None:
        self.record(FIRST, withheld='x')
        file = self.records.folder / f'{FIRST}.json'
        file.write_text('{')
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertIn(str(file), self.reason(FIRST))


class GroupTest(gpus_base.TestCase):
    """The first two cards share an IOMMU group, which vfio wants as a whole.

    Documentation/driver-api/vfio.rst
    """

    def setUp(self) -> None:
        super().setUp()
        self.host(HOST.replace('group=2', 'group=1'))

    def test_card_that_the_operator_gives_to_the_host_closes_it(
            self) -> None:
        self.start()
        card, = (c for c in self.gpus.cards if str(c.address) == SECOND)
        self.records.change(card, lambda record: record.but(
            withheld='the host needs it'))
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.sysfs.set_driver(SECOND, 'nvidia')
        self.gpus.refresh()
        self.assertUsage(total=2, free=1)
        self.assertEqual([THIRD], self.claim(A))
        self.assertRaises(exceptions.NotEnoughGPUs, self.claim, B)

    def test_card_that_cannot_be_detached_closes_it(self) -> None:
        self.hypervisor.refused.add(SECOND)
        self.start()
        self.assertUsage(total=2, free=1)


class HostRebootTest(TestCase):
    """A stopped guest's card is on its host driver when the host is up."""

    def setUp(self) -> None:
        super().setUp()
        self.assertEqual([FIRST], self.claim(A))
        self.hypervisor.define(A, FIRST, AUDIO)
        self.gpus.refresh()

    def reboot_host(self) -> None:
        for address in FIRST, AUDIO:
            self.sysfs.set_driver(address, 'nvidia')
        self.start()
        self.gpus.restore([(A, ONE)])

    def assertStarts(self) -> None:
        self.assertEqual(fakes.STUB, self.hypervisor.driver(FIRST))
        self.assertEqual([FIRST], self.claim(A))

    def test_guest_keeps_a_card_that_was_withheld(self) -> None:
        self.record(FIRST, withheld='a fan is loud')
        self.reboot_host()
        self.assertStarts()

    def test_guest_keeps_its_card_though_the_records_cannot_be_read(
            self) -> None:
        self.records.folder.write_text('no folder')
        self.reboot_host()
        self.assertStarts()

    def test_others_do_not_get_it(self) -> None:
        self.record(FIRST, withheld='a fan is loud')
        self.reboot_host()
        self.hypervisor.undefine(A)
        self.gpus.release(A)
        self.assertUsage(total=2, free=2)


class BusyTest(TestCase):
    """A card is withheld while it waits for a process of the host."""

    def setUp(self) -> None:
        super().setUp()
        self.processes = proc_tree.ProcTree(self.sysfs.root, self.sysfs)
        self.processes.serve_nvidia(SECOND, 0)
        self.processes.run(812, 'compute-job', 'nvidia0')
        self.addCleanup(self.finish_detaching)
        self.addCleanup(self.processes.end, 812)
        self.sysfs.set_driver(SECOND, 'nvidia')
        self.start(timeout=.3)
        self.assertIn('compute-job (pid 812) uses it', self.reason(SECOND))

    def finish_detaching(self) -> None:
        for thread in threading.enumerate():
            if thread.name == f'detach-{SECOND}':
                thread.join(60)

    def test_it_stays_with_the_host_when_the_process_ends(self) -> None:
        self.record(SECOND, withheld='a job of the host needs it')
        self.processes.end(812)
        self.finish_detaching()
        self.assertEqual('nvidia', self.hypervisor.driver(SECOND))
        self.record(SECOND, withheld='', retry=True)
        self.gpus.refresh()
        self.assertEqual(fakes.STUB, self.hypervisor.driver(SECOND))


class StartFailureTest(TestCase):
    """A guest does not start because of its card."""

    def fail(self, uuid: str, text: str) -> None:
        def start() -> None:
            with self.gpus.starting(uuid):
                raise fakes.libvirt_error(text)

        self.assertRaises(libvirt.libvirtError, start)

    def start_well(self, uuid: str) -> None:
        with self.gpus.starting(uuid):
            pass

    # NVIDIA/open-gpu-kernel-modules#853, zen-kernel#380,
    # gnif/vendor-reset#35
    def test_card_that_hangs_after_its_first_guest_is_not_offered_next(
            self) -> None:
        self.claim(A)
        self.fail(A, f'vfio {FIRST}: error getting device: timed out')
        self.gpus.release(A)
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertIn('error getting device: timed out', self.reason(FIRST))
        self.assertIn(f'GPU {FIRST} (10de:2231) is withheld, for instance '
                      f'{A} did not start because of it', self.log.output)
        self.assertEqual([SECOND], self.claim(A))

    def test_a_record_that_cannot_be_read_is_not_written_over(self) -> None:
        self.claim(A)
        self.record(FIRST, withheld='a fan is loud')
        (self.records.folder / f'{FIRST}.json').write_text('{')
        self.fail(A, f'vfio {FIRST}: error getting device')
        self.gpus.release(A)
        self.assertIn('cannot be read', self.reason(FIRST))

    def test_only_the_card_that_is_named_is_withheld(self) -> None:
        self.claim(A, flavor.GPURequest(3))
        self.fail(A, f'vfio {AUDIO}: group 1 is not viable')
        self.gpus.release(A)
        self.assertUsage(total=2, free=2)
        self.assertIn('not viable', self.reason(FIRST))

    def test_card_that_somebody_else_has_is_not_blamed(self) -> None:
        self.claim(A)
        self.claim(B)
        self.fail(A, VIABLE.format(SECOND))
        self.assertEqual({}, self.records.read())

    def test_shortage_of_memory_withholds_no_card(self) -> None:
        self.claim(A)
        self.fail(A, f'vfio {FIRST}: failed to setup container for group 1: '
                     f'Cannot allocate memory')
        self.gpus.release(A)
        self.assertUsage(total=3, free=3)

    def test_other_errors_are_none_of_its_business(self) -> None:
        def start() -> None:
            with self.gpus.starting(A):
                raise ValueError(VIABLE.format(FIRST))

        self.claim(A)
        self.assertRaises(ValueError, start)
        self.assertEqual({}, self.records.read())

    def test_same_instance_gets_another_card_if_there_is_one(self) -> None:
        self.claim(A)
        self.fail(A, VIABLE.format(FIRST))
        self.assertEqual([SECOND], self.claim(A))

    def test_and_its_own_again_if_there_is_none(self) -> None:
        self.claim(B, flavor.GPURequest(2))
        self.assertEqual([THIRD], self.claim(A))
        self.fail(A, VIABLE.format(THIRD))
        self.assertEqual([THIRD], self.claim(A))
        self.assertUsage(total=3, free=0)

    def test_card_that_a_guest_started_with_is_well_again(self) -> None:
        self.claim(B, flavor.GPURequest(2))
        self.claim(A)
        self.fail(A, VIABLE.format(THIRD))
        self.start_well(A)
        self.assertEqual({}, self.records.read())
        self.assertIn(f'GPU {THIRD} (10de:2330) is well again',
                      self.log.output)

    def test_others_do_not_get_it_though_there_is_no_other(self) -> None:
        self.claim(B, flavor.GPURequest(2))
        self.claim(A)
        self.fail(A, VIABLE.format(THIRD))
        self.gpus.release(A)
        self.assertRaises(exceptions.NotEnoughGPUs, self.claim, A)

    def test_it_is_offered_again_by_a_restart(self) -> None:
        self.claim(A)
        self.fail(A, VIABLE.format(FIRST))
        self.gpus.release(A)
        self.start()
        self.assertUsage(total=3, free=3)

    def test_what_cannot_be_remembered_is_logged(self) -> None:
        self.claim(A)
        self.records.folder.write_text('no folder')
        self.fail(A, VIABLE.format(FIRST))
        self.assertIn(f'Of GPU {FIRST} (10de:2231) this cannot be '
                      f'remembered', self.log.output)


class ReasonsTest(TestCase):
    """What is recorded, and what a person reads."""

    def test_own_verdict_of_the_card_comes_first(self) -> None:
        self.record(FIRST, withheld='a fan is loud')
        self.sysfs.set_dead(FIRST)
        self.gpus.refresh()
        self.assertIn('does not answer', self.reason(FIRST))

    def test_every_reason_says_how_to_give_the_card_back(self) -> None:
        address = pci.PCIAddress.parse(SECOND)
        for changes in ({'withheld': 'x'}, {'failed_release': 'x'},
                        {'kept_back': True}, {'failed_start': 'x'}):
            self.record(SECOND, **changes)
            self.assertIn(f'nova-gpu-passthru offer {SECOND}',
                          self.reason(SECOND))
            self.records.forget(address)
        self.assertEqual({}, self.records.read())

    def test_record_of_nothing_withholds_nothing(self) -> None:
        self.assertTrue(records.Record('10de:2330').empty)
        self.record(SECOND, retry=True)
        self.assertEqual('', self.reason(SECOND))
