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

from collections.abc import Iterable
import json
from typing import Any

from nova import objects
from nova.scheduler import filters
from nova.scheduler import utils
from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor

LOG = logging.getLogger(__name__)


def free_on(stats: dict[str, str] | None, model: str | None) -> int:
    """Reads how many GPUs a host has free.

    :param stats: of the host's ComputeNode
    :param model: vendor and device id, such as 10de:2330; None for any
    :returns: the number, 0 for a host that reports none
    :raises ValueError: if what the host reports makes no sense
    """
    text = (stats or {}).get('gpu_passthru')
    if text is None:
        return 0
    report = json.loads(text)
    try:
        free = (report['free_gpus'] if model is None else
                report['free_by_model'].get(model, 0))
    except (AttributeError, KeyError, TypeError):
        raise ValueError('it has no count of free GPUs') from None
    if type(free) is not int or free < 0:
        raise ValueError(f'{free!r} is no count')
    return free


class FreeGPUsFilter(filters.BaseHostFilter):
    """Passes hosts with enough free GPUs, and any host to other flavors.

    A rebuild stays on its host with the cards that it has, so it is not
    filtered.
    """

    RUN_ON_REBUILD = False

    def filter_all(self, filter_obj_list: Iterable[Any],
                   spec_obj: objects.RequestSpec) -> list[Any]:
        """Filters all hosts of a request, reading the flavor once."""
        hosts = list(filter_obj_list)
        if utils.request_is_rebuild(spec_obj):
            return hosts
        try:
            request = flavor.parse(spec_obj.flavor.extra_specs if 'extra_specs'
                                   in spec_obj.flavor else None)
        except exceptions.InvalidFlavor as error:
            LOG.error('No host fits flavor %(flavor)s: %(error)s',
                      {'flavor': spec_obj.flavor.flavorid, 'error': error})
            return []
        if request is None:
            return hosts
        return [host for host in hosts if _has_free(host, request)]

    def host_passes(self, host_state: Any,
                    spec_obj: objects.RequestSpec) -> bool:
        return bool(self.filter_all([host_state], spec_obj))


def _has_free(host: Any, request: flavor.GPURequest) -> bool:
    try:
        free = free_on(host.stats, request.model)
    except ValueError as error:
        LOG.warning('%(host)s does not pass: its gpu_passthru statistics make '
                    'no sense: %(error)s', {'host': host, 'error': error})
        return False
    if free < request.count:
        LOG.debug('%(host)s does not pass: it has %(free)d free, and the '
                  'flavor asks for %(request)s',
                  {'host': host, 'free': free, 'request': request})
        return False
    return True
