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

"""Runs the tests of e2e against one session of the lab.

A test during which the virtual host ends by itself has failed, and the next
one gets a new virtual host. Only if the host's kernel has panicked in its KVM,
where nothing but the emulation below it can be the cause, does the test get
one more run.
"""

from collections.abc import Iterator
import pathlib
import sys
import time
import traceback
import typing
import unittest

from lab import control_plane
from lab import paths
from lab import session
from lab import steps
from lab import virtual_host

from e2e import base


class _Result(unittest.TestResult):
    """Prints a line when a test begins and one when it ends."""

    def __init__(self, host: virtual_host.VirtualHost) -> None:
        super().__init__()
        self._host = host
        self.passed = 0
        # A test may fail and its clean-up as well.
        self._failed: set[str] = set()

    @property
    def failed(self) -> int:
        """How many tests failed."""
        return len(self._failed)

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._start = time.monotonic()
        steps.say(test.id().removeprefix('e2e.'))

    def addSuccess(self, test: unittest.TestCase) -> None:
        try:
            self._host.check_alive()
        except virtual_host.HostEnded:
            self.addError(test, sys.exc_info())
            return
        self.passed += 1
        self._end('passed')

    def addError(self, test: unittest.TestCase, err: typing.Any) -> None:
        self._failed.add(test.id())
        if issubclass(err[0], virtual_host.HostEnded):
            # Each clean-up of the test says the same.
            steps.say(f'  {err[1]}')
        else:
            steps.say(''.join(traceback.format_exception(*err)))
        self._end('FAILED')

    def forget(self, test: unittest.TestCase) -> None:
        """Let a test that failed be run again."""
        self._failed.discard(test.id())

    def addFailure(self, test: unittest.TestCase, err: typing.Any) -> None:
        self.addError(test, err)

    def _end(self, how: str) -> None:
        steps.say(f'  {how} after {time.monotonic() - self._start:.1f} s')


def _tests(patterns: list[str] | None) -> unittest.TestSuite:
    loader = unittest.TestLoader()
    if patterns:
        loader.testNamePatterns = [f'*{pattern}*' for pattern in patterns]
    suite = loader.discover(str(paths.LAB / 'e2e'),
                            top_level_dir=str(paths.LAB))
    if loader.errors or not suite.countTestCases():
        raise steps.LabError(
            '\n'.join(map(str, loader.errors)) or 'No such test')
    return suite


def run(logs: pathlib.Path, patterns: list[str] | None,
        keep: bool) -> tuple[int, int]:
    """Bring up the lab, run the tests; return how many passed and failed."""
    suite = _tests(patterns)
    lab = session.Session(logs)
    try:
        lab.start()
    except Exception as error:
        _say_error(error)
        steps.say('The lab did not start: no test could run.')
        return 0, suite.countTestCases()
    base.LabTestCase.lab = lab
    result = _Result(lab.host)
    not_run = _run_all(suite, lab, result)
    if keep:
        _wait(logs)
    return result.passed, result.failed + not_run


def _say_error(error: Exception) -> None:
    steps.say(str(error) if isinstance(error, steps.LabError)
              else ''.join(traceback.format_exception(error)))


def _each(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _each(test)
        else:
            yield test


def _run_all(suite: unittest.TestSuite, lab: session.Session,
             result: _Result) -> int:
    """Run the tests; return how many could not be run."""
    waiting = list(_each(suite))
    faults = []
    while waiting:
        test = waiting.pop(0)
        test.run(result)
        if not lab.host.has_ended():
            continue
        if lab.host.has_panicked_in_kvm() and test.id() not in faults:
            steps.say(f'EMULATOR FAULT, not a failure: the kernel of the '
                      f'virtual host has panicked in KVM, in the middle of '
                      f'{test.id()}, which is run once more.')
            faults.append(test.id())
            result.forget(test)
            waiting.insert(0, test)
        if not waiting:
            break
        try:
            lab.recover()
        except Exception as error:
            _say_error(error)
            steps.say(f'There is no new virtual host: {len(waiting)} tests '
                      'could not be run.')
            break
    for name in faults:
        steps.say(f'Run again after an emulator fault: {name}')
    return len(waiting)


def _wait(logs: pathlib.Path) -> None:
    steps.say('Everything stays up until Ctrl-C. From another terminal:')
    steps.say(f'  . {control_plane.write_openrc()}; openstack server list')
    steps.say("  tests/lab/run --exec 'nova-gpu-passthru list'")
    steps.say(f'Logs: {logs}')
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        steps.say('')
