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

"""Takes cards from their host drivers through libvirt, and checks it.

libvirt loads the stub driver and binds by address. It may say "detached" of
what is not (seen with a root port: the kernel refused the probe, libvirt
returned 0), so the driver is read back from sysfs.
"""

from collections.abc import Callable, Iterable
import contextlib
import dataclasses
import threading
import time

import libvirt
from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import hypervisor as host_hypervisor
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import processes as host_processes
from nova_gpu_passthru import telemetry as gpu_telemetry

LOG = logging.getLogger(__name__)


# Seconds between two looks at who uses a card.
_LOOK_INTERVAL = 1


def _always(card: host_cards.Card) -> bool:
    return True


@dataclasses.dataclass(eq=False)
class _Attempt:
    """One card on its way to the stub driver, in a thread of its own."""

    card: host_cards.Card
    wanted: Callable[[host_cards.Card], bool]
    users: host_processes.Users = host_processes.Users()
    done: bool = False
    failure: str = ''

    def lateness(self, seconds: float) -> str:
        """Says why it takes longer than that, and what to do."""
        if self.users.processes:
            return (f'{self.users}, and still does after {seconds:.0f} s; '
                    f'stop it, and the card is offered once it is detached')
        return (f'{_drivers(self.card)} has not let go of it within '
                f'{seconds:.0f} s; a process may use the card '
                f'(nvidia-persistenced, a compute job, a display): stop it, '
                f'and the card is offered once it is detached. {self.users}'
                ).rstrip()


class Binder:
    """Detaches cards side by side, within a time limit.

    libvirt holds the lock of its PCI devices while a driver lets go of one
    (virHostdevPCINodeDeviceDetach), so in truth cards may well go one after
    the other, and one that never goes stops those behind it. A card's time
    therefore starts anew when another one is done, and whichever gets
    detached too late counts as detached all the same.

    A card that a process is seen to use is not touched until that has ended:
    drivers wait in the kernel for their users, and NVIDIA's of 595 and later
    wait for ever even if the users end then (NVIDIA/open-gpu-kernel-modules
    issue 1119).

    :param sysfs: where the drivers are read back
    :param hypervisor: where devices are detached
    :param processes: where those that use a card are seen
    :param telemetry: where detaching is measured
    :ivar timeout: seconds that one card may take
    """

    def __init__(self, sysfs: pci.Sysfs,
                 hypervisor: host_hypervisor.Hypervisor,
                 processes: host_processes.Processes,
                 telemetry: gpu_telemetry.Telemetry,
                 timeout: float = 60) -> None:
        self._sysfs = sysfs
        self._hypervisor = hypervisor
        self._processes = processes
        self._telemetry = telemetry
        self.timeout = timeout
        self._progress = threading.Condition()
        self._running: dict[pci.PCIAddress, _Attempt] = {}

    def detach(self, cards: Iterable[host_cards.Card],
               wanted: Callable[[host_cards.Card], bool] = _always
               ) -> dict[pci.PCIAddress, str]:
        """Detaches cards that no guest holds.

        A card of which one function cannot be detached is put back. One that
        takes too long is left to its thread: libvirt has no way to call it
        off.

        :param cards: the cards; functions on a stub driver are left as they
            are
        :param wanted: tells whether a card is still to be detached that had
            to wait for a process
        :returns: for each card that is not detached, by its address, why
        """
        with self._progress:
            attempts = [self._start(card, wanted) for card in cards]
            waiting = attempts
            progress = True
            while waiting and progress:
                progress = self._progress.wait_for(
                    lambda: any(attempt.done for attempt in waiting),
                    self.timeout)
                waiting = [a for a in waiting if not a.done]
        for attempt in waiting:
            self._telemetry.failed('detach', 'timeout')
            attempt.failure = attempt.lateness(self.timeout)
        return {attempt.card.address: attempt.failure
                for attempt in attempts if attempt.failure}

    def _start(self, card: host_cards.Card,
               wanted: Callable[[host_cards.Card], bool]) -> _Attempt:
        attempt = self._running.get(card.address)
        if attempt is None:
            attempt = self._running[card.address] = _Attempt(card, wanted)
            # A daemon, so that a call that never returns does not keep the
            # service from stopping.
            thread = threading.Thread(
                target=self._run, args=(attempt,), daemon=True,
                name=f'detach-{card.address}')
            try:
                thread.start()
            except RuntimeError as error:
                del self._running[card.address]
                attempt.failure, attempt.done = (
                    f'detaching it failed: {error}', True)
        return attempt

    def _run(self, attempt: _Attempt) -> None:
        card, started = attempt.card, time.monotonic()
        failure = ''
        try:
            self._wait_until_unused(attempt)
            with (self._telemetry.timed('detach'),
                  contextlib.ExitStack() as undo):
                for function in card.functions:
                    if not function.on_stub:
                        self._detach_function(function, undo)
                undo.pop_all()
            LOG.info('GPU %(card)s was detached from %(drivers)s in '
                     '%(seconds).1f s',
                     {'card': card, 'drivers': _drivers(card),
                      'seconds': time.monotonic() - started})
        except exceptions.DetachFailed as error:
            failure = str(error)
        except Exception as error:
            LOG.exception('Detaching GPU %s failed', card)
            failure = f'detaching it failed: {error}'
        with self._progress:
            attempt.failure, attempt.done = failure, True
            del self._running[card.address]
            self._progress.notify_all()

    def _wait_until_unused(self, attempt: _Attempt) -> None:
        addresses = [f.address for f in attempt.card.functions
                     if not f.on_stub]
        attempt.users = self._processes.users(addresses)
        if attempt.users.processes:
            LOG.warning('GPU %(card)s is not detached yet: %(users)s',
                        {'card': attempt.card, 'users': attempt.users})
        while attempt.users.processes:
            time.sleep(_LOOK_INTERVAL)
            if not attempt.wanted(attempt.card):
                raise exceptions.DetachFailed(
                    f'it was withheld while {attempt.users}')
            attempt.users = self._processes.users(addresses)

    def _detach_function(self, function: pci.PCIFunction,
                         undo: contextlib.ExitStack) -> None:
        address = function.address
        try:
            device = self._hypervisor.node_device(address.node_device)
            undo.callback(self._reattach, device, address)
            device.detachFlags(None, 0)
        except libvirt.libvirtError as error:
            raise exceptions.DetachFailed(
                f'libvirt cannot detach {address} from '
                f'{function.driver or "no driver"}: {error}') from error
        now = self._sysfs.function(address)
        if now is None or not now.on_stub:
            driver = now.driver if now is not None else None
            raise exceptions.DetachFailed(
                f'libvirt says that {address} is detached, but it is on '
                f'{driver or "no driver"}; the kernel log may say why')

    @staticmethod
    def _reattach(device: host_hypervisor.NodeDevice,
                  address: pci.PCIAddress) -> None:
        try:
            device.reAttach()
        except libvirt.libvirtError as error:
            LOG.warning('PCI function %(address)s could not be given back to '
                        'its host driver: %(error)s',
                        {'address': address, 'error': error})


def _drivers(card: host_cards.Card) -> str:
    names = {f.driver for f in card.functions if f.driver and not f.on_stub}
    return ', '.join(sorted(names)) or 'no driver'
