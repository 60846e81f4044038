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

"""Cards that fall sick while a guest holds them, or on their way back."""

from nova_gpu_passthru.guest import domain
from tests.unit import fakes
from tests.unit.host import gpus_base
from tests.unit.host import health_base

A, B, HOST, ONE = gpus_base.A, gpus_base.B, gpus_base.HOST, gpus_base.ONE
FIRST, SECOND, THIRD = gpus_base.FIRST, gpus_base.SECOND, gpus_base.THIRD
AUDIO = '0000:65:00.1'

# As the driver defines a guest.
RECORDED = fakes.domain_xml(A, FIRST, AUDIO, metadata=(
    f"<gpus:cards xmlns:gpus='{domain.NAMESPACE}'>"
    f"<gpus:card address='{FIRST}' model='10de:2231'/></gpus:cards>"))


class HeldTest(health_base.TestCase):
    """It falls sick while a guest has it."""

    def setUp(self) -> None:
        super().setUp()
        self.give(A, FIRST, AUDIO)

    def test_dead_card_counts_for_its_guest_and_then_for_nobody(
            self) -> None:
        self.sysfs.set_dead(FIRST)
        self.gpus.refresh()
        self.assertUsage(total=3, free=2)
        self.assertIn('does not answer', self.reason(FIRST))
        self.take_back(A)
        self.assertUsage(total=2, free=2)
        self.assertEqual({'10de:2330': 2}, self.by_model())

    def test_card_that_is_gone_stays_in_the_books(self) -> None:
        self.sysfs.remove(AUDIO)
        self.sysfs.remove(FIRST)
        for _ in range(3):
            self.gpus.refresh()
            self.assertUsage(total=3, free=2)
            self.assertIn(f'{FIRST} is gone from the bus',
                          self.reason(FIRST))
        self.take_back(A)
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertNotIn(FIRST, [str(c.address) for c in self.gpus.cards])

    def test_card_that_comes_back_is_its_holders_and_nobody_elses(
            self) -> None:
        self.sysfs.remove(AUDIO)
        self.sysfs.remove(FIRST)
        self.gpus.refresh()
        # The guest has lost it, but is defined with it.
        self.hypervisor.running[A] = fakes.domain_xml(A)
        self.return_first()
        self.gpus.refresh()
        self.assertEqual(fakes.STUB, self.hypervisor.driver(FIRST))
        self.assertEqual(fakes.STUB, self.hypervisor.driver(AUDIO))
        self.assertUsage(total=3, free=2)
        self.assertEqual([SECOND], self.claim(B))
        self.assertEqual([FIRST], self.claim(A))

    def test_card_that_comes_back_is_offered_once_its_guest_is_gone(
            self) -> None:
        self.sysfs.remove(AUDIO)
        self.sysfs.remove(FIRST)
        self.gpus.refresh()
        self.take_back(A)
        self.return_first()
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)
        self.assertEqual([FIRST], self.claim(B))

    def test_card_that_went_before_the_start_is_in_the_books(self) -> None:
        self.hypervisor.running[A] = self.hypervisor.defined[A] = RECORDED
        self.sysfs.remove(AUDIO)
        self.sysfs.remove(FIRST)
        self.start()
        self.assertUsage(total=3, free=2)
        self.assertIn('is gone from the bus', self.reason(FIRST))
        self.assertEqual({'10de:2231': 0, '10de:2330': 2}, self.by_model())
        card, = (c for c in self.gpus.cards if str(c.address) == FIRST)
        self.assertEqual([AUDIO], [str(f.address) for f in card.companions])

    def test_instance_whose_card_is_gone_gets_another_at_the_start(
            self) -> None:
        self.hypervisor.defined[A] = RECORDED
        self.hypervisor.running.clear()
        self.sysfs.remove(AUDIO)
        self.sysfs.remove(FIRST)
        self.start()
        self.gpus.restore([(A, ONE)])
        self.assertUsage(total=3, free=1)
        self.assertEqual([SECOND], self.claim(A))

    def test_card_that_cannot_be_read_any_more_stays_in_the_books(
            self) -> None:
        (self.sysfs.path(FIRST) / 'class').write_text('')
        self.gpus.refresh()
        self.assertIn('cannot be read', self.reason(FIRST))
        self.assertUsage(total=3, free=2)

    def return_first(self) -> None:
        self.sysfs.add(f"""
            {FIRST} 030000 10de:2231 driver=nvidia group=1
            {AUDIO} 040300 10de:1aef driver=snd_hda_intel group=1""")


class ReturnedTest(health_base.TestCase):
    """It is sick when its guest gives it back."""

    # https://github.com/amd/MxGPU-Virtualization/issues/25
    def test_it_is_read_back_before_it_counts_as_free(self) -> None:
        self.give(A, FIRST, AUDIO)
        self.sysfs.set_dead(FIRST)
        self.take_back(A)
        # Without waiting for the next periodic look.
        self.assertUsage(total=2, free=2)
        self.assertIn('free now: 2', self.log.output)

    def test_it_is_offered_again_when_it_answers_again(self) -> None:
        self.give(A, FIRST, AUDIO)
        self.sysfs.set_dead(FIRST)
        self.take_back(A)
        self.sysfs.set_dead(FIRST, dead=False)
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)
