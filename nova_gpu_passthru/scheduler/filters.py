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

    Where a flavor asks Placement too, that has counted. Allocations from what
    is no pool of the host are dropped, and where the flavor names a model,
    from pools of other models: Placement does not know that key.

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
            report = reports.read(host)
            free = (report.free(request.model) -
                    request.count * reports.placed_on(host))
        except ValueError as error:
            LOG.warning('%(host)s does not pass: its gpu_passthru statistics '
                        'make no sense: %(error)s',
                        {'host': host, 'error': error})
            return False
        if request.asks_placement and getattr(host, 'allocation_candidates',
                                              None):
            return self._has_candidate(host, request, report)
        if free < request.count:
            LOG.debug('%(host)s does not pass: it has %(free)d free, and the '
                      'flavor asks for %(request)s',
                      {'host': host, 'free': free, 'request': request})
            return False
        return True

    def _has_candidate(self, host: Any, request: flavor.GPURequest,
                       report: reports.Report) -> bool:
        """Drops what Placement would take from elsewhere than fitting pools.

        It has counted, and more than a report can tell: when a guest goes,
        its cards are free in Placement at once, but in the report only after
        the next period.
        """
        pools = {reports.pool_uuid(host.uuid, model)
                 for model in report.free_by_model
                 if request.model in (None, model)}

        def fits(candidate: Mapping[str, Any]) -> bool:
            return all(uuid in pools for uuid, allocation in
                       candidate['allocations'].items()
                       if resource_classes.PGPU in allocation['resources'])

        return bool(self.filter_candidates(host, fits))
