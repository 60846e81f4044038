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

"""Suspends guests with cards and brings them back with the same ones."""

from collections.abc import Callable, Iterator
import contextlib

from nova import conf as nova_conf
from nova import exception
from nova import objects
from nova.virt.libvirt import guest as libvirt_guest
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import hotplug
from nova_gpu_passthru.host import gpus

CONF = nova_conf.CONF
LOG = logging.getLogger(__name__)


class Suspension:
    """Takes cards out of running guests for as long as they are saved.

    :param host: Nova's libvirt host
    :param host_gpus: who holds what
    """

    def __init__(self, host: libvirt_host.Host,
                 host_gpus: gpus.HostGPUs) -> None:
        self._host = host
        self._gpus = host_gpus

    @contextlib.contextmanager
    def suspending(self, instance: 'objects.Instance') -> Iterator[None]:
        """Takes the cards out; they go back in if the guest is not saved.

        :raises exception.InstanceFaultRollback: if the guest keeps running
            because they cannot be taken out
        """
        held = self._gpus.held_by(instance.uuid)
        with _refused(exception.InstanceSuspendFailure), \
                contextlib.ExitStack() as undo:
            if held:
                guest = self._host.get_guest(instance)
                hotplug.take_out(guest, held,
                                 CONF.libvirt.device_detach_timeout)
                undo.callback(hotplug.give_back, guest, held)
            yield
            undo.pop_all()

    @contextlib.contextmanager
    def resuming(self, instance: 'objects.Instance',
                 suspend_again: Callable[[], None]) -> Iterator[None]:
        """Gives the cards back to a guest that was just resumed.

        :param suspend_again: called if that fails, for a guest must not run
            without its cards
        :raises exception.InstanceFaultRollback: if the guest stays suspended
            because it cannot have them
        """
        with _refused(exception.InstanceResumeFailure):
            self._gpus.look()
            self._gpus.check_own(instance.uuid)
            yield
            try:
                self.give_back(instance)
            except exceptions.HotplugFailed:
                self._stop(instance, suspend_again)
                raise

    def give_back(self, instance: 'objects.Instance') -> None:
        """Gives a guest that runs again the cards of its definition."""
        held = self._gpus.held_by(instance.uuid)
        guest: libvirt_guest.Guest | None = (
            self._host.get_guest(instance) if held else None)
        if guest is not None and guest.is_active():
            hotplug.give_back(guest, held)

    def recover(self, instance: 'objects.Instance') -> None:
        """Gives a running guest what it misses after a restart.

        nova-compute may have been killed between taking the cards out and
        saving the guest, or between resuming it and giving them back.
        """
        try:
            self.give_back(instance)
        except exception.InstanceNotFound:
            return
        except (exceptions.HotplugFailed, exception.NovaException) as error:
            LOG.error('The guest may run without its GPUs; hard reboot it: '
                      '%s', error, instance=instance)

    def _stop(self, instance: 'objects.Instance',
              suspend_again: Callable[[], None]) -> None:
        try:
            suspend_again()
        except Exception:
            LOG.exception('The guest cannot be saved again and is powered '
                          'off, for it has lost its GPUs', instance=instance)
            self._host.get_guest(instance).poweroff()


@contextlib.contextmanager
def _refused(failure: type[exception.NovaException]) -> Iterator[None]:
    """Leaves the instance as it was, with a fault that says why."""
    try:
        yield
    except (exceptions.HotplugFailed, exceptions.NotEnoughGPUs) as error:
        raise exception.InstanceFaultRollback(
            failure(reason=str(error))) from error
