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

"""Orders hosts so that GPUs go to whom they are for.

Both weighers are switched on beside Nova's by one line of nova.conf (of
several lines, oslo.config takes the last):

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,\
nova_gpu_passthru.scheduler.weights.all_weighers
"""

from typing import Any

from nova import conf as nova_conf
from nova import objects
from nova.scheduler import utils
from nova.scheduler import weights
from oslo_log import log as logging

from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.scheduler import reports

CONF = nova_conf.CONF
LOG = logging.getLogger(__name__)

conf.register_scheduler_opts(CONF)


class GPUHostAvoidanceWeigher(weights.BaseHostWeigher):
    """Keeps guests without GPUs off hosts that have some free.

    Among those hosts it prefers the ones with fewer free.
    """

    def weight_multiplier(self, host_state: Any) -> float:
        return _multiplier(host_state, 'gpu_host_avoidance_weight_multiplier')

    def _weigh_object(self, obj: Any,
                      weight_properties: 'objects.RequestSpec') -> float:
        free = _report(obj).free_gpus
        if free == 0 or _request(weight_properties) is not None:
            return 0.0
        # Nova stretches the weights of all hosts to a range of 1. Any GPU
        # host has to stay far from a plain one, whatever the largest has.
        return -1.0 - min(free, 1000) / 10000


class GPUPackingWeigher(weights.BaseHostWeigher):
    """Sends guests with GPUs where the fewest are left for others.

    Hosts stay empty for guests that need all of one.
    """

    def weight_multiplier(self, host_state: Any) -> float:
        return _multiplier(host_state, 'gpu_packing_weight_multiplier')

    def _weigh_object(self, obj: Any,
                      weight_properties: 'objects.RequestSpec') -> float:
        request = _request(weight_properties)
        if request is None:
            return 0.0
        try:
            placed = reports.placed_on(obj) * request.count
        except ValueError:
            placed = 0
        return float(placed - _report(obj).free(request.model))


def all_weighers() -> list[type[weights.BaseHostWeigher]]:
    """Names the weighers to Nova."""
    return [GPUHostAvoidanceWeigher, GPUPackingWeigher]


def _multiplier(host: Any, name: str) -> float:
    value: float = utils.get_weight_multiplier(host, name,
                                               CONF.gpu_passthru[name])
    return value


def _report(host: Any) -> reports.Report:
    try:
        return reports.read(host)
    except ValueError:
        # The filter says what is wrong with it.
        return reports.Report()


def _request(spec: 'objects.RequestSpec') -> flavor.GPURequest | None:
    try:
        return flavor.parse(flavor.extra_specs_of(spec.flavor))
    except exceptions.InvalidFlavor:
        return None
