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

"""Runs Nova's own libvirt tests with our driver in the place of Nova's.

A test that fails is run again with Nova's class. Where that fails as well,
the machine or a library is to blame; where it passes, our driver is, and the
exit status is 1.
"""

import argparse
from collections.abc import Collection, Iterator
import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import subunit
import testtools

from tests.nova_suites import journal
from tests.nova_suites import suites

ROOT = pathlib.Path(__file__).parents[2]
GOOD = ('success', 'xfail')
SKIPPED = ('skip',)


@dataclasses.dataclass(frozen=True)
class Result:
    """How one test ended."""

    name: str
    status: str
    details: str

    @property
    def failed(self) -> bool:
        # A process that died leaves a test in progress: that counts too.
        return self.status not in GOOD + SKIPPED


class Watchdog:
    """Ends a run that is stuck.

    With native threads Nova's fixtures can wait for each other for ever once
    a test has run out of time.
    """

    # More than any test may take (OS_TEST_TIMEOUT), and the start of it all.
    PATIENCE = 600

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._done = threading.Event()

    def pat(self) -> None:
        """Tells it that a test has ended."""
        self._last = time.monotonic()

    @contextlib.contextmanager
    def on(self, process: 'subprocess.Popen[bytes]') -> Iterator[None]:
        """Watches a process that leads a session of its own."""
        thread = threading.Thread(target=self._watch, args=(process,))
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _watch(self, process: 'subprocess.Popen[bytes]') -> None:
        while not self._done.wait(5):
            if time.monotonic() - self._last > self.PATIENCE:
                print(f'No test has ended for {self.PATIENCE} seconds.',
                      flush=True)
                os.killpg(process.pid, signal.SIGKILL)
                return


class Runner:
    """Runs the tests of one suite in processes of their own."""

    def __init__(self, name: str, folder: pathlib.Path, concurrency: int,
                 filters: Collection[str]) -> None:
        self._name = name
        self.folder = folder / name
        self._concurrency = concurrency
        self._filters = filters
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, driver: suites.Driver,
            names: Collection[str] | None = None) -> dict[str, Result]:
        """Runs tests.

        :param driver: the class that Nova's tests are to find
        :param names: only these tests
        """
        command = [sys.executable, '-m', 'stestr',
                   '--test-path', 'tests/nova_suites/collect',
                   '--top-dir', '.', '--repo-url', str(self.folder),
                   'run', '--subunit',
                   '--concurrency', str(self._concurrency)]
        if names is not None:
            chosen = self.folder / 'names'
            chosen.write_text(''.join(f'{name}\n' for name in names))
            command += ['--load-list', str(chosen)]
        environment = {**os.environ,
                       suites.SUITE_VARIABLE: self._name,
                       suites.DRIVER_VARIABLE: driver.value,
                       suites.FOLDER_VARIABLE: str(self.folder)}
        results: dict[str, Result] = {}
        start = time.monotonic()
        watchdog = Watchdog()

        def add(test: dict[str, Any]) -> None:
            if test['status'] == 'exists':
                return
            watchdog.pat()
            result = Result(test['id'], test['status'], '\n'.join(
                f'{name}:\n{content.as_text()}'
                for name, content in sorted(test['details'].items())
                if content.content_type.type == 'text'))
            results[result.name] = result
            if result.failed:
                print(f'{result.status}: {result.name}', flush=True)
            if len(results) % 100 == 0:
                print(f'{len(results)} tests, '
                      f'{time.monotonic() - start:.0f} seconds', flush=True)

        stream = testtools.StreamToDict(add)
        chatter = self.folder / 'stderr.log'
        with chatter.open('w') as stderr, subprocess.Popen(
                [*command, *self._filters], cwd=ROOT, env=environment,
                stdout=subprocess.PIPE, stderr=stderr,
                start_new_session=True) as process, watchdog.on(process):
            stream.startTestRun()
            subunit.ByteStreamToStreamResult(process.stdout, 'output').run(
                stream)
            stream.stopTestRun()
        if process.returncode:
            print(chatter.read_text(), file=sys.stderr)
            raise SystemExit(f'stestr ended with {process.returncode}.')
        return results


@dataclasses.dataclass
class Outcome:
    """What a suite showed, by the tests' names."""

    passed: set[str]
    failed: set[str]
    skipped: set[str]
    # Fails with Nova's class as well.
    not_ours: set[str]


def compare(runner: Runner) -> Outcome:
    """Runs a suite, and what failed again with Nova's class.

    What then passes is run once more with ours: on a busy machine a few of
    Nova's tests fail now and then, with either class.
    """
    journal.start(runner.folder)
    ours = runner.run(suites.Driver.OURS)
    failed = {name for name, result in ours.items() if result.failed}
    novas: dict[str, Result] = {}
    again: dict[str, Result] = {}
    if failed:
        print(f'{len(failed)} failed. With the class of Nova:', flush=True)
        novas = runner.run(suites.Driver.NOVAS, failed)
    suspects = {name for name in failed
                if name not in novas or not novas[name].failed}
    if suspects:
        print(f'{len(suspects)} passed with the class of Nova. Again with '
              'ours:', flush=True)
        again = runner.run(suites.Driver.OURS, suspects)
    unsteady = {name for name in suspects
                if name in again and not again[name].failed}
    for name in sorted(unsteady):
        print(f'failed only once: {name}')
    _write_log(runner.folder / 'failures.log', ours, suspects, unsteady)
    _write_log(runner.folder / 'failures-of-nova.log', novas,
               failed - suspects, set())
    skipped = {name for name, result in ours.items()
               if result.status in SKIPPED}
    return Outcome(passed=ours.keys() - failed - skipped | unsteady,
                   failed=suspects - unsteady, skipped=skipped,
                   not_ours=failed - suspects)


def _write_log(path: pathlib.Path, results: dict[str, Result],
               names: Collection[str], unsteady: Collection[str]) -> None:
    with path.open('w') as log:
        for name in sorted(names):
            note = ' (passed when run again)' if name in unsteady else ''
            log.write(f'{name}{note}\n')
            log.write(textwrap.indent(results[name].details, '    '))
            log.write('\n\n')


def main() -> int:
    parser = argparse.ArgumentParser(
        prog='python -m tests.nova_suites', description=__doc__)
    parser.add_argument('--suite', action='append', choices=suites.SUITES,
                        help='run this one; may be given again; by default '
                             'all but functional-long')
    parser.add_argument('--folder', type=pathlib.Path,
                        default=ROOT / 'build' / 'nova-suites',
                        help='for the logs')
    parser.add_argument('--concurrency', type=int, default=0,
                        help='processes; by default one per CPU')
    parser.add_argument('filters', nargs='*', metavar='REGEX',
                        help='run only tests whose name matches')
    arguments = parser.parse_args()

    chosen = arguments.suite or [name for name, suite in
                                 suites.SUITES.items() if suite.by_default]
    passed = failed = skipped = 0
    bad = False
    for name in chosen:
        runner = Runner(name, arguments.folder.absolute(),
                        arguments.concurrency, arguments.filters)
        start = time.monotonic()
        outcome = compare(runner)
        made = journal.count(runner.folder)
        print(f'{name}: {time.monotonic() - start:.0f} seconds, {made} times '
              'a GPUPassthruDriver was made')
        if not made:
            print(f'{name}: no test made a GPUPassthruDriver: these results '
                  'say nothing about it.')
            bad = True
        if outcome.not_ours:
            print(f'{name}: {len(outcome.not_ours)} fail with the class of '
                  f'Nova as well: {runner.folder}/failures-of-nova.log')
        for test in sorted(outcome.failed):
            print(f'fails with our driver only: {test}')
        if outcome.failed:
            print(f'{name}: tracebacks are in {runner.folder}/failures.log')
        passed += len(outcome.passed)
        failed += len(outcome.failed)
        skipped += len(outcome.skipped) + len(outcome.not_ours)
    print(f'{passed} passed, {failed} failed, {skipped} skipped')
    return int(bad or failed > 0 or not passed)


if __name__ == '__main__':
    sys.exit(main())
