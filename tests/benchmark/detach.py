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

"""Detaching 8 cards side by side, beside one after the other.

The driver that takes its time is simulated: half a second a card. A libvirt
that holds its lock while a driver lets go makes both the same.
"""

from collections.abc import Iterator
import logging
import time

from nova_gpu_passthru.host import binding
from nova_gpu_passthru.host import cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy
from nova_gpu_passthru.host import processes
from nova_gpu_passthru import telemetry
from tests.benchmark import measure
from tests import sysfs_tree
from tests.unit import fakes

CARDS = 8
SECONDS = 0.5


class SlowDevice(fakes.NodeDevice):
    """A device whose driver takes its time to let go."""

    def detachFlags(self, driver: str | None, flags: int) -> int:
        time.sleep(SECONDS)
        return super().detachFlags(driver, flags)


class SlowHypervisor(fakes.Hypervisor):
    def node_device(self, name: str) -> fakes.NodeDevice:
        return SlowDevice(self, '{}:{}:{}.{}'.format(*name.split('_')[1:]))


def run() -> Iterator[measure.Comparison]:
    logging.disable(logging.INFO)
    yield measure.Comparison(
        f'Detach {CARDS} cards of {SECONDS} s each', 's',
        ours=_detach(at_once=True), novas=_detach(at_once=False), goal=4)


def _detach(at_once: bool) -> float:
    with sysfs_tree.SysfsTree('\n'.join(
            f'0000:{0x40 + number:02x}:00.0 030200 10de:2330 driver=nvidia '
            f'group={number}' for number in range(CARDS))) as tree:
        sysfs = pci.Sysfs(tree.root)
        binder = binding.Binder(sysfs, SlowHypervisor(tree),
                                processes.Processes(sysfs, tree.root),
                                telemetry.Telemetry())
        found = cards.find(sysfs, policy.Policy())
        batches = [found] if at_once else [(card,) for card in found]
        return measure.once(
            lambda: [binder.detach(batch) for batch in batches])
