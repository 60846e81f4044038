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


"""What happens to a card between two guests."""

import pathlib
import threading

import fixtures

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import release
from tests.unit import fakes
from tests.unit.host import gpus_base

A, B, HOST, ONE = gpus_base.A, gpus_base.B, gpus_base.HOST, gpus_base.ONE
FIRST, SECOND, THIRD = gpus_base.FIRST, gpus_base.SECOND, gpus_base.THIRD
AUDIO = '0000:65:00.1'
ADDRESS = pci.PCIAddress.parse(FIRST)


class TestCase(gpus_base.TestCase):
    """Guest A has the first card."""

    HOLD = False

    def setUp(self) -> None:
        super().setUp()
        self.host(HOST)
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.addCleanup(self.finish_releases)
        self.addCleanup((self.folder / 'go').touch)

    def start_with(self, script: str = '', timeout: float = 60) -> None:
        """Starts nova-compute with a hook, and a guest."""
        self.terms = release.Terms(
            self.hook(f'cd {self.folder}\necho "$@" >>runs\n{script}'),
            timeout, self.HOLD)
        self.restart()
        self.give(A)

    def restart(self) -> None:
        self.start(terms=self.terms)
        self.gpus.restore([])

    def give(self, uuid: str) -> None:
        self.assertEqual([FIRST], self.claim(uuid))
        self.hypervisor.start(uuid, FIRST, AUDIO)
        self.gpus.refresh()

    def take_back(self, uuid: str) -> None:
        self.hypervisor.undefine(uuid)
        self.gpus.release(uuid)

    def come_and_go(self, uuid: str, *addresses: str) -> None:
        """Somebody makes a domain and takes it away, with two reports."""
        self.hypervisor.start(uuid, *addresses)
        self.gpus.refresh()
        self.hypervisor.undefine(uuid)
        for _ in range(2):
            self.gpus.refresh()
        self.finish_releases()

    def runs(self) -> list[str]:
        """The arguments of each run of the hook."""
        file = self.folder / 'runs'
        return file.read_text().splitlines() if file.exists() else []


class HookTest(TestCase):
    def test_card_is_free_once_its_hook_is_done(self) -> None:
        self.start_with('touch started; while [ ! -e go -a -e "$0" ]; '
                        'do sleep .02; '
                        'done')
        self.take_back(A)
        self.wait_for(self.folder / 'started')
        # In the pool, so that its inventory does not come and go.
        self.assertUsage(total=3, free=2)
        self.assertIn(f'given to {A} and has to be released',
                      self.reason(FIRST))
        self.gpus.refresh()
        self.assertUsage(total=3, free=2)
        self.assertEqual([SECOND], self.claim(B))
        (self.folder / 'go').touch()
        self.finish_releases()
        self.assertUsage(total=3, free=2)
        self.assertEqual([f'{FIRST} {AUDIO}'], self.runs())
        self.assertNotIn(ADDRESS, self.records.read())
        self.assertIn(f'GPU {FIRST} (10de:2231) is released after {A}',
                      self.log.output)

    def test_card_is_blocked_in_its_pool_meanwhile(self) -> None:
        self.start_with('while [ ! -e go -a -e "$0" ]; do sleep .02; done')
        self.take_back(A)
        pool, = (pool for pool in self.gpus.usage().pools
                 if pool.model == '10de:2231')
        self.assertEqual((1, 1, {}), (pool.total, pool.blocked, pool.held))

    def test_it_does_not_run_while_a_domain_names_the_card(self) -> None:
        self.start_with()
        self.gpus.release(A)
        self.finish_releases()
        self.assertEqual([], self.runs())
        self.assertUsage(total=3, free=2)

    def test_it_does_not_run_while_libvirt_does_not_tell(self) -> None:
        self.start_with()
        self.hypervisor.undefine(A)
        self.hypervisor.failure = fakes.libvirt_error('no connection')
        self.gpus.release(A)
        self.gpus.refresh()
        self.finish_releases()
        self.assertEqual([], self.runs())
        self.hypervisor.failure = None
        for _ in range(2):
            self.gpus.refresh()
        self.finish_releases()
        self.assertEqual(1, len(self.runs()))
        self.assertUsage(total=3, free=3)

    def test_it_does_not_run_between_two_domains_of_one_instance(
            self) -> None:
        self.start_with()
        with self.gpus.kept(A):
            self.hypervisor.undefine(A)
            self.gpus.release(A)
            self.gpus.refresh()
            self.give(A)
        self.finish_releases()
        self.assertEqual([], self.runs())

    def test_failure_withholds_the_card_and_says_what_it_printed(
            self) -> None:
        self.start_with('echo row remapping failed; exit 1')
        self.take_back(A)
        self.finish_releases()
        self.assertUsage(total=2, free=2)
        self.assertIn('ended with status 1 and printed: row remapping failed',
                      self.reason(FIRST))
        self.assertIn(f'nova-gpu-passthru offer {FIRST}', self.reason(FIRST))
        self.assertIn(f'GPU {FIRST} (10de:2231) is withheld, for its release',
                      self.log.output)
        self.gpus.refresh()
        self.restart()
        self.finish_releases()
        self.assertEqual(1, len(self.runs()))
        self.assertUsage(total=2, free=2)

    def test_time_out_withholds_the_card(self) -> None:
        self.start_with('echo waiting; sleep 1000', timeout=1)
        self.take_back(A)
        self.finish_releases()
        self.assertIn('did not end within 1 s and printed: waiting',
                      self.reason(FIRST))

    def test_others_are_given_while_it_runs(self) -> None:
        self.start_with('while [ ! -e go -a -e "$0" ]; do sleep .02; done')
        self.take_back(A)
        self.assertEqual([SECOND, THIRD],
                         self.claim(B, flavor.GPURequest(2)))

    def test_card_that_it_left_on_another_driver_is_detached_again(
            self) -> None:
        self.start_with('while [ ! -e go -a -e "$0" ]; do sleep .02; done')
        self.take_back(A)
        self.sysfs.set_driver(FIRST, 'nvidia')
        # It is the hook's: no look takes it from there.
        self.gpus.refresh()
        self.assertEqual('nvidia', self.hypervisor.driver(FIRST))
        (self.folder / 'go').touch()
        self.finish_releases()
        self.gpus.refresh()
        self.assertEqual(fakes.STUB, self.hypervisor.driver(FIRST))
        self.assertUsage(total=3, free=3)

    def test_card_that_cannot_be_detached_again_is_withheld(self) -> None:
        self.start_with('while [ ! -e go -a -e "$0" ]; do sleep .02; done')
        self.take_back(A)
        self.sysfs.set_driver(FIRST, 'nvidia')
        self.hypervisor.refused.add(FIRST)
        (self.folder / 'go').touch()
        self.finish_releases()
        self.assertIn('failed to unbind', self.reason(FIRST))

    def test_card_that_is_dead_afterwards_is_offered_when_it_answers(
            self) -> None:
        self.start_with('while [ ! -e go -a -e "$0" ]; do sleep .02; done')
        self.take_back(A)
        self.sysfs.set_dead(FIRST)
        (self.folder / 'go').touch()
        self.finish_releases()
        self.gpus.refresh()
        self.assertIn('does not answer', self.reason(FIRST))
        self.assertUsage(total=2, free=2)
        self.sysfs.set_dead(FIRST, dead=False)
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)

    def test_card_that_is_dead_before_waits_for_its_release(self) -> None:
        self.start_with()
        self.sysfs.set_dead(FIRST)
        self.take_back(A)
        self.gpus.refresh()
        self.assertEqual([], self.runs())
        self.sysfs.set_dead(FIRST, dead=False)
        self.gpus.refresh()
        self.finish_releases()
        self.assertEqual(1, len(self.runs()))
        self.assertUsage(total=3, free=3)

    def test_card_of_a_domain_made_by_hand_is_released_too(self) -> None:
        self.start_with()
        self.come_and_go('by-hand', SECOND)
        self.assertEqual([SECOND], self.runs())

    def test_what_a_smaller_flavor_gives_up_is_released(self) -> None:
        self.start_with()
        self.claim(B, flavor.GPURequest(2))
        self.claim(B)
        self.gpus.refresh()
        self.finish_releases()
        self.assertEqual([THIRD], self.runs())
        self.assertUsage(total=3, free=1)

    def test_what_was_never_given_needs_no_release(self) -> None:
        self.start_with()
        for _ in range(2):
            self.gpus.refresh()
        self.finish_releases()
        self.assertEqual([], self.runs())


class GroupTest(TestCase):
    """The first two cards share an IOMMU group."""

    def setUp(self) -> None:
        super().setUp()
        self.host(HOST.replace('group=2', 'group=1'))
        self.terms = release.Terms(self.hook(
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


class RunningGroupTest(TestCase):
    """A guest gives up one of two cards of an IOMMU group, and runs on.

    A host driver that takes a device of a group that vfio has open is refused
    since Linux 5.19, and before that the kernel stopped.
    """

    def setUp(self) -> None:
        super().setUp()
        self.host(HOST.replace('group=3', 'group=2'))
        self.terms = release.Terms(self.hook(
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


class RestartTest(TestCase):
    def test_release_that_was_interrupted_starts_again(self) -> None:
        self.start_with('echo $$ >>started; while [ ! -e go -a -e "$0" ]; '
                        'do sleep .02; '
                        'done')
        self.take_back(A)
        self.wait_for(self.folder / 'started')
        # A new service, while the old one's hook runs on.
        self.restart()
        self.assertUsage(total=3, free=2)
        self.assertNotEqual([FIRST], self.claim(B))
        (self.folder / 'go').touch()
        self.finish_releases()
        self.assertUsage(total=3, free=2)
        self.assertNotIn(ADDRESS, self.records.read())

    def test_card_whose_guest_went_while_the_service_was_down_is_released(
            self) -> None:
        self.start_with()
        self.hypervisor.undefine(A)
        self.restart()
        self.finish_releases()
        self.assertEqual(1, len(self.runs()))
        self.assertUsage(total=3, free=3)

    def test_instance_of_this_host_has_its_card_again_without(self) -> None:
        self.start_with()
        self.hypervisor.undefine(A)
        self.start(terms=self.terms)
        self.assertUsage(total=3, free=2)
        self.gpus.restore([(A, ONE)])
        self.assertEqual([FIRST], self.claim(A))
        self.gpus.refresh()
        self.finish_releases()
        self.assertEqual([], self.runs())

    def test_hook_that_is_new_runs_for_guests_that_are_old(self) -> None:
        self.terms = release.Terms()
        self.restart()
        self.give(A)
        self.assertEqual({}, self.records.read())
        self.terms = release.Terms(self.hook(f'echo >{self.folder}/runs'))
        self.restart()
        self.gpus.refresh()
        self.take_back(A)
        self.finish_releases()
        self.assertEqual(1, len(self.runs()))

    # A card was replaced by one of another model.
    def test_and_where_a_record_of_another_card_is_left(self) -> None:
        self.start_with()
        self.claim(B)
        self.sysfs.remove(SECOND)
        self.sysfs.add(f'{SECOND} 030200 10de:2331 driver=nvidia group=2')
        self.restart()
        self.come_and_go('by-hand', SECOND)
        self.assertEqual([SECOND], self.runs())

    def test_hook_that_is_gone_keeps_no_card(self) -> None:
        self.start_with()
        self.terms = release.Terms()
        self.restart()
        self.take_back(A)
        self.finish_releases()
        self.assertEqual([], self.runs())
        self.assertUsage(total=3, free=3)


class HoldTest(TestCase):
    HOLD = True

    def test_card_is_kept_back_after_its_hook(self) -> None:
        self.start_with()
        self.assertUsage(total=3, free=2)
        self.take_back(A)
        self.finish_releases()
        self.assertEqual(1, len(self.runs()))
        for _ in range(2):
            self.assertUsage(total=2, free=2)
            self.assertIn('hold_after_release', self.reason(FIRST))
            self.restart()

    def test_card_is_kept_back_without_a_hook(self) -> None:
        self.terms = release.Terms(hold=True)
        self.restart()
        self.give(A)
        self.take_back(A)
        self.finish_releases()
        self.assertUsage(total=2, free=2)
        self.assertIn('hold_after_release', self.reason(FIRST))


class RecordingTest(TestCase):
    """No card is given before it is sure that it will be released."""

    @staticmethod
    def full(descriptor: int) -> None:
        raise OSError(28, 'No space left on device')

    def test_it_is_recorded_before_the_card_is_given(self) -> None:
        self.terms = release.Terms('/bin/true')
        self.restart()
        self.claim(A)
        self.assertEqual({ADDRESS: A}, {
            address: record.given_to
            for address, record in self.records.read().items()})

    def test_card_is_not_given_while_that_cannot_be_recorded(self) -> None:
        self.terms = release.Terms('/bin/true')
        self.restart()
        with fixtures.MonkeyPatch('os.fsync', self.full):
            error = self.assertRaises(exceptions.NotEnoughGPUs, self.claim, A)
        self.assertIn(f'Instance {A} is not given any GPU', str(error))
        self.assertIn('No space left', str(error))
        self.assertUsage(total=3, free=3)

    def test_instance_keeps_what_it_has_and_no_more_of_it(self) -> None:
        self.start_with()
        with fixtures.MonkeyPatch('os.fsync', self.full):
            self.assertRaises(exceptions.NotEnoughGPUs, self.claim, A,
                              flavor.GPURequest(3))
        self.assertEqual(
            {pci.PCIAddress.parse(a) for a in (FIRST, AUDIO)},
            self.gpus.held_by(A))
        self.assertUsage(total=3, free=2)

    def test_what_cannot_be_read_of_a_card_is_not_written_over(
            self) -> None:
        self.start_with()
        file = self.records.folder / f'{FIRST}.json'
        file.write_text('{"withheld": "a fan is lo')
        self.gpus.refresh()
        with self.gpus.kept(A):
            self.assertEqual([FIRST], self.claim(A))
        self.take_back(A)
        self.finish_releases()
        self.assertIn('cannot be read', self.reason(FIRST))
        self.assertUsage(total=2, free=2)

    def test_nothing_that_is_free_is_given_while_the_records_are_unreadable(
            self) -> None:
        self.start_with()
        self.records.folder.rename(f'{self.records.folder}.away')
        self.records.folder.write_text('no folder')
        self.gpus.refresh()
        self.assertUsage(total=1, free=0)
        self.assertIn(str(self.records.folder), self.reason(SECOND))
        self.assertRaises(exceptions.NotEnoughGPUs, self.claim, B)
        self.assertEqual([FIRST], self.claim(A))

    def test_without_terms_nothing_is_recorded(self) -> None:
        self.terms = release.Terms()
        self.restart()
        self.give(A)
        self.take_back(A)
        self.assertUsage(total=3, free=3)
        self.assertFalse(self.records.folder.exists())


class ThreadTest(TestCase):
    """The host has no thread left for a release."""

    def test_release_is_tried_again(self) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        self.start_with()
        with fixtures.MonkeyPatch('threading.Thread.start', refuse):
            self.take_back(A)
        self.assertUsage(total=3, free=2)
        self.assertIn("can't start new thread", self.log.output)
        self.gpus.refresh()
        self.finish_releases()
        self.assertEqual(1, len(self.runs()))
        self.assertUsage(total=3, free=3)


class RaceTest(TestCase):
    """A release starts while its card is claimed again."""

    def test_instance_does_not_get_its_card_while_the_hook_runs(
            self) -> None:
        self.start_with('while [ ! -e go -a -e "$0" ]; do sleep .02; done')
        self.take_back(A)
        self.assertEqual([SECOND], self.claim(A))
        (self.folder / 'go').touch()
        self.finish_releases()
        self.assertEqual(1, len(self.runs()))

    def test_card_that_changed_hands_since_the_look_is_not_given(
            self) -> None:
        self.start_with('while [ ! -e go -a -e "$0" ]; do sleep .02; done')
        stale = self.gpus._standing.cards_for
        looks = []

        def look_and_lose(*args: object, **kwargs: object) -> object:
            cards = stale(*args, **kwargs)
            if not looks:
                # What B has seen is old when it claims.
                cards = tuple(card.withheld('') for card in cards)
                self.take_back(A)
            looks.append(cards)
            return cards

        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.standing.Standing.cards_for',
            lambda standing, *args, **kwargs: look_and_lose(*args, **kwargs)))
        self.assertEqual([SECOND], self.claim(B))
        self.assertEqual(2, len(looks))
        self.assertIn(f'{FIRST} (10de:2231) is not given to instance {B}',
                      self.log.output)
