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

"""What holds the memory that a card's BARs map.

On a card that the firmware has shown its console on, that is often the
kernel's framebuffer (BOOTFB, efifb, simplefb). vfio-pci then cannot have the
region, and QEMU says "can't reserve".
"""

import os
import pathlib
import re

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import pci

_LINE = re.compile(r'(?P<indent> *)[0-9a-f]+-[0-9a-f]+ : (?P<owner>.*)')


def owners(path: str | os.PathLike[str] = '/proc/iomem'
           ) -> dict[pci.PCIAddress, tuple[str, ...]]:
    """Reads who has requested regions of each function's BARs.

    The kernel indents a region that lies within another
    (kernel/resource.c, r_show). Whoever may not see addresses sees zeros in
    their place, but the same lines.

    :returns: names of drivers and framebuffers by the function's address
    """
    found: dict[pci.PCIAddress, list[str]] = {}
    above: list[tuple[int, pci.PCIAddress | None]] = []
    try:
        lines = pathlib.Path(path).read_text(errors='replace').splitlines()
    except OSError:
        return {}
    for match in filter(None, map(_LINE.fullmatch, lines)):
        indent = len(match['indent'])
        while above and above[-1][0] >= indent:
            above.pop()
        try:
            address: pci.PCIAddress | None = pci.PCIAddress.parse(
                match['owner'])
        except exceptions.InvalidPCIAddress:
            address = next((a for _, a in reversed(above) if a), None)
            if address is not None:
                found.setdefault(address, []).append(match['owner'])
        above.append((indent, address))
    return {address: tuple(dict.fromkeys(names))
            for address, names in found.items()}
