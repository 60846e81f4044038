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


"""Runs the operator's executable for a card that a guest has given back."""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
from typing import IO

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards

# How much of what the hook printed is told.
_LINES, _BYTES = 10, 1000
# How much of it is kept while it runs, and seconds between two looks.
_MOST_BYTES, _INTERVAL = 1 << 20, .5
# Seconds for a hook to end once it was told to.
_GRACE = 5

# ECMA-48, 5.4.
_CONTROL_SEQUENCE = re.compile(r'\x1b\[[0-?]*[ -/]*[@-~]')


def check(path: str) -> None:
    """Looks whether a hook can be run by this process.

    :param path: the executable, empty for none
    :raises InvalidReleaseHook: if not; the path is quoted
    """
    if not path:
        return
    what = ('is no absolute path' if not os.path.isabs(path) else
            'does not exist' if not os.path.exists(path) else
            'is no file' if not os.path.isfile(path) else
            'may not be executed by this user'
            if not os.access(path, os.X_OK) else '')
    if what:
        raise exceptions.InvalidReleaseHook(
            f'[gpu_passthru] release_hook names {path!r}, which {what}. Name '
            f'an executable file of the host, or leave the option empty.')


def run(path: str, timeout: float, card: host_cards.Card, uuid: str,
        folder: pathlib.Path) -> None:
    """Runs a hook for a card and waits for its end.

    Its arguments are the addresses of the card's functions, the GPU's first;
    the environment has them too, with the model and the instance's uuid. It
    gets a process group of its own, all of which is killed at the end of the
    time. A hook that a killed nova-compute left behind keeps the lock on its
    card, so that never two run for one card.

    :param path: the executable
    :param timeout: seconds, and as many for such an earlier one to end
    :param card: what the guest has given back
    :param uuid: the instance's or domain's that had it
    :param folder: where the lock is
    :raises ReleaseFailed: if it cannot be run, fails or takes too long; the
        end of what it printed is quoted
    """
    addresses = [str(f.address) for f in (card.main, *card.companions)]
    try:
        with (_lock(folder / f'{card.address}.hook', timeout) as lock,
              tempfile.TemporaryFile(buffering=0) as output):
            _append_only(output.fileno())
            process = subprocess.Popen(
                [path, *addresses], cwd='/', stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
                pass_fds=[lock],
                env={**os.environ,
                     'GPU_PASSTHRU_ADDRESS': addresses[0],
                     'GPU_PASSTHRU_ADDRESSES': ' '.join(addresses),
                     'GPU_PASSTHRU_MODEL': card.model,
                     'GPU_PASSTHRU_INSTANCE': uuid})
            status = _status(process, time.monotonic() + timeout, output)
            if status is not None:
                # What it left running on purpose has the lock open as well.
                fcntl.flock(lock, fcntl.LOCK_UN)
            if status != 0:
                what = (f'did not end within {timeout:.0f} s'
                        if status is None else
                        f'was killed by signal {-status}' if status < 0 else
                        f'ended with status {status}')
                left = (f'; it cannot be killed and runs on as process '
                        f'{process.pid}' if process.poll() is None else '')
                raise exceptions.ReleaseFailed(
                    f'{path} {what}{_said(output)}{left}')
    except OSError as error:
        raise exceptions.ReleaseFailed(
            f'{path} cannot be run: {error}') from error


def _status(process: 'subprocess.Popen[bytes]', deadline: float,
            output: IO[bytes]) -> int | None:
    """Waits for the end.

    :returns: as subprocess has it, None if it took too long and was killed
    """
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, _INTERVAL))
        if os.fstat(output.fileno()).st_size > _MOST_BYTES:
            end = _end(output)
            output.truncate(0)
            output.write(end)
    _kill(process)
    return None


def _kill(process: 'subprocess.Popen[bytes]') -> None:
    """Ends a hook with all that it has started in its process group.

    Except what another user runs, such as sudo.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)


def _said(output: IO[bytes]) -> str:
    """The end of what a hook printed, on one line."""
    lines = map(_shown, _end(output).decode(errors='replace').split('\n'))
    said = [line for line in lines if line][-_LINES:]
    return f' and printed: {" | ".join(said)}' if said else ''


def _shown(line: str) -> str:
    """What a terminal shows of a line in the end, without its colours.

    Whoever shows that later must not move a cursor with it, and a progress
    bar goes back to the beginning of its line.
    """
    plain = _CONTROL_SEQUENCE.sub('', line).rstrip().rpartition('\r')[2]
    return ''.join(c if c.isprintable() else ' ' for c in plain).strip()


def _end(output: IO[bytes]) -> bytes:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _BYTES))
    return output.read(_BYTES)


def _append_only(descriptor: int) -> None:
    """Lets all who write write to the end, also when that comes nearer."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)


@contextlib.contextmanager
def _lock(path: pathlib.Path, timeout: float) -> Iterator[int]:
    """Takes a lock that lives as long as any process has it open.

    So it does not end with nova-compute while the hook runs on.
    """
    deadline = time.monotonic() + timeout
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise exceptions.ReleaseFailed(
                        f'an earlier hook still runs for this card (it has '
                        f'{path} open)') from None
                time.sleep(.2)
        yield descriptor
    finally:
        os.close(descriptor)
