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

"""Tells the person at the terminal what happens and how long it takes."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import pathlib
import time
import typing

T = typing.TypeVar('T')

_WIDTH = 66
_TAIL_LINES = 25
_line_open = False
_watches: list[Callable[[], None]] = []


class LabError(Exception):
    """Something that the lab needs did not happen; says what and where."""


def say(text: str) -> None:
    """Print a line of its own, also while a step is open."""
    global _line_open
    if _line_open:
        print(flush=True)
        _line_open = False
    print(text, flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Print one line: what is done, and then the seconds that it took."""
    global _line_open
    start = time.monotonic()
    if _line_open:
        print()
    print(f'  {title:<{_WIDTH}}', end='', flush=True)
    _line_open = True
    outcome = 'FAILED after '
    try:
        yield
        outcome = ''
    finally:
        seconds = f'{outcome}{time.monotonic() - start:6.1f} s'
        if _line_open:
            print(seconds, flush=True)
        else:
            print(f'  {title + ":":<{_WIDTH}}{seconds}', flush=True)
        _line_open = False


def tail(log: pathlib.Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log file, for an error message."""
    try:
        text = log.read_text(errors='replace')
    except FileNotFoundError:
        return f'({log} does not exist)'
    return '\n'.join([f'--- end of {log}', *text.splitlines()[-lines:]])


def watch(check: Callable[[], None]) -> None:
    """Have wait_for call this as well; it raises where waiting is in vain."""
    _watches.append(check)


def wait_for(check: Callable[[], T], what: str, limit: float,
             log: pathlib.Path | None = None, interval: float = 0.2) -> T:
    """Call check until it returns something true; return that.

    :raises LabError: when the limit, in seconds, has passed, or what a watch
        raises.
    """
    deadline = time.monotonic() + limit
    while True:
        for watched in _watches:
            watched()
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            message = f'{what}: not within {limit:.0f} s'
            raise LabError(f'{message}\n{tail(log)}' if log else message)
        time.sleep(interval)
