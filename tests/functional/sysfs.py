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

"""Looks at a SysfsTree with the eyes of a test.

It shares no code with nova_gpu_passthru, so that a test does not believe
what it checks.
"""

import os

from tests import sysfs_tree

STUB = 'vfio-pci'


def addresses(tree: sysfs_tree.SysfsTree) -> list[str]:
    return sorted(os.listdir(tree.root / 'bus/pci/devices'))


def driver(tree: sysfs_tree.SysfsTree, address: str) -> str | None:
    link = tree.path(address) / 'driver'
    return os.readlink(link).split('/')[-1] if link.is_symlink() else None


def group(tree: sysfs_tree.SysfsTree, address: str) -> str | None:
    link = tree.path(address) / 'iommu_group'
    return os.readlink(link).split('/')[-1] if link.is_symlink() else None


def group_mates(tree: sysfs_tree.SysfsTree, address: str) -> list[str]:
    """The other functions of a function's IOMMU group."""
    folder = tree.path(address) / 'iommu_group/devices'
    if not folder.exists():
        return []
    return sorted(set(os.listdir(folder)) - {address})


def on_stub(tree: sysfs_tree.SysfsTree) -> list[str]:
    """The functions that vfio-pci holds for guests."""
    return [a for a in addresses(tree) if driver(tree, a) == STUB]


def cards_on_stub(tree: sysfs_tree.SysfsTree) -> list[list[str]]:
    """The slots with a GPU of which vfio-pci holds every function."""
    slots: dict[str, list[str]] = {}
    for address in addresses(tree):
        slots.setdefault(address.partition('.')[0], []).append(address)
    return [slot for slot in slots.values()
            if all(driver(tree, a) == STUB for a in slot) and
            any((tree.path(a) / 'class').read_text().startswith(
                ('0x03', '0x12')) for a in slot)]
