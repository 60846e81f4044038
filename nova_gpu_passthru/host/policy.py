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

"""What the operator wants offered or kept back."""

from collections.abc import Callable, Iterable
import dataclasses
import enum
import re

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import pci

_MODEL = re.compile(r'[0-9a-f]{4}:[0-9a-f]{4}')


class BootVGA(str, enum.Enum):
    """What happens to a GPU that the firmware shows the console on."""

    AUTO = 'auto'
    OFFER = 'offer'
    WITHHOLD = 'withhold'


@dataclasses.dataclass(frozen=True)
class DeviceList:
    """Functions named by their address or by their vendor and device id."""

    addresses: frozenset[pci.PCIAddress] = frozenset()
    models: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, entries: Iterable[str], option: str) -> 'DeviceList':
        """Reads the entries of include or exclude.

        :param entries: texts of the form domain:bus:slot.function or
            vendor:device, hexadecimal
        :param option: the option that they stand in, for the error
        :raises InvalidDeviceEntry: if one is neither; the text is quoted
        """
        addresses, models = set(), set()
        for entry in entries:
            text = entry.strip().lower()
            if _MODEL.fullmatch(text):
                models.add(text)
                continue
            try:
                addresses.add(pci.PCIAddress.parse(text))
            except exceptions.InvalidPCIAddress:
                raise exceptions.InvalidDeviceEntry(
                    f'[gpu_passthru] {option} has {entry!r}, which is neither '
                    f'a PCI address such as 0000:3b:00.0 nor vendor:device '
                    f'such as 10de:2330. Correct the entry and start again.'
                ) from None
        return cls(frozenset(addresses), frozenset(models))

    def names(self, function: pci.PCIFunction) -> bool:
        return (function.address in self.addresses or
                function.model in self.models)


def _nothing(function: pci.PCIFunction) -> bool:
    return False


@dataclasses.dataclass(frozen=True)
class Policy:
    """The options that decide about a card; exclude wins over include.

    :ivar nova_gives: whether Nova's own PCI tracker gives a function to
        guests, because [pci] device_spec names it
    """

    include: DeviceList = DeviceList()
    exclude: DeviceList = DeviceList()
    boot_vga: BootVGA = BootVGA.AUTO
    nova_gives: Callable[[pci.PCIFunction], bool] = _nothing

    def nova_gives_part_of(self, functions: Iterable[pci.PCIFunction]
                           ) -> bool:
        """Whether Nova's own PCI tracker gives any of a card's functions."""
        return any(self.nova_gives(function) for function in functions)
