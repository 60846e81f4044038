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

"""Builds a folder that looks like /sys, of real files and links.

A host is described as text, one PCI function a line:

    # comment
    hypervisor xen
    0000:65:00.0 030000 10de:1ff2 driver=nvidia group=34 numa=1

that is address, class, vendor:device, and whatever else the kernel shows:

    driver=NAME    the bound driver
    group=N        the IOMMU group
    numa=N         the NUMA node (-1 where it is not given)
    below=ADDRESS  the bridge above it
    boot_vga=0|1   only displays of class 0300 have the attribute
    numvfs=N       enabled virtual functions
    physfn=ADDRESS for a virtual function, the function that serves it
    mdevs=N        mediated devices
    memory=N       GiB of 64-bit memory that its BARs map
    dead           the configuration space reads all ones
"""

from collections.abc import Iterator
import os
import pathlib
import shutil
import uuid

import fixtures

HOSTS = pathlib.Path(__file__).parent / 'data' / 'hosts'


def described_hosts() -> list[str]:
    """Names the hosts of tests/data/hosts."""
    return sorted(path.stem for path in HOSTS.glob('*.txt'))


class SysfsTree(fixtures.Fixture):
    """A sysfs root; .root is the folder.

    :param description: functions to start with, in the form above
    """

    def __init__(self, description: str = '') -> None:
        super().__init__()
        self._description = description

    @classmethod
    def of_host(cls, name: str) -> 'SysfsTree':
        """The host that tests/data/hosts/NAME.txt describes."""
        return cls((HOSTS / f'{name}.txt').read_text())

    def _setUp(self) -> None:
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.root / 'bus/pci/devices').mkdir(parents=True)
        self.add(self._description)

    def add(self, description: str) -> None:
        """Adds functions; a bridge stands before what is below it."""
        for words in _lines(description):
            if words[0] == 'hypervisor':
                (self.root / 'hypervisor').mkdir()
                (self.root / 'hypervisor/type').write_text(words[1] + '\n')
            else:
                self._add_function(*words)

    def path(self, address: str) -> pathlib.Path:
        """Where sysfs shows a function: a link, as the kernel makes it."""
        return self.root / 'bus/pci/devices' / address

    def set_driver(self, address: str, driver: str | None) -> None:
        """Binds a function to another driver, None for none."""
        link = self.path(address) / 'driver'
        if link.is_symlink():
            (self.root / 'bus/pci/drivers' / os.readlink(link).split('/')[-1]
             / address).unlink()
            link.unlink()
        if driver is not None:
            folder = self.root / 'bus/pci/drivers' / driver
            self._link(link, folder)
            self._link(folder / address, self.path(address).resolve())

    def set_dead(self, address: str, dead: bool = True) -> None:
        """Lets a function answer no more, or again."""
        head = b'\xff' * 64 if dead else b'\xde\x10'.ljust(64, b'\0')
        (self.path(address) / 'config').write_bytes(head)

    def remove(self, address: str) -> None:
        """Takes a function off the bus."""
        self.set_driver(address, None)
        link, folder = self.path(address), self.path(address).resolve()
        group = folder / 'iommu_group'
        if group.is_symlink():
            (group.resolve() / 'devices' / address).unlink()
        link.unlink()
        shutil.rmtree(folder)

    def _add_function(self, address: str, class_code: str, model: str,
                      *rest: str) -> None:
        given = dict(word.partition('=')[::2] for word in rest)
        if 'below' in given:
            parent = self.path(given['below']).resolve()
        else:
            parent = self.root / 'devices' / f'pci{address[:-5]}'
        folder = parent / address
        folder.mkdir(parents=True)
        vendor, _, device = model.partition(':')
        values = {'class': f'0x{class_code}', 'vendor': f'0x{vendor}',
                  'device': f'0x{device}',
                  'numa_node': given.get('numa', '-1')}
        if 'boot_vga' in given:
            values['boot_vga'] = given['boot_vga']
        if 'numvfs' in given:
            values['sriov_numvfs'] = given['numvfs']
        if 'memory' in given:
            values['resource'] = _resources(int(given['memory']))
        for name, value in values.items():
            (folder / name).write_text(value + '\n')
        self._link(self.path(address), folder)
        self.set_dead(address, 'dead' in given)
        if 'driver' in given:
            self.set_driver(address, given['driver'])
        if 'group' in given:
            group = self.root / 'kernel/iommu_groups' / given['group']
            self._link(folder / 'iommu_group', group)
            self._link(group / 'devices' / address, folder)
        if 'physfn' in given:
            self._link(folder / 'physfn',
                       self.path(given['physfn']).resolve())
        for number in range(int(given.get('mdevs', '0'))):
            (folder / str(uuid.UUID(int=number))).mkdir()

    @staticmethod
    def _link(link: pathlib.Path, target: pathlib.Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))


def _resources(gib: int) -> str:
    """What the kernel shows of a function's BARs and expansion ROM.

    A small 32-bit BAR, a large and a small 64-bit one (each takes two
    places); flags as in the kernel's include/linux/ioport.h.
    """
    large = 0x380000000000
    regions = [(0xc0000000, 0xc0ffffff, 0x40200),
               (large, large + (gib << 30) - 1, 0x14220c), (0, 0, 0),
               (0xd0000000, 0xd1ffffff, 0x14220c), (0, 0, 0), (0, 0, 0),
               (0xd2000000, 0xd207ffff, 0x46200)]
    return '\n'.join(f'{start:#018x} {end:#018x} {flags:#018x}'
                     for start, end, flags in regions)


def _lines(description: str) -> Iterator[list[str]]:
    for line in description.splitlines():
        words = line.partition('#')[0].split()
        if words:
            yield words
