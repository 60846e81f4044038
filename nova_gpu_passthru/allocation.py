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

"""What instances ask for, with what Placement allocated, and what they get."""

from typing import Any

from nova import exception
from nova import objects
from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import gpus as host_gpus
from nova_gpu_passthru import nova_host
from nova_gpu_passthru import placement

LOG = logging.getLogger(__name__)


class Allocation:
    """Gives the GPUs of one host to instances of Nova.

    :param host: Nova's libvirt host
    :param gpus: the GPUs of this host
    :param pools: what Placement is told of them
    """

    def __init__(self, host: Any, gpus: host_gpus.HostGPUs,
                 pools: placement.Pools) -> None:
        self._host = host
        self._gpus = gpus
        self._pools = pools
        self._nodename = ''

    def restore(self, name: str) -> list['objects.Instance']:
        """Claims again, after a restart, for the instances of this host.

        :param name: the host's, as Nova knows it
        :returns: those that ask for GPUs
        """
        requests = (list(nova_host.requests_on(name))
                    if self._gpus.has_candidates() else [])
        if requests:
            # report() is not called before guests are resumed.
            self._nodename = self._host.get_hostname()
        self._gpus.restore(((instance.uuid, request)
                            for instance, request in requests),
                           self._completed)
        return [instance for instance, _ in requests]

    def report(self, provider_tree: Any, nodename: str) -> None:
        """Writes the pools of this host into Placement's providers.

        :param provider_tree: what Nova is about to report, a ProviderTree
        :param nodename: the compute node's name
        """
        self._nodename = nodename
        self._pools.update(provider_tree, nodename, self._gpus.usage().pools)

    def claim(self, instance: 'objects.Instance'
              ) -> tuple[host_cards.Card, ...]:
        """Gives an instance the cards that its flavor asks for.

        :returns: exactly as many, those that it has included
        :raises exception.InstanceUnacceptable: if the flavor cannot be
            understood
        :raises exception.ComputeResourcesUnavailable: if this host cannot
            give them; Nova tries the next host
        """
        try:
            request = nova_host.request_of(instance)
            if request is not None:
                request = self._completed(instance.uuid, request)
            return self._gpus.claim(instance['uuid'], request)
        except exceptions.InvalidFlavor as error:
            raise exception.InstanceUnacceptable(
                instance_id=instance.uuid, reason=str(error)) from error
        except exceptions.NotEnoughGPUs as error:
            refused = error
        # Not while it is handled: oslo.log would add it once more.
        LOG.warning('%s', refused, instance=instance)
        raise exception.ComputeResourcesUnavailable(
            reason=str(refused)) from refused

    def _completed(self, uuid: str,
                   request: flavor.GPURequest) -> flavor.GPURequest:
        """Adds to a request of an instance what Placement gave it.

        :raises NotEnoughGPUs: if Placement does not tell and has to
        """
        if not request.asks_placement:
            return request
        return self._pools.allocated_to(
            uuid, request, self._nodename, self._gpus.models,
            self._gpus.models_of(uuid))
