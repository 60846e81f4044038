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

import contextlib
import threading
import time
from collections.abc import Iterable

import libvirt
from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import hypervisor as host_hypervisor
from nova_gpu_passthru.host import pci

LOG = logging.getLogger(__name__)


class _Attempt:
    """One card on its way to the stub driver, in a thread of its own."""

    def __init__(self, card: host_cards.Card) -> None:
        self.card = card
        self.failure = ''
        self.started = time.monotonic()
        self.seconds = 0.0
        self.thread: threading.Thread | None = None


class Binder:
    """Detaches cards side by side, each within a time limit.

    :param sysfs: where the drivers are read back
    :param hypervisor: where devices are detached
    :ivar timeout: seconds that one card may take
    """

    def __init__(self, sysfs: pci.Sysfs,
                 hypervisor: host_hypervisor.Hypervisor,
                 timeout: float = 60) -> None:
        self._sysfs = sysfs
        self._hypervisor = hypervisor
        self.timeout = timeout
        self._running: dict[pci.PCIAddress, _Attempt] = {}

    def detach(self, cards: Iterable[host_cards.Card]
               ) -> dict[pci.PCIAddress, str]:
        """Detaches cards that no guest holds.

        A card of which one function cannot be detached is put back. One that
        takes too long is left to its thread: libvirt offers no way to call
        it off.

        :param cards: the cards; functions on a stub driver are left as they
            are
        :returns: for each card that is not detached, by its address, why
        """
        attempts = [self._start(card) for card in cards]
        for attempt in attempts:
            assert attempt.thread is not None
            left = attempt.started + self.timeout - time.monotonic()
            attempt.thread.join(max(0.0, left))
        return {attempt.card.address: self._failure(attempt)
                for attempt in attempts if self._failure(attempt)}

    def _start(self, card: host_cards.Card) -> _Attempt:
        attempt = self._running.get(card.address)
        if attempt is None:
            attempt = self._running[card.address] = _Attempt(card)
            # A daemon, so that a call that never returns does not keep the
            # service from stopping.
            attempt.thread = threading.Thread(
                target=self._run, args=(attempt,), daemon=True,
                name=f'detach-{card.address}')
            attempt.thread.start()
        return attempt

    def _failure(self, attempt: _Attempt) -> str:
        if attempt.thread is not None and attempt.thread.is_alive():
            return (f'its driver {_drivers(attempt.card)} has not let go of '
                    f'it within {self.timeout:.0f} s; a process may use it '
                    f'(nvidia-persistenced, a compute job, a display): stop '
                    f'it, the card is offered as soon as it is free')
        return attempt.failure

    def _run(self, attempt: _Attempt) -> None:
        card = attempt.card
        try:
            with contextlib.ExitStack() as undo:
                for function in card.functions:
                    if not function.on_stub:
                        self._detach_function(function, undo)
                undo.pop_all()
        except exceptions.DetachFailed as error:
            attempt.failure = str(error)
        except Exception as error:
            LOG.exception('Detaching GPU %s failed', card)
            attempt.failure = f'detaching it failed: {error}'
        finally:
            self._running.pop(card.address, None)
        attempt.seconds = time.monotonic() - attempt.started
        if not attempt.failure:
            LOG.info('GPU %(card)s was detached from %(drivers)s in '
                     '%(seconds).1f s',
                     {'card': card, 'drivers': _drivers(card),
                      'seconds': attempt.seconds})

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
