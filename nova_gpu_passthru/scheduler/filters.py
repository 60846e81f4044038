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

"""Lets only hosts through that have the GPUs a flavor asks for."""

from collections.abc import Iterable, Mapping
from typing import Any

from nova import objects
from nova.scheduler import filters
from nova.scheduler import utils
import os_resource_classes as resource_classes
from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.scheduler import reports

LOG = logging.getLogger(__name__)


class FreeGPUsFilter(filters.CandidateFilterMixin, filters.BaseHostFilter):
    """Passes hosts with enough free GPUs, and any host to other flavors.

    Where a flavor names a model and asks Placement too, allocations from
    pools of other models are dropped: Placement does not know that key.

    A rebuild stays on its host with the cards that it has, so it is not
    filtered.
    """

    RUN_ON_REBUILD = False

    def filter_all(self, filter_obj_list: Iterable[Any],
                   spec_obj: 'objects.RequestSpec') -> list[Any]:
        """Filters all hosts of a request, reading the flavor once."""
        hosts = list(filter_obj_list)
        if utils.request_is_rebuild(spec_obj):
            return hosts
        try:
            request = flavor.parse(flavor.extra_specs_of(spec_obj.flavor))
        except exceptions.InvalidFlavor as error:
            invalid = error
        else:
            return hosts if request is None else [
                host for host in hosts if self._passes(host, request)]
        # Not while it is handled: oslo.log would add it once more.
        LOG.error('No host fits flavor %(name)s (%(id)s): %(error)s',
                  {'name': spec_obj.flavor.name,
                   'id': spec_obj.flavor.flavorid, 'error': invalid})
        return []

    def host_passes(self, host_state: Any,
                    spec_obj: 'objects.RequestSpec') -> bool:
        return bool(self.filter_all([host_state], spec_obj))

    def _passes(self, host: Any, request: flavor.GPURequest) -> bool:
        try:
            free = (reports.read(host).free(request.model) -
                    request.count * reports.placed_on(host))
        except ValueError as error:
            LOG.warning('%(host)s does not pass: its gpu_passthru statistics '
                        'make no sense: %(error)s',
                        {'host': host, 'error': error})
            return False
        if free < request.count:
            LOG.debug('%(host)s does not pass: it has %(free)d free, and the '
                      'flavor asks for %(request)s',
                      {'host': host, 'free': free, 'request': request})
            return False
        return self._has_candidate(host, request)

    def _has_candidate(self, host: Any, request: flavor.GPURequest) -> bool:
        """Drops what Placement would take from pools of other models."""
        if not (request.asks_placement and request.model and
                getattr(host, 'allocation_candidates', None)):
            return True
        pool = reports.pool_uuid(host.uuid, request.model)

        def fits(candidate: Mapping[str, Any]) -> bool:
            return all(uuid == pool for uuid, allocation in
                       candidate['allocations'].items()
                       if resource_classes.PGPU in allocation['resources'])

        return bool(self.filter_candidates(host, fits))
