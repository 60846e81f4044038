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

"""Discovery on hosts whose sysfs is broken in every way."""

from collections.abc import Callable
import os
import pathlib
import shutil
import sys

import hypothesis
from hypothesis import strategies

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy
from tests import sysfs_tree
from tests.unit import base
from tests.unit.fuzz import examples

ATTRIBUTES = ('class', 'vendor', 'device', 'config', 'numa_node', 'boot_vga',
              'sriov_numvfs', 'resource', 'driver', 'iommu_group', 'physfn')

Damage = Callable[[pathlib.Path], None]


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

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if (event in ('open', 'os.listdir') and self._left and
                str(arguments[0]).startswith(self._folder)):
            self._left -= 1
            if not self._left:
                self._action()


INTERRUPTION = Interruption()


class BrokenSysfsTest(base.TestCase):
    @examples.SETTINGS
    @hypothesis.given(WOUNDS, strategies.booleans())
    def test_what_cannot_be_read_is_not_offered(
            self, wounds: list[tuple[str, str, Damage]],
            included: bool) -> None:
        with sysfs_tree.SysfsTree(examples.HOST) as tree:
            _hurt(tree, wounds)
            self.assertSound(tree, _policy(included))

    @examples.SETTINGS
    @hypothesis.given(WOUNDS, strategies.integers(1, 120),
                      strategies.sampled_from(examples.ADDRESSES))
    def test_what_vanishes_between_two_looks(
            self, wounds: list[tuple[str, str, Damage]], looks: int,
            address: str) -> None:
        with sysfs_tree.SysfsTree(examples.HOST) as tree:
            _hurt(tree, wounds)
            link = tree.path(address)
            folder = link.resolve()

            def vanish() -> None:
                link.unlink(missing_ok=True)
                shutil.rmtree(folder)

            INTERRUPTION.plan(tree.root, looks, vanish)
            host_cards.find(pci.Sysfs(tree.root), _policy(True))
            self.assertSound(tree, _policy(True))

    def assertSound(self, tree: sysfs_tree.SysfsTree,
                    policy: host_policy.Policy) -> None:
        """Checks the verdicts against the files themselves."""
        cards = host_cards.find(pci.Sysfs(tree.root), policy)
        offered = {str(f.address) for card in cards if card.offered
                   for f in card.functions}
        groups: dict[str, set[str]] = {}
        for address in os.listdir(tree.root / 'bus/pci/devices'):
            folder = tree.path(address)
            if folder.exists() and not _is_bridge(folder):
                groups.setdefault(_link(folder / 'iommu_group'),
                                  set()).add(address)
        for address in offered:
            folder = tree.path(address)
            for name, bits in (('class', 24), ('vendor', 16), ('device', 16)):
                self.assertIn(_number(folder / name), range(1 << bits))
            head = (folder / 'config').read_bytes()[:4]
            self.assertEqual(4, len(head))
            self.assertNotEqual(b'\xff' * 4, head)
            self.assertFalse(os.path.lexists(folder / 'physfn'))
            if (folder / 'boot_vga').exists():
                _number(folder / 'boot_vga')
            if (folder / 'sriov_numvfs').exists():
                self.assertEqual(0, _number(folder / 'sriov_numvfs'))
            group = _link(folder / 'iommu_group')
            self.assertTrue(group.isdecimal(), group)
            self.assertEqual(set(), groups[group] - offered)
        for card in cards:
            node = tree.path(str(card.address)) / 'numa_node'
            if card.offered and node.exists():
                _number(node)
            self.assertRegex(card.model, '^[0-9a-f]{4}:[0-9a-f]{4}$')


def _hurt(tree: sysfs_tree.SysfsTree,
          wounds: list[tuple[str, str, Damage]]) -> None:
    for address, name, damage in wounds:
        damage(tree.path(address).resolve() / name)


def _policy(included: bool) -> host_policy.Policy:
    return base.policy(include=['1a03:2000', '10de:20b5'] if included else ())


def _number(path: pathlib.Path) -> int:
    return int(path.read_text(), 0)


def _link(path: pathlib.Path) -> str:
    return os.path.basename(os.readlink(path)) if path.is_symlink() else ''


def _is_bridge(folder: pathlib.Path) -> bool:
    try:
        return _number(folder / 'class') >> 8 in (0x0600, 0x0604)
    except (OSError, ValueError):
        return False
