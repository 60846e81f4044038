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

"""The releases of Nova that this driver works with."""

import re

from nova_gpu_passthru import exceptions

# 2025.1 to 2026.2.
OLDEST, NEWEST = 31, 34


def check(version: str) -> None:
    """Refuses a Nova whose hooks may not be what the driver expects.

    :param version: Nova's, such as 34.0.0
    :raises UnsupportedNova: if it is older or newer
    """
    match = re.match(r'\d+', version)
    if match is None or not OLDEST <= int(match.group()) <= NEWEST:
        raise exceptions.UnsupportedNova(
            f'nova-gpu-passthru works with Nova {OLDEST} (2025.1) to '
            f'{NEWEST} (2026.2), but this is Nova {version}. Install the '
            f'release of nova-gpu-passthru that matches it.')
