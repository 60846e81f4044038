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

"""PCI functions as the virtual host and the guests see them."""

import dataclasses
import re

# A line per function, by the shell alone: under emulation a process for each
# value would take a quarter of a minute. resource begins with BAR 0: start,
# end, flags.
LIST_SCRIPT = r"""
name_of_link() {
    cd -P "$1" 2> /dev/null && name=${PWD##*/} || name=-
}

for function in /sys/bus/pci/devices/*; do
    read -r vendor < "$function/vendor"
    read -r device < "$function/device"
    read -r class < "$function/class"
    read -r start end _ < "$function/resource"
    read -r numa_node < "$function/numa_node"
    name_of_link "$function/driver"
    driver=$name
    name_of_link "$function/iommu_group"
    echo "${function##*/} $vendor $device $class" \
        "$(((end - start + 1) / 1048576)) $driver $numa_node $name"
done
"""

_GUEST_LINE = re.compile(
    r'GUEST-PCI ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) '
    r'(0x[0-9a-f]{4}) (0x[0-9a-f]{4}) (0x[0-9a-f]{6}) (\d+)')


@dataclasses.dataclass(frozen=True)
class Function:
    """What a kernel says of one PCI function."""

    address: str
    model: str
    """vendor:device"""
    pci_class: str
    mib: int
    """Size of BAR 0."""
    # A guest does not report these.
    driver: str = ''
    numa_node: int = -1
    iommu_group: str = ''

    @property
    def slot(self) -> str:
        """The address without the function number."""
        return self.address.rpartition('.')[0]


def parse_host(text: str) -> list[Function]:
    """The functions that LIST_SCRIPT has printed."""
    found = []
    for line in text.splitlines():
        (address, vendor, device, pci_class, mib, driver, numa_node,
         iommu_group) = line.split()
        found.append(Function(
            address, _model(vendor, device), pci_class, int(mib),
            '' if driver == '-' else driver, int(numa_node), iommu_group))
    return found


@dataclasses.dataclass(frozen=True)
class Report:
    """What a guest says of itself."""

    boot: str
    """Another one each time that its kernel was started."""
    functions: list[Function]


def parse_guest(console: str) -> Report | None:
    """The last complete report of a guest (guest/init), if there is one.

    A report counts only if it has as many whole lines as the guest says:
    on a busy machine characters of the emulated console get lost or doubled.
    """
    complete = None
    report: list[Function] = []
    # What is after the last newline may be a part of a line.
    for line in console[:console.rfind('\n') + 1].splitlines():
        if match := _GUEST_LINE.fullmatch(line.strip()):
            address, vendor, device, pci_class, mib = match.groups()
            report.append(Function(
                address, _model(vendor, device), pci_class, int(mib)))
        elif line.startswith('GUEST-DONE'):
            match line.split():
                case [_, count, boot] if count == str(len(report)):
                    complete = Report(boot, report)
            report = []
    return complete


def _model(vendor: str, device: str) -> str:
    return f'{vendor[2:]}:{device[2:]}'
