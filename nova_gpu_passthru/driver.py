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

from collections.abc import Iterable
import contextlib
import dataclasses
from typing import Any

from nova.compute import task_states
from nova.compute import vm_states
from nova import conf as nova_conf
from nova import context as nova_context
from nova import exception
from nova import objects
from nova import version as nova_version
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import guest as libvirt_guest
from oslo_log import log as logging

from nova_gpu_passthru import allocation
from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import gpus
from nova_gpu_passthru.host import metrics
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import pools as host_pools
from nova_gpu_passthru import nova_host
from nova_gpu_passthru import placement
from nova_gpu_passthru import releases
from nova_gpu_passthru import suspension
from nova_gpu_passthru import telemetry

CONF = nova_conf.CONF
LOG = logging.getLogger(__name__)

# Nova destroys the guest but will bring it back to this host: a rebuild
# spawns it again, and a resize to another cell may be reverted.
_COMING_BACK = (task_states.REBUILDING, task_states.RESIZE_PREP,
                task_states.RESIZE_MIGRATING)

# Whose resize Nova may still revert. One that was interrupted in its confirm
# is led out of that by an administrator, and Nova never confirms it again.
_MAY_REVERT = (vm_states.RESIZED, vm_states.ERROR)


class GPUPassthruDriver(libvirt_driver.LibvirtDriver):
    """Gives whole GPUs to guests whose flavor asks for free_gpus."""

    # Where the host's PCI devices are read, and the folder that has its proc
    # and dev; tests put others in their place.
    sysfs_root = '/sys'
    host_root = '/'

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        conf.register_opts(CONF)
        self._telemetry = telemetry.Telemetry()
        self._metrics = metrics.Report(self._telemetry.registry)
        self._gpus = gpus.HostGPUs(pci.Sysfs(self.sysfs_root),
                                   nova_host.NovaHypervisor(self._host),
                                   conf.records_of(CONF), self._telemetry,
                                   self.host_root)
        self._suspension = suspension.Suspension(self._host, self._gpus)
        self._allocation = allocation.Allocation(
            self._host, self._gpus, placement.Pools(virtapi))
        self._has_metrics = False

    # The host

    @nova_host.hook
    def init_host(self, host: str) -> None:
        """Finds and detaches the GPUs before any guest is resumed."""
        try:
            releases.check(nova_version.version_string())
            conf.check(CONF)
            policy = conf.read_policy(CONF)
            terms = conf.read_terms(CONF)
        except exceptions.GPUPassthruError as error:
            raise exception.InvalidConfiguration(str(error)) from error
        super().init_host(host)
        if CONF.libvirt.virt_type not in conf.VIRT_TYPES:
            LOG.warning('GPUs are not offered: [libvirt] virt_type is %s, and '
                        'only kvm and qemu can be given host devices.',
                        CONF.libvirt.virt_type)
            return
        if CONF.pci.device_spec:
            policy = dataclasses.replace(
                policy,
                nova_gives=nova_host.given_by_nova(CONF.pci.device_spec))
        self._gpus.start(policy, CONF.gpu_passthru.detach_timeout, terms)
        for instance in self._allocation.restore(host):
            self._suspension.recover(instance)

    @nova_host.hook
    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        data: dict[str, Any] = super().get_available_resource(nodename)
        self._gpus.refresh()
        if self._gpus.has_candidates():
            # An object under a key of our own: ComputeCapabilitiesFilter
            # would compare a key named free_gpus with the flavor's value as
            # text, and refuse this host.
            usage = self._gpus.usage()
            data['stats'] = {**data.get('stats', {}),
                             'gpu_passthru': usage.to_json()}
            self._report_metrics(usage.pools)
        elif self._has_metrics:
            # The last card is gone.
            self._report_metrics(())
        return data

    def _report_metrics(self, pools: Iterable[host_pools.Pool]) -> None:
        self._has_metrics = True
        self._metrics.update(self._gpus.cards, pools)
        self._telemetry.write(CONF.gpu_passthru.metrics_file)

    @nova_host.hook
    def update_provider_tree(self, provider_tree: Any, nodename: str,
                             *args: Any, **kwargs: Any) -> None:
        super().update_provider_tree(provider_tree, nodename, *args, **kwargs)
        self._allocation.report(provider_tree, nodename)

    # A guest that comes

    @nova_host.hook
    def prepare_for_spawn(self, instance: 'objects.Instance') -> None:
        """Claims cards before Nova makes networks and volumes."""
        self._allocation.claim(instance)
        super().prepare_for_spawn(instance)

    @nova_host.hook
    def failed_spawn_cleanup(self, instance: 'objects.Instance') -> None:
        super().failed_spawn_cleanup(instance)
        self._gpus.release(instance.uuid)

    @nova_host.hook
    def spawn(self, context: nova_context.RequestContext,
              instance: 'objects.Instance', *args: Any,
              **kwargs: Any) -> None:
        with contextlib.ExitStack() as undo:
            if not self._gpus.held_by(instance.uuid):
                undo.callback(self._gpus.release, instance.uuid)
            self._allocation.claim(instance)
            super().spawn(context, instance, *args, **kwargs)
            undo.pop_all()

    @nova_host.hook
    def _get_guest_xml(self, context: nova_context.RequestContext,
                       instance: 'objects.Instance', *args: Any,
                       **kwargs: Any) -> str:
        """Adds the instance's cards to the domain that Nova describes.

        Private, but the one place that every description of a guest comes
        from, and Nova has no public hook for devices that it does not track.
        Checked with Nova 31.3.1, 32.2.1, 33.0.2 and 34.0.0.
        """
        xml: str = super()._get_guest_xml(context, instance, *args, **kwargs)
        cards = self._allocation.claim(instance)
        for_revert = self._gpus.for_revert(instance['uuid'])
        if not cards and not for_revert:
            return xml
        try:
            return domain.add_cards(
                xml, cards, for_revert, CONF.gpu_passthru.guest_numa_placement)
        except exceptions.UnsupportedGuest as error:
            raise exception.InstanceUnacceptable(
                instance_id=instance.uuid, reason=str(error)) from error

    @nova_host.hook
    def _create_guest(self, context: nova_context.RequestContext, xml: str,
                      instance: 'objects.Instance', power_on: bool = True,
                      pause: bool = False, *args: Any,
                      **kwargs: Any) -> libvirt_guest.Guest:
        """Finds the card that keeps a guest from starting.

        Private, but the one place where Nova starts guests with cards, save
        after a snapshot; what libvirt said is lost further up. Checked with
        Nova 31.3.1, 32.2.1, 33.0.2 and 34.0.0.
        """
        with contextlib.ExitStack() as stack:
            if (power_on or pause) and self._gpus.has_candidates():
                stack.enter_context(self._gpus.starting(instance.uuid))
            return super()._create_guest(context, xml, instance, power_on,
                                         pause, *args, **kwargs)

    # A guest that stays: Nova may undefine its domain meanwhile

    @nova_host.hook
    def reboot(self, context: nova_context.RequestContext,
               instance: 'objects.Instance', *args: Any,
               **kwargs: Any) -> None:
        if (self._gpus.for_revert(instance.uuid) and
                instance.vm_state not in _MAY_REVERT):
            self._gpus.confirm(instance.uuid)
        with self._gpus.kept(instance.uuid):
            super().reboot(context, instance, *args, **kwargs)

    @nova_host.hook
    def power_on(self, context: nova_context.RequestContext,
                 instance: 'objects.Instance', *args: Any,
                 **kwargs: Any) -> None:
        with self._gpus.kept(instance.uuid):
            super().power_on(context, instance, *args, **kwargs)

    @nova_host.hook
    def resume_state_on_host_boot(self, context: nova_context.RequestContext,
                                  instance: 'objects.Instance', *args: Any,
                                  **kwargs: Any) -> None:
        with self._gpus.kept(instance.uuid):
            super().resume_state_on_host_boot(context, instance, *args,
                                              **kwargs)

    @nova_host.hook
    def suspend(self, context: nova_context.RequestContext,
                instance: 'objects.Instance') -> None:
        """Takes the cards out first: libvirt saves no guest that has any."""
        with self._suspension.suspending(instance):
            super().suspend(context, instance)

    @nova_host.hook
    def resume(self, context: nova_context.RequestContext,
               instance: 'objects.Instance', *args: Any,
               **kwargs: Any) -> None:
        with self._suspension.resuming(
                instance, lambda: self.suspend(context, instance)):
            super().resume(context, instance, *args, **kwargs)

    @nova_host.hook
    def unrescue(self, context: nova_context.RequestContext,
                 instance: 'objects.Instance') -> None:
        try:
            self._gpus.check_own(instance.uuid)
        except exceptions.NotEnoughGPUs as error:
            raise exception.InstanceUnacceptable(
                instance_id=instance.uuid, reason=str(error)) from error
        super().unrescue(context, instance)

    @nova_host.hook
    def _resume_guest_after_snapshot(
            self, context: nova_context.RequestContext, live_snapshot: bool,
            original_power_state: int, instance: 'objects.Instance',
            guest: libvirt_guest.Guest) -> None:
        """Gives back what suspend() took out for a cold snapshot.

        Private, but Nova resumes the guest here without resume(). Checked
        with Nova 31.3.1, 32.2.1, 33.0.2 and 34.0.0.
        """
        super()._resume_guest_after_snapshot(
            context, live_snapshot, original_power_state, instance, guest)
        self._suspension.give_back(instance)

    # A guest that moves

    @nova_host.hook
    def finish_migration(self, context: nova_context.RequestContext,
                         migration: 'objects.Migration',
                         instance: 'objects.Instance', *args: Any,
                         **kwargs: Any) -> None:
        if (self._gpus.held_by(instance.uuid) and
                migration.source_compute == migration.dest_compute):
            self._gpus.keep_for_revert(instance.uuid)
        super().finish_migration(context, migration, instance, *args,
                                 **kwargs)

    @nova_host.hook
    def finish_revert_migration(self, context: nova_context.RequestContext,
                                instance: 'objects.Instance', *args: Any,
                                **kwargs: Any) -> None:
        self._gpus.revert(instance.uuid)
        super().finish_revert_migration(context, instance, *args, **kwargs)

    @nova_host.hook
    def confirm_migration(self, context: nova_context.RequestContext,
                          migration: 'objects.Migration',
                          instance: 'objects.Instance',
                          network_info: Any) -> None:
        super().confirm_migration(context, migration, instance, network_info)
        if not self._gpus.held_by(instance.uuid):
            return
        if migration.source_compute == migration.dest_compute:
            self._gpus.confirm(instance.uuid)
        else:
            self._gpus.release(instance.uuid)

    @nova_host.hook
    def check_can_live_migrate_destination(
            self, context: nova_context.RequestContext,
            instance: 'objects.Instance', *args: Any, **kwargs: Any) -> Any:
        self._refuse_live_migration(instance)
        return super().check_can_live_migrate_destination(
            context, instance, *args, **kwargs)

    @nova_host.hook
    def check_can_live_migrate_source(
            self, context: nova_context.RequestContext,
            instance: 'objects.Instance', *args: Any, **kwargs: Any) -> Any:
        self._refuse_live_migration(instance)
        return super().check_can_live_migrate_source(
            context, instance, *args, **kwargs)

    def _refuse_live_migration(self, instance: 'objects.Instance') -> None:
        try:
            asks = nova_host.request_of(instance) is not None
        except exceptions.InvalidFlavor:
            asks = True
        if asks or self._gpus.held_by(instance.uuid):
            raise exception.MigrationPreCheckError(
                reason=f'instance {instance.uuid} has GPUs, which cannot move '
                       f'while it runs; migrate it cold')

    # A guest that goes

    @nova_host.hook
    def destroy(self, context: nova_context.RequestContext,
                instance: 'objects.Instance', *args: Any,
                **kwargs: Any) -> None:
        with contextlib.ExitStack() as stack:
            if self._comes_back(context, instance):
                stack.enter_context(self._gpus.kept(instance.uuid))
            super().destroy(context, instance, *args, **kwargs)

    @nova_host.hook
    def cleanup(self, context: nova_context.RequestContext,
                instance: 'objects.Instance', *args: Any,
                **kwargs: Any) -> Any:
        """Ends the claim: Nova is done with the instance on this host."""
        result = super().cleanup(context, instance, *args, **kwargs)
        self._gpus.release(instance.uuid)
        return result

    def _comes_back(self, context: nova_context.RequestContext,
                    instance: 'objects.Instance') -> bool:
        if not self._gpus.held_by(instance.uuid):
            return False
        if instance.task_state == task_states.RESIZE_REVERTING:
            return nova_host.reverts_on_same_host(context, instance)
        return instance.task_state in _COMING_BACK
