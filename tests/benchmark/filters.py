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

"""FreeGPUsFilter beside ComputeCapabilitiesFilter, at 10,000 hosts."""

from collections.abc import Iterator
import logging

from nova import objects
from nova.scheduler import filters
from nova.scheduler.filters import compute_capabilities_filter

from nova_gpu_passthru.scheduler import filters as gpu_filters
from tests.benchmark import measure
from tests.unit.scheduler import hosts

HOSTS = 10_000


def run() -> Iterator[measure.Comparison]:
    # Nova's own loop makes a debug line for each host that does not pass.
    logging.disable(logging.INFO)
    candidates = [hosts.gpu_host(f'host{number}', free=number % 9)
                  for number in range(HOSTS)]
    # Each filter reads its own key, for the same decision.
    ours = hosts.request({'free_gpus': '>= 4'})
    novas = hosts.request(
        {'capabilities:stats:gpu_passthru:free_gpus': '>= 4'})

    def passing(filter_: filters.BaseHostFilter,
                spec: objects.RequestSpec) -> int:
        return len(list(filter_.filter_all(candidates, spec)))

    gpu_filter = gpu_filters.FreeGPUsFilter()
    stock_filter = compute_capabilities_filter.ComputeCapabilitiesFilter()
    assert passing(gpu_filter, ours) == passing(stock_filter, novas)
    for what, our_spec, novas_spec in (
            ('guests with GPUs', ours, novas),
            ('guests without', hosts.request({}), hosts.request({}))):
        yield measure.Comparison(
            f'Filter one of {HOSTS:,} hosts, {what}', 'µs',
            ours=measure.best(
                lambda: passing(gpu_filter, our_spec)) / HOSTS * 1e6,
            novas=measure.best(
                lambda: passing(stock_filter, novas_spec)) / HOSTS * 1e6,
            goal=1)
