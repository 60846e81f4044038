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

"""What the driver needs of Nova beside its hooks."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import inspect
from typing import Any, TypeVar

import libvirt
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.pci import whitelist as nova_whitelist
from nova.virt import hardware
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu_passthru import affinity
from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import hypervisor
from nova_gpu_passthru.host import pci

LOG = logging.getLogger(__name__)


_Method = TypeVar('_Method', bound=Callable[..., Any])


def hook(method: _Method) -> _Method:
    """Marks a method that overrides one of Nova's LibvirtDriver.

    It gets the signature of Nova's, which differs between releases, while it
    hands on what it does not need as it came.

    :raises AttributeError: if Nova has no such method any more
    """
    overridden = getattr(libvirt_driver.LibvirtDriver, method.__name__)
    setattr(method, '__signature__', inspect.signature(overridden))
    return method


class NovaHypervisor(hypervisor.Connection):
    """Nova's connection to libvirt, which does not block other threads.

    :param host: Nova's libvirt host, which opens the connection anew after
        libvirt was restarted
    """

    def __init__(self, host: libvirt_host.Host) -> None:
        self._host = host

    @property
    def _connection(self) -> Any:
        with _as_libvirt_says():
            return self._host.get_connection()

    def domains(self) -> Iterator[hypervisor.Description]:
        # Not the connection's list, whose domains would block, and not
        # list_guests(), whose Guests do not tell whether they run without
        # asking for more than that.
        with _as_libvirt_says():
            domains = self._host.list_instance_domains(only_running=False)
        for dom in domains:
            yield from hypervisor.descriptions(dom.XMLDesc, dom.isActive)


@contextlib.contextmanager
def _as_libvirt_says() -> Iterator[None]:
    """Raises what a Hypervisor may raise, where Nova has no connection."""
    try:
        yield
    except exception.HypervisorUnavailable as error:
        raise libvirt.libvirtError(str(error)) from error


def request_of(instance: 'objects.Instance') -> flavor.GPURequest | None:
    """Reads what an instance asks for, None if it asks for no GPU.

    :raises InvalidFlavor: if its flavor cannot be understood
    """
    # Not instance.flavor: Nova's own tests hand plain dictionaries over.
    request = flavor.parse(flavor.extra_specs_of(instance['flavor']))
    if request is None or instance.numa_topology is None:
        return request
    nodes = frozenset(cell.id for cell in instance.numa_topology.cells)
    policy = hardware.get_pci_numa_policy_constraint(instance.flavor,
                                                     instance.image_meta)
    return dataclasses.replace(
        request, affinity=affinity.Affinity(nodes, policy or affinity.LEGACY))


def requests_on(host: str
                ) -> Iterator[tuple['objects.Instance', flavor.GPURequest]]:
    """Finds the instances of a host that ask for GPUs.

    :param host: Nova's name of the host
    :returns: the instances and what each asks for
    """
    for instance in objects.InstanceList.get_by_host(
            nova_context.get_admin_context(), host,
            expected_attrs=['flavor', 'numa_topology', 'system_metadata']):
        try:
            request = request_of(instance)
        except exceptions.InvalidFlavor as error:
            invalid = error
        else:
            if request is not None:
                yield instance, request
            continue
        LOG.warning('%s It cannot start until that is corrected.', invalid,
                    instance=instance)


def given_by_nova(device_spec: Sequence[str]
                  ) -> Callable[[pci.PCIFunction], bool]:
    """Tells which functions Nova's own PCI tracker gives to guests.

    :param device_spec: the values of [pci] device_spec
    """
    whitelist = nova_whitelist.Whitelist(device_spec)

    def gives(function: pci.PCIFunction) -> bool:
        return function.address.domain <= 0xffff and (
            whitelist.device_assignable({
                'address': str(function.address), 'parent_addr': None,
                'vendor_id': f'{function.vendor:04x}',
                'product_id': f'{function.device:04x}',
                'dev_type': 'type-PCI'}) is not None)

    return gives


def reverts_on_same_host(context: nova_context.RequestContext,
                         instance: 'objects.Instance') -> bool:
    """Whether a resize that is being reverted never left its host."""
    migration = objects.Migration.get_by_instance_and_status(
        context, instance.uuid, 'reverting')
    return bool(migration.source_compute == migration.dest_compute)
