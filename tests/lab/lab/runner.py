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

"""Runs the tests of e2e against one session of the lab."""

import pathlib
import time
import traceback
import typing
import unittest

from lab import paths
from lab import session
from lab import steps

from e2e import base


class _Result(unittest.TestResult):
    """Prints a line when a test begins and one when it ends."""

    def __init__(self) -> None:
        super().__init__()
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
        self.passed += 1
        self._end('passed')

    def addError(self, test: unittest.TestCase, err: typing.Any) -> None:
        self._failed.add(test.id())
        steps.say(''.join(traceback.format_exception(*err)))
        self._end('FAILED')

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
    result = _Result()
    try:
        lab.start()
    except Exception as error:
        steps.say(str(error) if isinstance(error, steps.LabError)
                  else traceback.format_exc())
        steps.say('The lab did not start: no test could run.')
        return 0, suite.countTestCases()
    base.LabTestCase.lab = lab
    suite.run(result)
    if keep:
        _wait(logs)
    return result.passed, result.failed


def _wait(logs: pathlib.Path) -> None:
    steps.say("Everything stays up until Ctrl-C. From another terminal: "
              "tests/lab/run --exec 'virsh list'")
    steps.say(f'Logs: {logs}')
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        steps.say('')
