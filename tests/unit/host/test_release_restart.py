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


"""What is recorded for releases, and what a restart makes of it."""

import fixtures

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import terms as host_terms
from tests.unit.host import gpus_base
from tests.unit.host import release_base

A, B, ONE = gpus_base.A, gpus_base.B, gpus_base.ONE
FIRST, SECOND = gpus_base.FIRST, gpus_base.SECOND
AUDIO = '0000:65:00.1'
ADDRESS = pci.PCIAddress.parse(FIRST)


class RestartTest(release_base.TestCase):
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
        self.terms = host_terms.Terms()
        self.restart()
        self.give(A)
        self.assertEqual({}, self.records.read())
        self.terms = host_terms.Terms(self.hook(f'echo >{self.folder}/runs'))
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

    def test_card_that_was_excluded_meanwhile_is_released_too(self) -> None:
        self.start_with()
        self.start(terms=self.terms, exclude=[FIRST])
        self.gpus.restore([])
        self.take_back(A)
        self.finish_releases()
        self.assertEqual(1, len(self.runs()))
        self.assertEqual({}, self.records.read())

    def test_hook_that_is_gone_keeps_no_card(self) -> None:
        self.start_with()
        self.terms = host_terms.Terms()
        self.restart()
        self.take_back(A)
        self.finish_releases()
        self.assertEqual([], self.runs())
        self.assertUsage(total=3, free=3)


class RecordingTest(release_base.TestCase):
    """No card is given before it is sure that it will be released."""

    @staticmethod
    def full(descriptor: int) -> None:
        raise OSError(28, 'No space left on device')

    def test_it_is_recorded_before_the_card_is_given(self) -> None:
        self.terms = host_terms.Terms('/bin/true')
        self.restart()
        self.claim(A)
        self.assertEqual({ADDRESS: A}, {
            address: record.given_to
            for address, record in self.records.read().items()})

    def test_card_is_not_given_while_that_cannot_be_recorded(self) -> None:
        self.terms = host_terms.Terms('/bin/true')
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
        self.terms = host_terms.Terms()
        self.restart()
        self.give(A)
        self.take_back(A)
        self.assertUsage(total=3, free=3)
        self.assertFalse(self.records.folder.exists())
