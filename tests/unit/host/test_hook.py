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


import os
import pathlib
import subprocess
import sys
import threading
import time

import ddt
import fixtures

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import hook
from tests.unit import base

CARD = """
0000:65:00.0 030000 10de:2231 driver=vfio-pci group=1
0000:65:00.1 040300 10de:1aef driver=vfio-pci group=1
"""
UUID = 'aaaaaaaa-0000-4000-8000-000000000000'


class TestCase(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.card, = self.cards(CARD)
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.path = self.folder / 'hook'

    def script(self, text: str) -> None:
        self.path.write_text(f'#!/bin/sh\n{text}\n')
        self.path.chmod(0o755)

    def run_hook(self, text: str, timeout: float = 60) -> None:
        self.script(text)
        hook.run(str(self.path), timeout, self.card, UUID, self.folder)

    def failure(self, text: str, timeout: float = 60) -> str:
        return str(self.assertRaises(exceptions.ReleaseFailed, self.run_hook,
                                     text, timeout))

    def wait_for(self, name: str) -> str:
        deadline = time.monotonic() + 60
        while not (self.folder / name).exists():
            self.assertLess(time.monotonic(), deadline, f'no {name}')
            time.sleep(.02)
        return (self.folder / name).read_text()


class RunTest(TestCase):
    def test_it_is_told_which_card_and_who_had_it(self) -> None:
        self.run_hook(f'for word; do echo "$word"; done >{self.folder}/out\n'
                      f'env | grep ^GPU_ | sort >>{self.folder}/out')
        self.assertEqual(
            ['0000:65:00.0', '0000:65:00.1',
             'GPU_PASSTHRU_ADDRESS=0000:65:00.0',
             'GPU_PASSTHRU_ADDRESSES=0000:65:00.0 0000:65:00.1',
             f'GPU_PASSTHRU_INSTANCE={UUID}', 'GPU_PASSTHRU_MODEL=10de:2231'],
            (self.folder / 'out').read_text().splitlines())

    def test_it_is_run_by_no_shell(self) -> None:
        self.path = self.folder / 'a hook; touch harm'
        self.run_hook(f'touch {self.folder}/good')
        self.assertEqual({'good', self.path.name, '0000:65:00.0.hook'},
                         set(os.listdir(self.folder)))

    def test_it_has_no_input_to_wait_for(self) -> None:
        self.run_hook('! read line')

    def test_other_status_than_0_is_a_failure_with_what_it_printed(
            self) -> None:
        text = self.failure('echo first; echo "ECC error" >&2; exit 3')
        self.assertIn(f'{self.path} ended with status 3 and printed: first | '
                      f'ECC error', text)

    def test_of_much_output_the_end_is_told(self) -> None:
        text = self.failure('i=0; while [ $i -lt 3000 ]; do echo line $i; '
                            'i=$((i + 1)); done; exit 1')
        self.assertIn('line 2999', text)
        self.assertNotIn('line 2989', text)

    def test_one_endless_line_is_cut(self) -> None:
        text = self.failure('head -c 100000 /dev/zero | tr "\\0" x; exit 1')
        self.assertIn('xxx', text)
        self.assertLess(len(text), 1500)

    def test_endless_output_does_not_fill_the_disk(self) -> None:
        text = self.failure(
            'echo start; head -c 5000000 /dev/zero | tr "\\0" x\n'
            'while [ $(stat -L -c %s /dev/fd/2) -gt 4000000 ]\n'
            'do sleep .05; done; echo; echo end; exit 1')
        self.assertIn('with status 1 and printed: x', text)
        self.assertTrue(text.endswith('x | end'), text[-20:])

    def test_output_that_is_no_text_does_no_harm(self) -> None:
        self.assertIn('printed', self.failure('printf "\\377\\200"; exit 1'))

    def test_progress_bar_and_colours_do_no_harm_to_who_shows_it(
            self) -> None:
        text = self.failure(
            r'printf "start\r\n10 %%\r90 %%\r\n"; '
            r'printf "\033[31;1mECC\033[0m\aerror\0\n"; exit 1')
        self.assertTrue(text.endswith('printed: start | 90 % | ECC error'),
                        repr(text))

    def test_death_by_a_signal_is_a_failure(self) -> None:
        self.assertIn('was killed by signal 9', self.failure('kill -9 $$'))

    def test_what_is_no_program_is_a_failure(self) -> None:
        self.path.write_text('no script')
        self.path.chmod(0o755)
        error = self.assertRaises(
            exceptions.ReleaseFailed, hook.run, str(self.path), 60, self.card,
            UUID, self.folder)
        self.assertIn('cannot be run', str(error))

    def test_time_out_ends_it_and_all_that_it_started(self) -> None:
        text = self.failure(
            f'echo scrubbing\n(sleep 1000 & echo $! >{self.folder}/child.tmp;'
            f' mv {self.folder}/child.tmp {self.folder}/child; wait)', 1)
        self.assertIn('did not end within 1 s and printed: scrubbing', text)
        self.assertEnded(int(self.wait_for('child')))

    def test_time_out_ends_what_ignores_that(self) -> None:
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.hook._GRACE', .1))
        text = self.failure(
            f"trap '' TERM; echo $$ >{self.folder}/pid; "
            f'while [ -e "$0" ]; do sleep .05; done', 1)
        self.assertEnded(int(self.wait_for('pid')))
        self.assertNotIn('runs on as process', text)

    # sudo runs as root, whom nova-compute may not signal.
    def test_time_out_of_what_another_user_runs_is_told_as_such(
            self) -> None:
        def refuse(group: int, number: int) -> None:
            raise PermissionError(1, 'Operation not permitted')

        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.hook._GRACE', .1))
        with fixtures.MonkeyPatch('os.killpg', refuse):
            text = self.failure(f'echo $$ >{self.folder}/pid; echo scrubbing; '
                                f'exec sleep 1000', 1)
        pid = int(self.wait_for('pid'))
        self.assertTrue(self.runs(pid))
        self.addCleanup(os.killpg, pid, 9)
        self.assertIn('did not end within 1 s and printed: scrubbing', text)
        self.assertIn(f'runs on as process {pid}', text)
        # It has the lock, so no other hook begins.
        self.assertIn('an earlier hook still runs',
                      self.failure('exit 0', .3))

    def test_what_it_leaves_running_on_purpose_is_not_waited_for(
            self) -> None:
        leave = f'setsid sleep 1000 & echo $! >{self.folder}/child'
        self.run_hook(leave)
        self.addCleanup(os.kill, int(self.wait_for('child')), 9)
        # And is no earlier hook.
        self.failure(f'{leave}2; exit 1')
        self.addCleanup(os.kill, int(self.wait_for('child2')), 9)
        self.run_hook('exit 0', timeout=1)

    def assertEnded(self, pid: int) -> None:
        deadline = time.monotonic() + 60
        while self.runs(pid):
            self.assertLess(time.monotonic(), deadline, f'{pid} runs on')
            time.sleep(.02)

    @staticmethod
    def runs(pid: int) -> bool:
        """Whether a process is there and no zombie (proc_pid_stat(5))."""
        try:
            text = pathlib.Path(f'/proc/{pid}/stat').read_text()
        except OSError:
            return False
        return text.rpartition(')')[2].split()[0] != 'Z'


class Clock:
    """A clock that can be set ahead, for what has the module time."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.asked = threading.Event()

    def monotonic(self) -> float:
        self.asked.set()
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class LeftBehindTest(TestCase):
    """A hook whose nova-compute was killed runs on."""

    def setUp(self) -> None:
        super().setUp()
        self.script(f'cd {self.folder}; echo $$ >>started; '
                    f'while [ ! -e go -a -e "$0" ]; do sleep .05; done; '
                    f'echo $$ >>ended')
        service = subprocess.Popen([sys.executable, '-c', f"""
from nova_gpu_passthru.host import cards, hook, pci
function = pci.PCIFunction(pci.PCIAddress.parse('{self.card.address}'),
                           0, 0, 0, None, None, None, ())
hook.run({str(self.path)!r}, 60, cards.Card(function.address, (function,)),
         '', __import__('pathlib').Path({str(self.folder)!r}))
"""], env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
        self.addCleanup((self.folder / 'go').touch)
        self.wait_for('started')
        service.kill()
        service.wait()

    def test_the_next_one_waits_for_it(self) -> None:
        second = threading.Thread(target=hook.run, args=(
            str(self.path), 60, self.card, UUID, self.folder))
        second.start()
        (self.folder / 'go').touch()
        second.join()
        self.assertEqual((self.folder / 'started').read_text(),
                         (self.folder / 'ended').read_text())
        self.assertEqual(2, len((self.folder / 'ended').read_text().split()))

    def test_its_own_time_begins_when_the_earlier_one_has_ended(self) -> None:
        clock = Clock()
        self.useFixture(fixtures.MonkeyPatch(
            'nova_gpu_passthru.host.hook.time', clock))
        failures = []

        def run() -> None:
            try:
                self.run_hook(f'touch {self.folder}/second; while [ ! -e '
                              f'{self.folder}/end ]; do sleep .05; done')
            except exceptions.ReleaseFailed as error:
                failures.append(str(error))

        second = threading.Thread(target=run)
        second.start()
        self.addCleanup(second.join)
        self.addCleanup((self.folder / 'end').touch)
        clock.asked.wait(60)
        clock.ahead = 50
        (self.folder / 'go').touch()
        self.wait_for('second')
        clock.ahead = 70
        # Time for a look at the clock.
        time.sleep(1)
        (self.folder / 'end').touch()
        second.join()
        self.assertEqual([], failures)

    def test_and_fails_when_it_takes_too_long(self) -> None:
        error = self.assertRaises(
            exceptions.ReleaseFailed, hook.run, str(self.path), .3, self.card,
            UUID, self.folder)
        self.assertIn('an earlier hook still runs', str(error))
        self.assertEqual(
            1, len((self.folder / 'started').read_text().split()))


@ddt.ddt
class CheckTest(TestCase):
    def test_none_is_all_right(self) -> None:
        hook.check('')

    def test_executable_is_all_right(self) -> None:
        self.script('')
        hook.check(str(self.path))

    @ddt.unpack
    @ddt.data(('hook', 'is no absolute path'),
              ('/no/such/hook', 'does not exist'), ('/tmp', 'is no file'),
              ('/etc/passwd', 'may not be executed'))
    def test_what_cannot_be_run_is_refused_with_its_path(
            self, path: str, what: str) -> None:
        error = self.assertRaises(exceptions.InvalidReleaseHook, hook.check,
                                  path)
        self.assertIn(f'release_hook names {path!r}, which {what}',
                      str(error))
