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


import json
import os
import pathlib
import subprocess
import sys
import threading

import ddt
import fixtures

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import records
from tests.unit import base

HOST = """
0000:66:00.0 030200 10de:2330 driver=vfio-pci group=2
0000:67:00.0 030200 10de:2331 driver=vfio-pci group=3
"""
FIRST = pci.PCIAddress.parse('0000:66:00.0')


class TestCase(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.first, self.second = self.cards(HOST)
        self.folder = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'gpu_passthru')
        self.records = records.Records(self.folder)
        self.file = self.folder / '0000:66:00.0.json'

    def withhold(self, card: host_cards.Card, reason: str) -> None:
        self.records.change(card, lambda record: record.but(withheld=reason))


@ddt.ddt
class RecordsTest(TestCase):
    def test_what_is_written_is_read_by_the_next_process(self) -> None:
        record = records.Record('10de:2330', 'a fan is loud', 'uuid', 'died',
                                True, 'no reset', True)
        self.assertEqual(record, self.records.change(
            self.first, lambda old: record))
        self.assertEqual({FIRST: record},
                         records.Records(self.folder).read())

    def test_nothing_is_made_before_there_is_something(self) -> None:
        self.assertEqual({}, self.records.read())
        self.assertFalse(self.folder.exists())

    def test_record_that_says_nothing_is_no_file(self) -> None:
        self.withhold(self.first, 'x')
        self.withhold(self.first, '')
        self.assertEqual({}, self.records.read())
        self.assertEqual(['lock'], os.listdir(self.folder))

    def test_files_may_be_read_by_the_group_and_nobody_else(self) -> None:
        self.withhold(self.first, 'x')
        self.assertEqual(0o640, self.file.stat().st_mode & 0o777)
        self.assertEqual(0o750, self.folder.stat().st_mode & 0o777)

    def test_files_belong_to_the_owner_of_the_folder(self) -> None:
        # An operator's root must not lock nova-compute's user out.
        self.withhold(self.second, 'x')
        owner = 12345 if os.geteuid() == 0 else os.geteuid()
        for path in (self.folder, *self.folder.iterdir()):
            os.chown(path, owner, -1)
        (self.folder / 'lock').unlink()
        self.withhold(self.first, 'x')
        self.assertEqual({owner}, {path.stat().st_uid
                                   for path in self.folder.iterdir()})

    def test_file_is_replaced_as_a_whole(self) -> None:
        self.withhold(self.first, 'x')
        with self.file.open() as before:
            self.withhold(self.first, 'y')
            self.assertEqual('x', json.load(before)['withheld'])
        self.assertEqual('y', self.records.read()[FIRST].withheld)

    def test_record_of_another_model_is_overwritten(self) -> None:
        self.withhold(self.first, 'x')
        other, = self.cards(HOST.splitlines()[1].replace('2330', '2684'))
        self.assertFalse(self.records.read()[FIRST].of(other))
        self.records.change(other, lambda record: record.but(kept_back=True))
        self.assertEqual(records.Record('10de:2684', kept_back=True),
                         self.records.read()[FIRST])

    def test_changes_by_many_at_once_are_all_kept(self) -> None:
        def work(name: str) -> None:
            for _ in range(10):
                self.records.change(self.first, lambda record: record.but(
                    withheld=f'{record.withheld}{name}'))

        threads = [threading.Thread(target=work, args=(name,))
                   for name in 'abcd']
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted('abcd' * 10),
                         sorted(self.records.read()[FIRST].withheld))

    def test_changes_by_another_process_are_kept(self) -> None:
        # The command, say, while nova-compute is at work.
        other = subprocess.Popen([sys.executable, '-c', f"""
from nova_gpu_passthru.host import cards, pci, records
function = pci.PCIFunction(pci.PCIAddress.parse('{FIRST}'), 0x030200, 0x10de,
                           0x2330, None, None, None, ())
for _ in range(30):
    records.Records({str(self.folder)!r}).change(
        cards.Card(function.address, (function,)),
        lambda record: record.but(withheld=record.withheld + 'b'))
"""], env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
        while other.poll() is None:
            self.records.change(self.first, lambda record: record.but(
                failed_start=record.failed_start + 'a'))
        self.assertEqual(0, other.returncode)
        self.assertEqual('b' * 30, self.records.read()[FIRST].withheld)

    def test_what_ends_with_the_service_is_dropped(self) -> None:
        self.withhold(self.first, 'x')
        self.records.change(self.first, lambda record: record.but(
            failed_start='no reset', retry=True))
        self.records.change(self.second, lambda record: record.but(
            failed_start='no reset'))
        self.records.end_of_service()
        self.assertEqual({FIRST: records.Record('10de:2330', 'x')},
                         self.records.read())

    def test_a_card_is_offered_while_the_service_starts(self) -> None:
        self.records.change(self.first, lambda record: record.but(
            retry=True))
        read = self.records.read

        def read_and_lose() -> object:
            found = read()
            self.records.forget(FIRST)
            return found

        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.records.Records.read',
            lambda records: read_and_lose()))
        self.records.end_of_service()
        self.assertEqual({}, read())

    def test_lock_that_is_never_given_back_is_an_error(self) -> None:
        self.withhold(self.first, 'x')
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.records._LOCK_SECONDS', .3))
        holder = subprocess.Popen([sys.executable, '-c', f"""
import fcntl, time
file = open({str(self.folder / 'lock')!r}, 'a')
fcntl.lockf(file, fcntl.LOCK_EX)
print('locked', flush=True)
time.sleep(1000)
"""], stdout=subprocess.PIPE)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        assert holder.stdout is not None
        holder.stdout.readline()
        error = self.assertRaises(exceptions.RecordsUnavailable,
                                  self.withhold, self.first, 'y')
        self.assertIn('another process', str(error))
        holder.kill()
        holder.wait()
        self.withhold(self.first, 'y')

    def test_forgetting_says_whether_there_was_anything(self) -> None:
        self.withhold(self.first, 'x')
        self.assertTrue(self.records.forget(FIRST))
        self.assertFalse(self.records.forget(FIRST))
        self.assertEqual({}, self.records.read())


@ddt.ddt
class BrokenTest(TestCase):
    @ddt.data('', '{', '[]', 'null', '{"withheld": "x"}', '{"model": 1}',
              '{"model": "10de:2330", "retry": "no"}', '\x80', '[' * 100000)
    def test_file_that_makes_no_sense_is_about_any_card(self, text: str
                                                        ) -> None:
        self.withhold(self.second, 'x')
        self.file.write_bytes(text.encode('latin-1'))
        found = self.records.read()
        self.assertIn(str(self.file), found[FIRST].fault)
        self.assertTrue(found[FIRST].of(self.first))
        self.assertEqual(2, len(found))

    def test_it_is_replaced_by_an_operator_only(self) -> None:
        self.withhold(self.first, 'x')
        self.file.write_text('{')
        self.withhold(self.first, 'y')
        self.assertTrue(self.records.read()[FIRST].fault)
        self.records.change(self.first, lambda record: record.but(
            withheld='y'), also_unreadable=True)
        self.assertEqual({FIRST: records.Record('10de:2330', 'y')},
                         self.records.read())

    def test_values_of_a_later_release_do_no_harm(self) -> None:
        self.withhold(self.first, 'x')
        self.file.write_text('{"model": "10de:2330", "withheld": "x", '
                             '"new": 1}')
        self.assertEqual({FIRST: records.Record('10de:2330', 'x')},
                         self.records.read())

    def test_other_files_are_left_alone(self) -> None:
        self.withhold(self.first, 'x')
        (self.folder / 'README.json').write_text('mine')
        (self.folder / '.tmp').write_text('half a rec')
        self.assertEqual([FIRST], list(self.records.read()))

    def test_folder_that_cannot_be_read_is_an_error_with_its_cure(
            self) -> None:
        self.folder.write_text('a file')
        for call in (self.records.read,
                     lambda: self.withhold(self.first, 'x')):
            error = self.assertRaises(exceptions.RecordsUnavailable, call)
            self.assertIn(str(self.folder), str(error))
            self.assertIn("state_dir has to name a folder of nova-compute's "
                          "user, and commands to run as that user or as root",
                          str(error))

    def test_disk_that_is_full_leaves_the_old_record(self) -> None:
        self.withhold(self.first, 'x')

        def full(descriptor: int) -> None:
            raise OSError(28, 'No space left on device')

        with fixtures.MonkeyPatch('os.fsync', full):
            error = self.assertRaises(exceptions.RecordsUnavailable,
                                      self.withhold, self.first, 'y')
        self.assertIn('No space left on device; make room', str(error))
        self.assertEqual('x', self.records.read()[FIRST].withheld)
        self.assertEqual({'lock', self.file.name},
                         set(os.listdir(self.folder)))
