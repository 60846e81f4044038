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

"""Talks to QEMU (QMP) and to the guest agent in the virtual host."""

import base64
import dataclasses
import json
import pathlib
import random
import socket
import time
import typing

from lab import steps


class CommandError(steps.LabError):
    """The other side answered with an error."""


class JSONLines:
    """One connection on which each line is a JSON message."""

    def __init__(self, path: pathlib.Path, limit: float = 20) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(limit)
        self._socket.connect(str(path))
        self._input = self._socket.makefile('rb')

    def close(self) -> None:
        """Close the connection."""
        self._input.close()
        self._socket.close()

    def send(self, message: dict[str, typing.Any]) -> None:
        """Send one message."""
        self._socket.sendall(json.dumps(message).encode() + b'\n')

    def receive(self) -> dict[str, typing.Any]:
        """The next message."""
        try:
            line = self._input.readline()
        except TimeoutError:
            raise steps.LabError('QEMU or its guest agent does not answer')
        if not line:
            raise steps.LabError('The connection to QEMU was closed')
        # The agent puts 0xff before the answer to guest-sync-delimited.
        return json.loads(line.lstrip(b'\xff'))

    def call(self, command: str, **arguments: typing.Any) -> typing.Any:
        """Call a command, wait for its answer and return it."""
        self.send({'execute': command, 'arguments': arguments})
        while True:
            answer = self.receive()
            if 'error' in answer:
                raise CommandError(f'{command}: {answer["error"]["desc"]}')
            if 'return' in answer:
                return answer['return']


def qmp(path: pathlib.Path, command: str,
        **arguments: typing.Any) -> typing.Any:
    """Call one QMP command (device_del, device_add, quit, ...)."""
    connection = JSONLines(path)
    try:
        connection.receive()
        connection.call('qmp_capabilities')
        return connection.call(command, **arguments)
    finally:
        connection.close()


@dataclasses.dataclass(frozen=True)
class Result:
    """How a command in the virtual host ended."""

    status: int
    stdout: str
    stderr: str


class Agent:
    """Runs commands in the virtual host through its guest agent."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def answers(self) -> bool:
        """Whether the agent is there."""
        try:
            self._connect(limit=2).close()
        except (OSError, steps.LabError, ValueError):
            return False
        return True

    def _connect(self, limit: float = 180) -> JSONLines:
        connection = JSONLines(self._path, limit)
        # What an earlier client did not read may still be in the channel.
        token = random.getrandbits(48)
        connection.send({'execute': 'guest-sync', 'arguments': {'id': token}})
        while connection.receive().get('return') != token:
            pass
        return connection

    def spawn(self, script: str) -> int:
        """Start a shell script in the background; return its process id."""
        return self._call(
            'guest-exec', path='/bin/bash', arg=['-c', script],
            **{'capture-output': True})['pid']

    def is_running(self, pid: int) -> bool:
        """Whether what spawn has started still runs."""
        try:
            return not self._call('guest-exec-status', pid=pid)['exited']
        except CommandError:
            # The agent reports the end once, and then it knows no such pid.
            return False

    def run(self, script: str, limit: float) -> Result:
        """Run a shell script; return its exit status and what it printed."""
        pid = self.spawn(script)
        deadline = time.monotonic() + limit
        interval = 0.1
        while not (state := self._call('guest-exec-status',
                                       pid=pid))['exited']:
            if time.monotonic() > deadline:
                self.spawn(f'kill {pid}')
                raise steps.LabError(f'In the virtual host, longer than '
                                     f'{limit:.0f} s: {script}')
            time.sleep(interval)
            interval = min(1, 1.5 * interval)
        return Result(
            state.get('exitcode', -state.get('signal', 1)),
            base64.b64decode(state.get('out-data', '')).decode(),
            base64.b64decode(state.get('err-data', '')).decode())

    def _call(self, command: str, **arguments: typing.Any) -> typing.Any:
        connection = self._connect()
        try:
            return connection.call(command, **arguments)
        finally:
            connection.close()
