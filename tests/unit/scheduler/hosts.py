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

"""Hosts and requests as Nova's scheduler has them."""

import json

from nova import objects
from nova.scheduler import host_manager
from nova.tests.unit.scheduler import fakes


def host(name: str, **stats: str | None) -> host_manager.HostState:
    """A host whose compute node reported these statistics."""
    node = fakes.COMPUTE_NODES[0].obj_clone()
    node.host = node.hypervisor_hostname = name
    node.stats = stats
    state = host_manager.HostState(name, name, None)
    state.update(compute=node)
    return state


def unreported(name: str) -> host_manager.HostState:
    """A host that is known and has not reported anything yet."""
    node = fakes.COMPUTE_NODES[0].obj_clone()
    node.free_disk_gb = None
    state = host_manager.HostState(name, name, None)
    state.update(compute=node)
    return state


def report(free: int, **by_model: int) -> str:
    """What a GPU host reports; models are written as m10de_2330."""
    models = {name[1:].replace('_', ':'): number
              for name, number in by_model.items()}
    return json.dumps({'free_gpus': free, 'total_gpus': max(8, free),
                       'free_by_model': models or {'10de:2330': free}})


def gpu_host(name: str, free: int, **by_model: int
             ) -> host_manager.HostState:
    return host(name, gpu_passthru=report(free, **by_model))


def request(extra_specs: dict[str, str] | None = None,
            hints: dict[str, list[str]] | None = None
            ) -> objects.RequestSpec:
    flavor = objects.Flavor(name='small', flavorid='g1', memory_mb=1024,
                            vcpus=1, root_gb=1, ephemeral_gb=0, swap=0)
    if extra_specs is not None:
        flavor.extra_specs = extra_specs
    spec = objects.RequestSpec(flavor=flavor, numa_topology=None,
                               pci_requests=None)
    if hints is not None:
        spec.scheduler_hints = hints
    return spec
