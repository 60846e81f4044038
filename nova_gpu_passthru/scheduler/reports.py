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

"""Reads what a host reports of its GPUs in the statistics of its ComputeNode.

nova_gpu_passthru.host.pools.Usage writes it.
"""

from collections.abc import Mapping
import dataclasses
import json
from typing import Any
import uuid

KEY = 'gpu_passthru'


@dataclasses.dataclass(frozen=True)
class Report:
    """The GPUs of a host; the numbers of one that reports none are 0."""

    free_gpus: int = 0
    total_gpus: int = 0
    free_by_model: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def free(self, model: str | None) -> int:
        """How many of a model are free; of any, where it is None."""
        return (self.free_gpus if model is None else
                self.free_by_model.get(model, 0))


def read(host: Any) -> Report:
    """Reads the report of one host.

    :param host: its nova.scheduler.host_manager.HostState; one that has not
        reported anything yet has no statistics at all
    :raises ValueError: if the report makes no sense
    """
    text = (getattr(host, 'stats', None) or {}).get(KEY)
    if text is None:
        return Report()
    try:
        said = json.loads(text)
    except RecursionError:
        raise ValueError('it is nested too deeply') from None
    if not isinstance(said, dict):
        raise ValueError(f'{text!r} is no object')
    by_model = said.get('free_by_model')
    if not isinstance(by_model, dict):
        raise ValueError('free_by_model is no object')
    free, total = (_count(name, said.get(name))
                   for name in ('free_gpus', 'total_gpus'))
    if free > total:
        raise ValueError(f'{free} of {total} GPUs cannot be free')
    return Report(free, total,
                  {model: _count(f'free_by_model of {model}', number)
                   for model, number in by_model.items()})


def placed_on(host: Any) -> int:
    """How many instances of this request went to a host already.

    Nova counts them in num_instances as it places them, for each request
    anew, and leaves the statistics as they are
    (nova.scheduler.host_manager.HostState.consume_from_request).

    :param host: its HostState
    :raises ValueError: if the statistics make no sense
    """
    stats = getattr(host, 'stats', None) or {}
    reported = int(stats.get('num_instances', 0))
    return max(0, int(host.num_instances) - reported)


def pool_uuid(node: str, model: str) -> str:
    """The uuid of a pool's provider in Placement.

    It follows from what the scheduler knows anyway.

    :param node: the compute node's uuid, which is its provider's too
    :param model: vendor and device id, such as 10de:2330
    """
    return str(uuid.uuid5(uuid.UUID(node), model))


def _count(name: str, value: Any) -> int:
    # A bool is an int to Python, not to us. No flavor can ask for more than
    # 9999, and what float() cannot hold would break the weighers.
    if type(value) is not int or not 0 <= value <= 9999:
        raise ValueError(f'{name} is {value!r}, which is no count')
    return value
