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

import threading
from typing import Any

import fixtures

from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import terms as host_terms
from tests.unit import fakes
from tests.unit.host import gpus_base
from tests.unit.host import release_base

A, B = gpus_base.A, gpus_base.B
FIRST, SECOND, THIRD = gpus_base.FIRST, gpus_base.SECOND, gpus_base.THIRD
AUDIO = '0000:65:00.1'
ADDRESS = pci.PCIAddress.parse(FIRST)


class HookTest(release_base.TestCase):
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

    def test_it_does_not_run_if_another_domain_names_the_card_by_now(
            self) -> None:
        self.start_with()
        self.hypervisor.start('by-hand', FIRST)
        self.take_back(A)
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
        # Without waiting for the next periodic look.
        self.assertUsage(total=2, free=2)
        self.gpus.refresh()
        self.assertIn('does not answer', self.reason(FIRST))
        self.assertUsage(total=2, free=2)
        self.sysfs.set_dead(FIRST, dead=False)
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)

    def test_card_that_is_gone_afterwards_is_offered_when_it_comes_back(
            self) -> None:
        self.start_with('while [ ! -e go -a -e "$0" ]; do sleep .02; done')
        self.take_back(A)
        for address in (FIRST, AUDIO):
            self.sysfs.remove(address)
        (self.folder / 'go').touch()
        self.finish_releases()
        self.assertUsage(total=2, free=2)
        self.sysfs.add(f"""
            {FIRST} 030000 10de:2231 driver=nvidia group=1
            {AUDIO} 040300 10de:1aef driver=snd_hda_intel group=1""")
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


class HoldTest(release_base.TestCase):
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
        self.terms = host_terms.Terms(hold=True)
        self.restart()
        self.give(A)
        self.take_back(A)
        self.finish_releases()
        self.assertUsage(total=2, free=2)
        self.assertIn('hold_after_release', self.reason(FIRST))


class ThreadTest(release_base.TestCase):
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


class RaceTest(release_base.TestCase):
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
        looks: list[Any] = []

        def look_and_lose(*args: Any, **kwargs: Any) -> Any:
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
