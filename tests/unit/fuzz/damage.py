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

"""Ways to break the folders that stand for /sys."""

from collections.abc import Callable
import pathlib
import shutil
import sys

from hypothesis import strategies

from tests import sysfs_tree
from tests.unit.fuzz import examples

ATTRIBUTES = ('class', 'vendor', 'device', 'config', 'numa_node', 'boot_vga',
              'sriov_numvfs', 'resource', 'driver', 'iommu_group', 'physfn')

Damage = Callable[[pathlib.Path], None]
Wound = tuple[str, str, Damage]


def _cleared(path: pathlib.Path) -> pathlib.Path:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def _truncate(path: pathlib.Path) -> None:
    content = path.read_bytes() if path.is_file() else b''
    _cleared(path).write_bytes(content[:len(content) // 2])


def _written(content: bytes) -> Damage:
    def damage(path: pathlib.Path) -> None:
        _cleared(path).write_bytes(content)
    return damage


def _linked(target: str) -> Damage:
    def damage(path: pathlib.Path) -> None:
        _cleared(path).symlink_to(target)
    return damage


DAMAGES = strategies.one_of(
    strategies.just(_cleared),
    strategies.just(_truncate),
    # A folder and a link to itself cannot be read, not even by root.
    strategies.just(lambda path: _cleared(path).mkdir()),
    strategies.sampled_from(('/nowhere', '.', 'config', '../../..', '7',
                             '0000:6b:00.0')).map(_linked),
    strategies.sampled_from(ATTRIBUTES).map(_linked),
    strategies.binary(max_size=80).map(_written),
    examples.NUMBERS.map(lambda text: _written(text.encode() + b'\n')))

WOUNDS = strategies.lists(
    strategies.tuples(strategies.sampled_from(examples.ADDRESSES),
                      strategies.sampled_from(ATTRIBUTES), DAMAGES),
    min_size=1, max_size=6)


class Interruption:
    """Calls something at the Nth look at a folder, once."""

    def __init__(self) -> None:
        self._folder = ''
        self._left = 0
        self._action: Callable[[], None] = lambda: None
        # There is no way to take it away again.
        sys.addaudithook(self._hook)

    def plan(self, folder: pathlib.Path, looks: int,
             action: Callable[[], None]) -> None:
        self._folder, self._left, self._action = str(folder), looks, action

    def cancel(self) -> None:
        """Calls nothing if it has not come to that."""
        self._left = 0

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if (event in ('open', 'os.listdir') and self._left and
                str(arguments[0]).startswith(self._folder)):
            self._left -= 1
            if not self._left:
                self._action()


INTERRUPTION = Interruption()


def hurt(tree: sysfs_tree.SysfsTree, wounds: list[Wound]) -> None:
    """Breaks attributes of functions."""
    for address, name, damage in wounds:
        damage(tree.path(address).resolve() / name)


def plan_removal(tree: sysfs_tree.SysfsTree, address: str,
                 looks: int) -> None:
    """Lets a function vanish at the Nth look at the host."""
    link = tree.path(address)
    folder = link.resolve()

    def vanish() -> None:
        link.unlink(missing_ok=True)
        shutil.rmtree(folder)

    INTERRUPTION.plan(tree.root, looks, vanish)
