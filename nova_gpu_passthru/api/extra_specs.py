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

"""Nova's validators for the extra specs of this package.

Nova's API calls them when an extra spec is set with microversion 2.86 or
later (entry point group nova.api.extra_spec_validators). Each sees one key
alone; where keys contradict each other, the filter and the driver say so.
"""

from nova.api.validation.extra_specs import base

from nova_gpu_passthru import flavor

_COUNT_HELP = (
    "The number of whole GPUs of the guest, as '>=N' or 'N' with N from 1 to "
    '9999. The host has to have that many free; the guest gets exactly N.')


def register() -> list[base.ExtraSpecValidator]:
    """Gives Nova the validators."""
    return [
        base.ExtraSpecValidator(
            name=flavor.FREE_GPUS, description=_COUNT_HELP,
            value={'type': str, 'description': _COUNT_HELP,
                   'pattern': flavor.COUNT_PATTERN}),
        base.ExtraSpecValidator(
            name=flavor.SCOPED_FREE_GPUS,
            description=f'{_COUNT_HELP} The same as {flavor.FREE_GPUS}, for '
                        f'clouds with AggregateInstanceExtraSpecsFilter.',
            value={'type': str, 'description': _COUNT_HELP,
                   'pattern': flavor.COUNT_PATTERN}),
        base.ExtraSpecValidator(
            name=flavor.MODEL,
            description='The model that all GPUs of the guest have to be.',
            value={'type': str,
                   'description': 'Vendor and device id in hexadecimal, such '
                                  'as 10de:2330.',
                   'pattern': flavor.MODEL_PATTERN}),
    ]
