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

"""Who gets which card, and when it is free again."""

import threading
import time
from typing import Any

import fixtures

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import picking
from tests.unit import fakes
from tests.unit.host import claims_base

A, B, C = claims_base.A, claims_base.B, claims_base.C
FIRST, SECOND, THIRD = (claims_base.FIRST, claims_base.SECOND,
                        claims_base.THIRD)

# The first two can only go to one guest.
SHARED = """
0000:31:00.0 030000 10de:2231 driver=vfio-pci group=1
0000:4b:00.0 030000 10de:2231 driver=vfio-pci group=1
0000:b1:00.0 030000 10de:2231 driver=vfio-pci group=3
"""


class ClaimTest(claims_base.TestCase):
    def test_guest_gets_exactly_what_it_asks_for(self) -> None:
        self.assertEqual([FIRST, SECOND], self.claim(A, 2))
        self.assertEqual([THIRD], self.free())

    def test_next_guest_gets_another_card(self) -> None:
        self.assertEqual([FIRST], self.claim(A))
        self.assertEqual([SECOND], self.claim(B))
        self.assertEqual([THIRD], self.claim(C))
        self.assertRefused('by-hand')

    def test_guest_gets_its_model(self) -> None:
        self.assertEqual([SECOND], self.claim(A, model='10de:2330'))
        self.assertEqual([FIRST, THIRD], self.claim(B, 2, '10de:2231'))

    # https://bugs.launchpad.net/nova/+bug/1986838
    def test_shortage_is_an_error_and_never_fewer_cards(self) -> None:
        self.claim(A)
        text = self.assertRefused(B, 3)
        for words in (B, '3 GPUs', '2 are free'):
            self.assertIn(words, text)
        self.assertEqual([SECOND, THIRD], self.free())

    def test_shortage_of_a_model_names_it(self) -> None:
        self.assertIn('2 GPUs of model 10de:2330',
                      self.assertRefused(A, 2, '10de:2330'))

    def test_claiming_again_gives_the_same_cards(self) -> None:
        self.assertEqual(self.claim(B, 2), self.claim(B, 2))
        self.assertEqual([THIRD], self.free())

    # Each create claims three times, and a host may have many domains.
    def test_claiming_again_asks_libvirt_nothing(self) -> None:
        self.assertEqual([FIRST], self.claim(A))
        asked = []
        domains = self.hypervisor.domains

        def ask() -> Any:
            asked.append(1)
            return domains()

        self.useFixture(fixtures.MockPatchObject(
            self.hypervisor, 'domains', ask))
        self.assertEqual([FIRST], self.claim(A))
        self.assertEqual([], asked)
        self.assertEqual([FIRST, SECOND], self.claim(A, 2))
        self.assertEqual([1], asked)

    def test_domain_that_changes_is_read_again(self) -> None:
        self.hypervisor.define('by-hand', FIRST)
        self.assertEqual([SECOND], self.claim(A))
        self.hypervisor.define('by-hand', THIRD)
        self.assertEqual([FIRST], self.claim(B))

    # https://bugs.launchpad.net/nova/+bug/1983753: the new flavor decides
    def test_larger_flavor_adds_to_what_the_guest_has(self) -> None:
        self.claim(A)
        self.claim(B)
        self.assertEqual([FIRST, THIRD], self.claim(A, 2))

    def test_smaller_flavor_gives_the_rest_back(self) -> None:
        self.claim(A, 3)
        self.assertEqual([FIRST], self.claim(A, 1))
        self.assertEqual([SECOND, THIRD], self.free())

    def test_card_that_is_not_detached_is_not_given(self) -> None:
        self.host.set_driver(FIRST, 'nvidia')
        self.host.set_driver('0000:b1:00.1', 'snd_hda_intel')
        self.find()
        self.assertEqual([SECOND], self.claim(A))
        self.assertRefused(B)

    def test_withheld_card_is_not_given(self) -> None:
        self.find(exclude=[FIRST, THIRD])
        self.assertEqual([SECOND], self.claim(A))
        self.assertRefused(B)

    def test_threads_that_race_for_the_last_card(self) -> None:
        self.claim(A, 2)
        uuids = [f'{number:08x}-0000-4000-8000-000000000000'
                 for number in range(16)]
        start = threading.Barrier(len(uuids))
        won, lost = [], []
        choose = picking.choose

        def slowly_choose(*args: Any) -> Any:
            choice = choose(*args)
            time.sleep(0.01)
            return choice

        # As long as it takes for all to have made up their minds.
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.picking.choose', slowly_choose))

        def race(uuid: str) -> None:
            start.wait()
            try:
                self.claim(uuid)
            except exceptions.NotEnoughGPUs:
                lost.append(uuid)
            else:
                won.append(uuid)

        threads = [threading.Thread(target=race, args=(uuid,))
                   for uuid in uuids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((1, 15), (len(won), len(lost)))
        self.assertEqual((won[0],), self.holders()[THIRD])


class StrandedTest(claims_base.TestCase):
    HOST = SHARED

    def test_card_beside_a_held_one_is_not_free(self) -> None:
        self.hypervisor.start(A, FIRST)
        self.restart()
        self.assertEqual([THIRD], self.free())
        self.assertEqual([THIRD], self.claim(B))
        self.assertRefused(C)

    def test_it_is_the_first_in_line_for_the_same_guest(self) -> None:
        self.hypervisor.start(A, SECOND)
        self.restart()
        self.assertEqual([FIRST, SECOND], self.claim(A, 2))

    def test_card_that_strands_none_is_given_first(self) -> None:
        self.assertEqual([THIRD], self.claim(A))
        self.assertEqual([FIRST, SECOND], self.claim(B, 2))

    def test_it_is_free_again_when_the_other_is(self) -> None:
        self.claim(A, 2)
        self.assertTrue(self.claims.release(A))
        self.assertEqual([FIRST, SECOND, THIRD], self.free())


class ReleaseTest(claims_base.TestCase):
    def test_claim_without_a_domain_ends(self) -> None:
        self.claim(A)
        self.assertTrue(self.claims.release(A))
        self.assertEqual([FIRST, SECOND, THIRD], self.free())
        self.assertEqual(frozenset(), self.claims.held_by(A))

    def test_guest_without_cards_has_nothing_to_release(self) -> None:
        self.assertFalse(self.claims.release(A))

    # https://git.proxmox.com (qemu-server 95f1de68): destroying takes its
    # time, and the domain is there until it is done.
    def test_release_while_the_domain_exists_frees_nothing(self) -> None:
        self.claim(A)
        self.hypervisor.start(A, FIRST)
        self.assertFalse(self.claims.release(A))
        self.assertEqual([SECOND, THIRD], self.free())
        self.hypervisor.undefine(A)
        self.assertTrue(self.claims.release(A))
        self.assertEqual([FIRST, SECOND, THIRD], self.free())

    def test_release_while_the_domains_cannot_be_read_frees_nothing(
            self) -> None:
        self.claim(A)
        self.hypervisor.start(A, FIRST)
        self.hypervisor.failure = fakes.libvirt_error('no connection')
        self.assertFalse(self.claims.release(A))
        self.assertEqual([SECOND, THIRD], self.free())

    def test_what_was_released_unseen_is_free_when_no_domain_has_it(
            self) -> None:
        self.claim(A)
        self.hypervisor.failure = fakes.libvirt_error('no connection')
        self.claims.release(A)
        self.hypervisor.failure = None
        self.claims.read_domains()
        self.claims.read_domains()
        self.assertEqual([FIRST, SECOND, THIRD], self.free())

    def test_within_kept_nothing_is_released(self) -> None:
        # As a hard reboot does: destroy, undefine, define anew.
        self.hypervisor.start(A, SECOND)
        self.restart()
        with self.claims.kept(A):
            self.hypervisor.undefine(A)
            self.claims.read_domains()
            self.claims.read_domains()
            self.assertFalse(self.claims.release(A))
            self.assertEqual([FIRST], self.claim(B))
            self.assertEqual([SECOND], self.claim(A))

    def test_kept_may_be_nested(self) -> None:
        self.claim(A)
        with self.claims.kept(A):
            with self.claims.kept(A):
                pass
            self.assertFalse(self.claims.release(A))
        self.assertTrue(self.claims.release(A))

    def test_kept_ends_also_with_an_error(self) -> None:
        self.claim(A)
        try:
            with self.claims.kept(A):
                raise ValueError()
        except ValueError:
            self.assertTrue(self.claims.release(A))

    def test_kept_of_one_guest_does_not_keep_anothers(self) -> None:
        self.claim(A)
        self.claim(B)
        with self.claims.kept(A):
            self.assertTrue(self.claims.release(B))

    # https://bugs.launchpad.net/nova/+bug/2115905
    def test_releasing_one_guest_of_several_touches_no_other(self) -> None:
        self.claim(A)
        self.claim(B)
        self.claims.release(A)
        self.assertEqual({SECOND: (B,)}, self.holders())
