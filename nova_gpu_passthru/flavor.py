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

"""What a flavor asks for. The one parser of our extra specs."""

from collections.abc import Mapping, Sequence
import dataclasses
import re
from typing import Any

from nova_gpu_passthru import affinity as guest_affinity
from nova_gpu_passthru import exceptions

FREE_GPUS = 'free_gpus'
# The same with a namespace, for clouds with AggregateInstanceExtraSpecsFilter,
# which refuses hosts for keys that have none.
SCOPED_FREE_GPUS = 'gpu_passthru:free_gpus'
MODEL = 'gpu_passthru:model'

# N, >=N and >= N; N is a positive number.
COUNT_PATTERN = r'(?:>= *)?([1-9][0-9]{0,3})'
MODEL_PATTERN = r'[0-9a-fA-F]{4}:[0-9a-fA-F]{4}'

# resources:PGPU, and its numbered groups (Placement's microversion 1.33).
_PGPU_KEY = re.compile(r'resources(?:[a-zA-Z0-9_-]{1,64})?:PGPU')


@dataclasses.dataclass(frozen=True)
class GPURequest:
    """What one instance asks for.

    :ivar count: the floor for the host and the exact number for the guest
    :ivar model: vendor and device id, such as 10de:2330; None for any
    :ivar asks_placement: whether the flavor has resources:PGPU
    :ivar allocated: from which pools Placement gave them, by model; empty
        where that is not known
    :ivar affinity: where the guest's memory is; not the flavor's to say
    """

    count: int
    model: str | None = None
    asks_placement: bool = False
    allocated: Mapping[str, int] = dataclasses.field(default_factory=dict)
    affinity: guest_affinity.Affinity = guest_affinity.Affinity()

    def parts(self) -> Sequence[tuple[str | None, int]]:
        """What has to be picked: how many of which model, None for any."""
        if sum(self.allocated.values()) == self.count:
            return sorted(self.allocated.items())
        return [(self.model, self.count)]

    def __str__(self) -> str:
        kind = f' of model {self.model}' if self.model else ''
        return (f'{self.count} GPU{"s" * (self.count != 1)}{kind}'
                f'{self.affinity}')


def extra_specs_of(flavor: Any) -> Mapping[str, str] | None:
    """Gives the extra specs of a Nova flavor that may have none loaded.

    :param flavor: a nova.objects.Flavor
    """
    return flavor.extra_specs if 'extra_specs' in flavor else None


def parse(extra_specs: Mapping[str, str] | None) -> GPURequest | None:
    """Reads what a flavor asks for.

    :param extra_specs: the flavor's extra specs
    :returns: the request, None for a flavor that asks for no GPU
    :raises InvalidFlavor: if a value cannot be understood, or if values
        contradict each other; key and text are quoted
    """
    specs = extra_specs or {}
    counts = {key: _count(key, specs[key])
              for key in (FREE_GPUS, SCOPED_FREE_GPUS) if key in specs}
    pgpus = {key: _pgpus(key, value) for key, value in specs.items()
             if _PGPU_KEY.fullmatch(key)}
    if pgpus:
        counts[' + '.join(pgpus)] = sum(pgpus.values())
    model = _model(specs[MODEL]) if MODEL in specs else None
    if not counts:
        if model is not None:
            raise exceptions.InvalidFlavor(
                f'The flavor has {MODEL} but does not say how many GPUs: '
                f'set {FREE_GPUS} too.')
        return None
    if len(set(counts.values())) > 1:
        said = ', '.join(f'{key} = {count}' for key, count in counts.items())
        raise exceptions.InvalidFlavor(
            f'The flavor contradicts itself on the number of GPUs ({said}): '
            f'make the values agree, or keep one key.')
    return GPURequest(next(iter(counts.values())), model, bool(pgpus))


def _count(key: str, value: str) -> int:
    match = re.fullmatch(COUNT_PATTERN, str(value), re.ASCII)
    if match is None:
        raise exceptions.InvalidFlavor(
            f'The flavor has {key} = {value!r}, which is no number of GPUs: '
            f"write '>=N' or 'N' with N from 1 to 9999.")
    return int(match.group(1))


def _pgpus(key: str, value: str) -> int:
    # Nova ignores a value that is no plain number, and so would not ask
    # Placement (nova.scheduler.utils.ResourceRequest).
    if not re.fullmatch('[1-9][0-9]{0,3}', str(value), re.ASCII):
        raise exceptions.InvalidFlavor(
            f'The flavor has {key} = {value!r}, which is no number of GPUs: '
            f'write a plain number from 1 to 9999.')
    return int(value)


def _model(value: str) -> str:
    if not re.fullmatch(MODEL_PATTERN, str(value), re.ASCII):
        raise exceptions.InvalidFlavor(
            f'The flavor has {MODEL} = {value!r}, which is no vendor and '
            f'device id: write them in hexadecimal, such as 10de:2330.')
    return value.lower()
