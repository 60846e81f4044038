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

"""Kills nova-compute at a chosen point, as SIGKILL does.

A killed process runs no handler and no cleanup. In one process with the test
that is simulated so: the thread that comes to the point stops there for good
and goes on only after the test, with an exception that no code of Nova
catches. Whatever other thread makes a step meanwhile gets that exception at
once. The service takes no request any more, and libvirt's events do not reach
it. Locks that a process takes with it when it dies are made anew. The
database, Placement, libvirt and the host's devices stay as they were at the
point. What is not simulated: the message that is lost on its way (the killed
thread has taken its own), and a connection to libvirt or the database that
breaks off in the middle of one call.
"""

from collections.abc import Callable
import functools
import sys
import threading
import time
import types
from typing import Any

import fixtures
from oslo_concurrency import lockutils

from nova_gpu_passthru.host import gpus
from nova_gpu_passthru.host import hook
from nova_gpu_passthru.host import records
from tests.functional import gpu_libvirt
from tests.functional import guest_domain
from tests.functional import node_device

# What changes who holds what, on libvirt's side and on ours.
_STEPS: dict[type | types.ModuleType, tuple[str, ...]] = {
    gpu_libvirt.Connection: ('defineXML', 'listAllDomains'),
    guest_domain.Domain: (
        'createWithFlags', 'destroy', 'undefineFlags', 'managedSave',
        'setMetadata', 'attachDeviceFlags', 'detachDeviceFlags'),
    node_device.NodeDevice: ('detachFlags',),
    gpus.HostGPUs: ('claim', 'release', 'keep_for_revert', 'revert',
                    'confirm'),
    records.Records: ('change',),
    hook: ('run',),
}
# Much more than any action needs.
_PATIENCE = 90


class Killed(BaseException):
    """Ends a thread of a service that was killed."""


class Crash(fixtures.Fixture):
    """Stops whoever comes to a point.

    A point is written 'before STEP' or 'after STEP', with a number where it
    is not the first such call: 'after defineXML 2'.
    """

    def _setUp(self) -> None:
        self._point: tuple[str, str] | None = None
        self._calls_left = 0
        self._reached = threading.Event()
        self._over = threading.Event()
        self._dead = False
        self._task: types.FrameType | None = None
        self._lock = threading.Lock()
        for owner, steps in _STEPS.items():
            for step in steps:
                self.useFixture(fixtures.MockPatchObject(
                    owner, step, self._watched(step, getattr(owner, step))))
        self.addCleanup(self.release)

    def arm(self, point: str) -> None:
        """Chooses the point; it holds for the next calls."""
        when, step, *number = point.split()
        self._calls_left = int(number[0]) if number else 1
        self._point = when, step

    def wait(self) -> None:
        """Waits until the point is reached; then a new service may start.

        :raises AssertionError: if nobody comes there
        """
        self._wait()
        self._dead = False

    def run(self, work: Callable[[], Any]) -> None:
        """Does work in a thread that ends when the point was reached.

        It ends at its next step, for the point may be another thread's. Then
        a new service may start.
        """
        def working() -> None:
            try:
                work()
            except Killed:
                pass

        thread = threading.Thread(target=working)
        thread.start()
        self._wait()
        thread.join(_PATIENCE)
        if thread.is_alive():
            raise AssertionError('the killed service lives on')
        self._dead = False

    def release(self) -> None:
        """Lets the thread that was stopped end, while the database stands."""
        self._over.set()
        deadline = time.monotonic() + _PATIENCE
        while self._task is not None and not _is_finished(self._task):
            if time.monotonic() > deadline:
                raise AssertionError('the killed thread does not end')
            time.sleep(0.01)

    def _wait(self) -> None:
        if not self._reached.wait(_PATIENCE):
            raise AssertionError(f'nobody came to {self._point}')
        lockutils._semaphores = lockutils.Semaphores()
        lockutils._fair_locks = lockutils.FairLocks()

    def _watched(self, step: str, method: Callable[..., Any]
                 ) -> Callable[..., Any]:
        @functools.wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._pass('before', step)
            result = method(*args, **kwargs)
            self._pass('after', step)
            return result
        return watched

    def _pass(self, when: str, step: str) -> None:
        with self._lock:
            if self._dead:
                raise Killed()
            if self._point != (when, step):
                return
            self._calls_left -= 1
            if self._calls_left:
                return
            self._point = None
            self._dead = True
        self._task = _task_of_nova()
        self._reached.set()
        self._over.wait()
        raise Killed()


def _task_of_nova() -> types.FrameType | None:
    """Finds the first call into Nova of this thread, if it has one."""
    found: types.FrameType | None = None
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get('__name__', '').startswith('nova.'):
            found = frame
        frame = frame.f_back
    return found


def _is_finished(frame: types.FrameType) -> bool:
    try:
        frame.clear()
    except RuntimeError:
        return False
    return True
