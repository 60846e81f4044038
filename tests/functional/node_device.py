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


"""The host's PCI functions as libvirt's node devices.

What a detach does is set on the device: the functions and classes below.
"""

from collections.abc import Callable
import re
import threading
from typing import Any

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import libvirt_errors


class NodeDevice:
    """A PCI function of the host.

    :ivar on_detach: what a detach does; see the functions below
    """

    def __init__(self, connection: Any, address: str) -> None:
        self._connection = connection
        self.address = address
        self.on_detach: Callable[[NodeDevice], int] = detaches

    def detachFlags(self, driver: str | None, flags: int = 0) -> int:
        self._connection.calls.append(('detach', self.address))
        user = self._connection.user_of(self.address)
        if user is not None:
            raise libvirt_errors.invalid(
                f'PCI device {self.address} is in use by driver '
                f'QEMU, domain {user.name()}')
        return self.on_detach(self)

    def dettach(self) -> int:
        return self.detachFlags(None)

    def reAttach(self) -> int:
        self._connection.calls.append(('reattach', self.address))
        original = self._connection.original_drivers[self.address]
        self.bind(original)
        return 0

    def bind(self, driver: str | None) -> None:
        self._connection.sysfs.set_driver(self.address, driver)

    def name(self) -> str:
        return 'pci_' + re.sub('[:.]', '_', self.address)


def detaches(device: NodeDevice) -> int:
    """Binds the function to vfio-pci, as libvirt does."""
    device.bind('vfio-pci')
    return 0


def lies(device: NodeDevice) -> int:
    """Says that the function is detached, and changes nothing."""
    return 0


def fails(text: str) -> Callable[[NodeDevice], int]:
    """Makes a behaviour that raises an error."""
    def failing(device: NodeDevice) -> int:
        raise libvirt_errors.error(
            f'internal error: {text}',
            fakelibvirt.VIR_ERR_INTERNAL_ERROR)
    return failing


class Hangs:
    """Does not return from a detach until it is released."""

    def __init__(self) -> None:
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def __call__(self, device: NodeDevice) -> int:
        self._released.wait()
        return detaches(device)
