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

"""tests/lab/run: see README.rst.

First in the system's Python, which installs what is missing, and then again
in the virtual environment that it made.
"""

import argparse
import datetime
import fcntl
import os
import pathlib
import shutil
import signal
import sys
import time
import types

from lab import distribution
from lab import paths
from lab import processes
from lab import python_packages
from lab import steps

_KEPT_LOGS = 5

# Tells the second Python where the logs are, and when the first one started.
_SECOND = 'NOVA_GPU_LAB_SECOND_STAGE'


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='tests/lab/run',
        description='Run the end-to-end tests in a virtual GPU host.')
    parser.add_argument(
        '-k', metavar='PATTERN', dest='patterns', action='append',
        help='run only the tests whose name contains PATTERN')
    parser.add_argument(
        '--keep', action='store_true',
        help='leave everything running after the tests, until Ctrl-C')
    parser.add_argument(
        '--exec', metavar='COMMAND',
        help='run a shell command in the virtual host of a run with --keep')
    return parser.parse_args()


def _lock() -> None:
    paths.WORK.mkdir(parents=True, exist_ok=True)
    lock = os.open(paths.LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f'Another run of the lab uses {paths.WORK}. '
                 'NOVA_GPU_LAB=FOLDER chooses another one.')
    # The second stage keeps it; the processes of the lab do not get it.
    os.set_inheritable(lock, True)


def _new_logs() -> pathlib.Path:
    paths.LOGS.mkdir(exist_ok=True)
    for old in sorted(paths.LOGS.iterdir())[:1 - _KEPT_LOGS]:
        shutil.rmtree(old)
    folder = paths.LOGS / datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
    folder.mkdir()
    return folder


def _stop(number: int, frame: types.FrameType | None) -> None:
    # Only this once: the end is not to be interrupted.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    processes.stop_all()
    # Unlike SystemExit, unittest lets it pass.
    raise KeyboardInterrupt(signal.Signals(number).name)


def _prepare(logs: pathlib.Path) -> pathlib.Path:
    ended = processes.end_all()
    if ended:
        steps.say(f'  Ended {ended} processes of an earlier run')
    shutil.rmtree(paths.RUN, ignore_errors=True)
    paths.RUN.mkdir()
    distribution.install_machine_packages(logs / 'apt.log')
    return python_packages.virtual_environment(logs / 'pip.log')


def _first_stage() -> None:
    start = time.time()
    logs = _new_logs()
    steps.say(f'Logs: {logs}')
    venv = _prepare(logs)
    python = str(venv / 'bin/python')
    os.environ[_SECOND] = f'{start} {logs}'
    os.execv(python, [python, '-B', '-m', 'lab', *sys.argv[1:]])


def _second_stage(arguments: argparse.Namespace) -> int:
    # Not at the top: what it imports is only in the virtual environment.
    from lab import runner
    start, logs = os.environ.pop(_SECOND).split(' ', 1)
    passed, failed = runner.run(pathlib.Path(logs), arguments.patterns,
                                arguments.keep)
    steps.say(f'{time.time() - float(start):.0f} s in all')
    if failed:
        steps.say(f'Logs: {logs}')
    processes.stop_all()
    steps.say(f'{passed} passed, {failed} failed')
    return 1 if failed else 0


def main() -> int:
    """Do what the command line says; return the exit status."""
    arguments = _arguments()
    if arguments.exec:
        from lab import virtual_host
        return virtual_host.execute(arguments.exec)
    if _SECOND not in os.environ:
        # Before anything that ends processes: they may be another run's.
        _lock()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Who started us with nohup or in the background wants it ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        if _SECOND not in os.environ:
            _first_stage()
        return _second_stage(arguments)
    except steps.LabError as error:
        steps.say(f'{error}')
        steps.say('0 passed, 1 failed')
        return 1
    except KeyboardInterrupt as error:
        steps.say(f'Stopped by {error}')
        return 1
    finally:
        processes.end_all()


if __name__ == '__main__':
    sys.exit(main())
