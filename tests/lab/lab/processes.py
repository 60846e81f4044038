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

"""Starts and ends the processes of the lab, and no others.

Whatever the lab starts carries a mark in its environment, and so does all
that is started from there (epmd, workers of gunicorn, mmdebstrap's children).
So what a killed run left behind is found by reading /proc, without a list of
process ids that could meanwhile belong to somebody else.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import os
import pathlib
import signal
import subprocess
import time

from lab import paths
from lab import steps

_MARK = 'NOVA_GPU_LAB_PROCESS_OF'

_stopping = False


def stop_all() -> None:
    """Kill all that the lab runs, and start nothing from now on.

    Threads that wait for a command see it fail, and the next one as well.
    """
    global _stopping
    _stopping = True
    end_all()


def is_stopping() -> bool:
    """Whether stop_all was called: what ends now does so because of it."""
    return _stopping


def _check_not_stopping() -> None:
    if _stopping:
        raise steps.LabError('The lab is being stopped')


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a process of the lab."""
    # gunicorn and oslo.service change their titles with setproctitle, which
    # would write over the environment if it were not for SPT_NOENV.
    return {**os.environ, **(extra or {}), _MARK: str(paths.WORK),
            'SPT_NOENV': '1'}


def run(command: Sequence[str | os.PathLike[str]], log: pathlib.Path,
        limit: float = 600, env: Mapping[str, str] | None = None,
        cwd: pathlib.Path | None = None, stdin: str = '') -> None:
    """Run a command to its end, with its output in a log.

    :raises LabError: when it fails or takes longer than limit seconds.
    """
    _check_not_stopping()
    shown = ' '.join(str(word) for word in command)
    with log.open('a') as output:
        output.write(f'$ {shown}\n')
        output.flush()
        try:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=cwd,
                env=environment(env), input=stdin, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            raise steps.LabError(
                f'Took longer than {limit:.0f} s: {shown}\n{steps.tail(log)}')
    if done.returncode:
        raise steps.LabError(
            f'Exit status {done.returncode}: {shown}\n{steps.tail(log)}')


class Service:
    """A process that stays until it is stopped."""

    def __init__(self, name: str, command: Sequence[str], log: pathlib.Path,
                 env: Mapping[str, str] | None = None) -> None:
        _check_not_stopping()
        self.name = name
        self.log = log
        with log.open('a') as output:
            # A session of its own: Ctrl-C reaches the lab alone, which then
            # ends the services.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env=environment(env),
                start_new_session=True)

    def check_alive(self) -> None:
        """Raise LabError, with the end of the log, if it has ended."""
        status = self._process.poll()
        if status is not None:
            raise steps.LabError(
                f'{self.name} ended with status {status}\n'
                f'{steps.tail(self.log)}')

    def has_ended(self, limit: float | None = 0) -> bool:
        """Whether it has ended, or does so within limit seconds."""
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, limit: float = 60) -> None:
        """Ask it to end, and wait until it has."""
        self._process.terminate()
        self.wait(limit)

    def wait(self, limit: float | None = None) -> None:
        """Wait until it has ended by itself."""
        if not self.has_ended(limit):
            raise steps.LabError(
                f'{self.name} did not end within {limit:.0f} s\n'
                f'{steps.tail(self.log)}')


def _marked() -> Iterator[int]:
    mark = f'{_MARK}={paths.WORK}'.encode()
    for entry in pathlib.Path('/proc').iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / 'environ').read_bytes().split(b'\0')
        except OSError:
            continue
        if mark in variables:
            yield int(entry.name)


def end_all() -> int:
    """Kill all that this or an earlier run started in this work folder.

    Returns how many processes there were. They are not asked to save their
    state, because the next run starts from a fresh one.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + 20
    while pids := set(_marked()):
        if time.monotonic() > deadline:
            raise steps.LabError(f'Processes that do not end: {pids}')
        for pid in pids - ended:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        ended |= pids
        _reap()
        time.sleep(0.1)
    return len(ended)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass
