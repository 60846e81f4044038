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

"""Nova's libvirt driver, with whole GPUs for the guests that ask for them.

Every hook calls what does the work in host/ and guest/, and then super().
"""

from collections.abc import Iterator
import contextlib
from typing import Any

from nova.compute import task_states
from nova import conf as nova_conf
from nova import context as nova_context
from nova import exception
from nova import objects
from nova import version as nova_version
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import gpus
from nova_gpu_passthru.host import hypervisor
from nova_gpu_passthru.host import pci
from nova_gpu_passthru import releases

CONF = nova_conf.CONF
LOG = logging.getLogger(__name__)


class _NovaHypervisor:
    """Nova's connection to libvirt, which does not block other threads."""

    def __init__(self, host: libvirt_host.Host) -> None:
        self._host = host

    def domains(self) -> Iterator[hypervisor.Description]:
        # Not list_guests(): its Guests do not tell whether they run without
        # asking for more than that.
        for dom in self._host.list_instance_domains(only_running=False):
            yield from hypervisor.descriptions(dom.XMLDesc, dom.isActive)

    def node_device(self, name: str) -> hypervisor.NodeDevice:
        device: hypervisor.NodeDevice = self._host.device_lookup_by_name(name)
        return device


class GPUPassthruDriver(libvirt_driver.LibvirtDriver):
    """Gives whole GPUs to guests whose flavor asks for free_gpus."""

    # Where the host's PCI devices are read; tests put a folder in its place.
    sysfs_root = '/sys'

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        conf.register_opts(CONF)
        self._gpus = gpus.HostGPUs(pci.Sysfs(self.sysfs_root),
                                   _NovaHypervisor(self._host))

    def init_host(self, host: str) -> None:
        """Finds and detaches the GPUs before any guest is resumed."""
        try:
            releases.check(nova_version.version_string())
            policy = conf.read_policy(CONF)
        except exceptions.GPUPassthruError as error:
            raise exception.InvalidConfiguration(str(error)) from error
        super().init_host(host)
        if CONF.libvirt.virt_type not in ('kvm', 'qemu'):
            LOG.warning('GPUs are not offered: [libvirt] virt_type is %s, and '
                        'only kvm and qemu can be given host devices.',
                        CONF.libvirt.virt_type)
            return
        self._gpus.start(policy, CONF.gpu_passthru.detach_timeout)
        if self._gpus.has_candidates():
            self._gpus.restore(_requests_on(host))

    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        data: dict[str, Any] = super().get_available_resource(nodename)
        self._gpus.refresh()
        if self._gpus.has_candidates():
            # An object under a key of our own: ComputeCapabilitiesFilter
            # would compare a key named free_gpus with the flavor's value as
            # text, and refuse this host.
            data['stats'] = {**data.get('stats', {}),
                             'gpu_passthru': self._gpus.usage().to_json()}
        return data

    def prepare_for_spawn(self, instance: 'objects.Instance') -> None:
        """Claims cards before Nova makes networks and volumes."""
        self._claim(instance)
        super().prepare_for_spawn(instance)

    def failed_spawn_cleanup(self, instance: 'objects.Instance') -> None:
        super().failed_spawn_cleanup(instance)
        self._gpus.release(instance.uuid)

    def spawn(self, context: nova_context.RequestContext,
              instance: 'objects.Instance', *args: Any,
              **kwargs: Any) -> None:
        with contextlib.ExitStack() as undo:
            if not self._gpus.has_claim(instance.uuid):
                undo.callback(self._gpus.release, instance.uuid)
            self._claim(instance)
            super().spawn(context, instance, *args, **kwargs)
            undo.pop_all()

    def reboot(self, context: nova_context.RequestContext,
               instance: 'objects.Instance', *args: Any,
               **kwargs: Any) -> None:
        with self._gpus.kept(instance.uuid):
            super().reboot(context, instance, *args, **kwargs)

    def power_on(self, context: nova_context.RequestContext,
                 instance: 'objects.Instance', *args: Any,
                 **kwargs: Any) -> None:
        with self._gpus.kept(instance.uuid):
            super().power_on(context, instance, *args, **kwargs)

    def resume_state_on_host_boot(self, context: nova_context.RequestContext,
                                  instance: 'objects.Instance', *args: Any,
                                  **kwargs: Any) -> None:
        with self._gpus.kept(instance.uuid):
            super().resume_state_on_host_boot(context, instance, *args,
                                              **kwargs)

    def destroy(self, context: nova_context.RequestContext,
                instance: 'objects.Instance', *args: Any,
                **kwargs: Any) -> None:
        with contextlib.ExitStack() as stack:
            if instance.task_state == task_states.REBUILDING:
                # Nova will spawn the instance again, here.
                stack.enter_context(self._gpus.kept(instance.uuid))
            super().destroy(context, instance, *args, **kwargs)
            self._gpus.release(instance.uuid)

    def _get_guest_xml(self, context: nova_context.RequestContext,
                       instance: 'objects.Instance', *args: Any,
                       **kwargs: Any) -> str:
        """Adds the instance's cards to the domain that Nova describes.

        Private, but the one place that every description of a guest comes
        from, and Nova has no public hook for devices that it does not track.
        Checked with Nova 31.3.1, 32.2.1, 33.0.2 and 34.0.0.
        """
        xml: str = super()._get_guest_xml(context, instance, *args, **kwargs)
        cards = self._claim(instance)
        try:
            return domain.add_cards(xml, cards) if cards else xml
        except exceptions.UnsupportedGuest as error:
            raise exception.InstanceUnacceptable(
                instance_id=instance.uuid, reason=str(error)) from error

    def _claim(self, instance: objects.Instance
               ) -> tuple[host_cards.Card, ...]:
        """Gives an instance the cards that its flavor asks for.

        :raises exception.InstanceUnacceptable: if the flavor cannot be
            understood
        :raises exception.ComputeResourcesUnavailable: if this host cannot
            give them; Nova tries the next host
        """
        try:
            request = _request_of(instance)
            if request is None:
                return ()
            return self._gpus.claim(instance.uuid, request)
        except exceptions.InvalidFlavor as error:
            raise exception.InstanceUnacceptable(
                instance_id=instance.uuid, reason=str(error)) from error
        except exceptions.NotEnoughGPUs as error:
            LOG.warning('%s', error, instance=instance)
            raise exception.ComputeResourcesUnavailable(
                reason=str(error)) from error


def _request_of(instance: 'objects.Instance') -> flavor.GPURequest | None:
    return flavor.parse(flavor.extra_specs_of(instance.flavor))


def _requests_on(host: str) -> Iterator[tuple[str, flavor.GPURequest]]:
    """Finds the instances of this host that ask for GPUs."""
    for instance in objects.InstanceList.get_by_host(
            nova_context.get_admin_context(), host,
            expected_attrs=['flavor']):
        try:
            request = _request_of(instance)
        except exceptions.InvalidFlavor as error:
            LOG.warning('%s It cannot start until that is corrected.', error,
                        instance=instance)
            continue
        if request is not None:
            yield instance.uuid, request
