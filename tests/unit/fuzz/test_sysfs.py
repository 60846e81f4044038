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

import os
import pathlib

import hypothesis
from hypothesis import strategies

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy
from tests import sysfs_tree
from tests.unit import base
from tests.unit.fuzz import damage
from tests.unit.fuzz import examples


class BrokenSysfsTest(base.TestCase):
    @examples.SETTINGS
    @hypothesis.given(damage.WOUNDS, strategies.booleans())
    def test_what_cannot_be_read_is_not_offered(
            self, wounds: list[damage.Wound],
            included: bool) -> None:
        with sysfs_tree.SysfsTree(examples.HOST) as tree:
            damage.hurt(tree, wounds)
            self.assertSound(tree, _policy(included))

    @examples.SETTINGS
    @hypothesis.given(damage.WOUNDS, strategies.integers(1, 120),
                      strategies.sampled_from(examples.ADDRESSES))
    def test_what_vanishes_between_two_looks(
            self, wounds: list[damage.Wound], looks: int,
            address: str) -> None:
        with sysfs_tree.SysfsTree(examples.HOST) as tree:
            damage.hurt(tree, wounds)
            damage.plan_removal(tree, address, looks)
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
