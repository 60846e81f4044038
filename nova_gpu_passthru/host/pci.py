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

"""Reads PCI functions from sysfs. Changes nothing.

Every reader takes the root of the sysfs, so that a folder of real files does
as well as /sys.

The attributes are described in the kernel's
Documentation/ABI/testing/sysfs-bus-pci and Documentation/PCI/sysfs-pci.rst.
"""

import dataclasses
import os
import pathlib
import re

from nova_gpu_passthru import exceptions

_ADDRESS = re.compile(
    r'(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):'
    r'(?P<slot>[01][0-9a-f])\.(?P<function>[0-7])', re.IGNORECASE)
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}',
                   re.IGNORECASE)

# The kernel's drivers that hold a function for a guest: vfio-pci, its
# variants for single devices (mlx5_vfio_pci, nvgrace_gpu_vfio_pci, ...), and
# what Xen's dom0 and older kernels have in its place.
_STUB_DRIVER = re.compile(r'(?:.*[-_])?vfio[-_]pci|pciback|xen-pciback|'
                          r'pci-stub')

# Flags of a resource: IORESOURCE_MEM and IORESOURCE_MEM_64 of the kernel's
# include/linux/ioport.h.
_MEMORY_64 = 0x00100200

# What tells a function's kind, and how many bits each number has.
_IDENTITY = {'class': 24, 'vendor': 16, 'device': 16}

# What a class that could not be read is taken for: no function of a GPU and
# no bridge. The kernel itself shows it for devices without a class.
UNKNOWN_CLASS = 0xffffff


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class PCIAddress:
    """Names one PCI function of the host; sorts as the numbers do."""

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> 'PCIAddress':
        """Reads domain:bus:slot.function, all hexadecimal.

        :param text: an address as sysfs, lspci, libvirt or nvidia-smi prints
            it: the domain has four to eight digits or, where it is 0000, may
            be missing; case and surrounding blanks do not matter.
        :raises InvalidPCIAddress: if it is anything else.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise exceptions.InvalidPCIAddress(
                f'{text!r} is not a PCI address of the form '
                f'domain:bus:slot.function, such as 0000:3b:00.0')
        return cls(*(int(part or '0', 16) for part in match.groups()))

    def __str__(self) -> str:
        return (f'{self.domain:04x}:{self.bus:02x}:{self.slot:02x}'
                f'.{self.function:x}')

    @property
    def node_device(self) -> str:
        """The name of libvirt's node device, such as pci_0000_3b_00_0."""
        return (f'pci_{self.domain:04x}_{self.bus:02x}_{self.slot:02x}'
                f'_{self.function:x}')

    def in_slot_of(self, other: 'PCIAddress') -> bool:
        """Whether both are functions of one device."""
        return ((self.domain, self.bus, self.slot) ==
                (other.domain, other.bus, other.slot))


@dataclasses.dataclass(frozen=True, slots=True)
class PCIFunction:
    """What sysfs says of one PCI function.

    :ivar class_code: base class, subclass and programming interface, 24 bits
    :ivar driver: name of the bound driver, None where there is none
    :ivar iommu_group: number of the group, None where there is none
    :ivar physfn: for a virtual function, the function that serves it
    :ivar bridges: the bridges above it, from the root bus down
    :ivar fault: why the function could not be read, empty if it could
    """

    address: PCIAddress
    class_code: int
    vendor: int
    device: int
    driver: str | None
    iommu_group: int | None
    physfn: PCIAddress | None
    bridges: tuple[PCIAddress, ...]
    fault: str = ''

    @property
    def base_class(self) -> int:
        return self.class_code >> 16

    @property
    def subclass(self) -> int:
        """Base class and subclass as one number, as in pci.ids: 0x0403."""
        return self.class_code >> 8

    @property
    def model(self) -> str:
        """Vendor and device id, such as 10de:2330."""
        return f'{self.vendor:04x}:{self.device:04x}'

    @property
    def on_stub(self) -> bool:
        """Whether a stub driver holds the function for a guest."""
        return bool(self.driver and _STUB_DRIVER.fullmatch(self.driver))


class Sysfs:
    """The PCI functions below one sysfs root.

    :param root: the folder that stands for /sys
    """

    def __init__(self, root: str | os.PathLike[str] = '/sys') -> None:
        self._root = pathlib.Path(root)
        self._devices = self._root / 'bus' / 'pci' / 'devices'

    def functions(self) -> dict[PCIAddress, PCIFunction]:
        """Reads every PCI function of the host.

        A function that disappears while it is read is left out; one that
        cannot be read is there with its fault.

        :returns: the functions by their address, in the order of addresses
        """
        found = []
        for entry in self._listed(self._devices):
            try:
                address = PCIAddress.parse(entry)
            except exceptions.InvalidPCIAddress:
                continue
            function = self.function(address)
            if function is not None:
                found.append(function)
        return {f.address: f for f in sorted(found, key=lambda f: f.address)}

    def function(self, address: PCIAddress) -> PCIFunction | None:
        """Reads one PCI function.

        :returns: the function, None where there is none at this address
        """
        path = self.folder(address)
        try:
            numbers = [self._identity(path / name, bits)
                       for name, bits in _IDENTITY.items()]
            physfn = self._physfn(path)
            fault = ''
        except (OSError, ValueError) as error:
            if not os.path.lexists(path):
                return None
            numbers, physfn = [UNKNOWN_CLASS, 0, 0], None
            fault = f'cannot be read: {error}'
        return PCIFunction(
            address=address, class_code=numbers[0], vendor=numbers[1],
            device=numbers[2], driver=self._link_name(path / 'driver'),
            iommu_group=self._iommu_group(path),
            physfn=physfn,
            bridges=self._bridges(path), fault=fault)

    def folder(self, address: PCIAddress) -> pathlib.Path:
        """Where sysfs shows a function."""
        return self._devices / str(address)

    def responds(self, address: PCIAddress) -> bool:
        """Whether the function answers on the bus.

        A device that fell off the bus, or that cannot be woken, answers every
        read of its configuration space with ones; vendor and class in sysfs
        are the kernel's copies and stay.
        """
        try:
            # Unbuffered, so that no more of it is read than these.
            with (self.folder(address) / 'config').open(
                    'rb', buffering=0) as file:
                head = file.read(4)
        except OSError:
            return False
        return len(head) == 4 and head != b'\xff\xff\xff\xff'

    def incarnation(self, address: PCIAddress) -> int | None:
        """Tells a device from the next one at the same address.

        The kernel gives each folder of sysfs a number of its own
        (kernfs_new_node in fs/kernfs/dir.c), and a device that comes back
        gets a new folder.

        :returns: the number of its folder, None where there is none
        """
        try:
            return (self._devices / str(address)).stat().st_ino
        except OSError:
            return None

    def numa_node(self, address: PCIAddress) -> int | None:
        """The function's NUMA node, None where the firmware names none.

        :raises Unreadable: if sysfs has the attribute but does not tell
        """
        node = self._attribute(address, 'numa_node', -1)
        return node if node >= 0 else None

    def boot_vga(self, address: PCIAddress) -> bool:
        """Whether the firmware used the function as the machine's display.

        :raises Unreadable: if sysfs has the attribute but does not tell
        """
        return self._attribute(address, 'boot_vga', 0) == 1

    def enabled_vfs(self, address: PCIAddress) -> int:
        """How many virtual functions the function serves at this moment.

        :raises Unreadable: if sysfs has the attribute but does not tell
        """
        return self._attribute(address, 'sriov_numvfs', 0)

    def live_mdevs(self, address: PCIAddress) -> int:
        """How many mediated devices exist on the function.

        The kernel makes one folder named by its UUID for each
        (Documentation/driver-api/vfio-mediated-device.rst).
        """
        entries = self._listed(self.folder(address))
        return sum(bool(_UUID.fullmatch(entry)) for entry in entries)

    def memory_bytes(self, address: PCIAddress) -> int:
        """How much 64-bit memory the function's BARs map, in bytes.

        :raises Unreadable: if sysfs has the attribute but does not tell
        """
        path = self.folder(address) / 'resource'
        total = 0
        try:
            for line in path.read_text().splitlines()[:6]:
                start, end, flags = (int(word, 16) for word in line.split())
                if flags & _MEMORY_64 == _MEMORY_64:
                    total += end - start + 1
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise exceptions.Unreadable(
                f'the resources of {address} cannot be read: {error}'
            ) from error
        return total

    def sockets(self) -> dict[int, int]:
        """The CPU socket of each NUMA node that has CPUs, by the node.

        Documentation/ABI/stable/sysfs-devices-system-cpu and -node.
        """
        found = {}
        nodes = self._root / 'devices' / 'system' / 'node'
        for entry in self._listed(nodes):
            if not re.fullmatch('node[0-9]+', entry):
                continue
            for cpu in sorted(self._listed(nodes / entry)):
                if re.fullmatch('cpu[0-9]+', cpu):
                    try:
                        found[int(entry[4:])] = self._number(
                            nodes / entry / cpu / 'topology' /
                            'physical_package_id')
                        break
                    except (OSError, ValueError):
                        continue
        return found

    def has_iommu(self) -> bool:
        """Whether the kernel made any IOMMU group."""
        return bool(self._listed(self._root / 'kernel' / 'iommu_groups'))

    def has_driver(self, name: str) -> bool:
        """Whether a PCI driver is loaded."""
        return (self._root / 'bus' / 'pci' / 'drivers' / name).is_dir()

    def is_xen(self) -> bool:
        """Whether this is a Xen host; its dom0 sees no IOMMU groups."""
        try:
            text = (self._root / 'hypervisor' / 'type').read_text()
        except (OSError, ValueError):
            return False
        return text.strip() == 'xen'

    @staticmethod
    def _listed(folder: pathlib.Path) -> list[str]:
        try:
            return os.listdir(folder)
        except OSError:
            return []

    @staticmethod
    def _number(path: pathlib.Path) -> int:
        return int(path.read_text(), 0)

    def _identity(self, path: pathlib.Path, bits: int) -> int:
        number = self._number(path)
        if number not in range(1 << bits):
            raise ValueError(f'{path} is {number:#x}')
        return number

    def _attribute(self, address: PCIAddress, name: str, absent: int) -> int:
        try:
            return self._number(self.folder(address) / name)
        except FileNotFoundError:
            return absent
        except (OSError, ValueError) as error:
            raise exceptions.Unreadable(
                f'{name} of {address} cannot be read: {error}') from error

    @staticmethod
    def _link_name(path: pathlib.Path) -> str | None:
        try:
            return os.path.basename(os.readlink(path))
        except OSError:
            return None

    def _iommu_group(self, path: pathlib.Path) -> int | None:
        name = self._link_name(path / 'iommu_group')
        return int(name) if name is not None and name.isdecimal() else None

    def _physfn(self, path: pathlib.Path) -> PCIAddress | None:
        link = path / 'physfn'
        if not os.path.lexists(link):
            return None
        return PCIAddress.parse(os.path.basename(os.readlink(link)))

    @staticmethod
    def _bridges(path: pathlib.Path) -> tuple[PCIAddress, ...]:
        """The functions that the kernel puts this one's folder below."""
        try:
            folders = os.readlink(path).split('/')[:-1]
        except OSError:
            return ()
        # A host bridge's folder is pci0000:00, which is no address.
        return tuple(PCIAddress.parse(folder) for folder in folders
                     if _ADDRESS.fullmatch(folder))
