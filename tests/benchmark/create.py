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

"""What 16 cards and 100 domains add to a create and to nova-compute."""

from collections.abc import Iterator
import logging
import subprocess
import sys

from nova_gpu_passthru import flavor
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import gpus
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy
from nova_gpu_passthru.host import records
from nova_gpu_passthru.host import terms as host_terms
from nova_gpu_passthru import telemetry
from tests.benchmark import measure
from tests import sysfs_tree
from tests.unit import fakes
from tests.unit import golden

CARDS, DOMAINS = 16, 100
NEW = 'cccccccc-0000-4000-8000-000000000000'

# The resident memory of a process that has loaded a driver, in MiB.
_LOAD = """
import tests.unit
import resource
from nova.virt.libvirt import driver
{more}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
_OURS = """
import nova_gpu_passthru.driver
from tests.benchmark import create
host, tree = create.started()
"""


def run() -> Iterator[measure.Comparison]:
    logging.disable(logging.INFO)
    host, tree = started()
    xml = (golden.DATA / 'guests' / 'q35' / 'nova.xml').read_text()

    def create() -> None:
        # prepare_for_spawn, spawn and the description of the guest each
        # make sure of the claim.
        for _ in range(3):
            cards = host.claim(NEW, flavor.GPURequest(2))
        domain.add_cards(xml, cards)

    def forget() -> None:
        host.release(NEW)

    times = []
    for _ in range(7):
        times.append(measure.once(create))
        forget()
    yield measure.Comparison(
        f'Added to a create, {CARDS} cards and {DOMAINS} domains', 'ms',
        ours=1e3 * min(times), limit=5)
    tree.cleanUp()
    yield measure.Comparison(
        'Added to the memory of nova-compute', 'MiB',
        ours=_memory(_OURS) - _memory(''), limit=10)


def started() -> tuple[gpus.HostGPUs, sysfs_tree.SysfsTree]:
    """A host that knows its cards; half of them are held."""
    tree = sysfs_tree.SysfsTree('\n'.join(
        f'0000:{0x40 + number:02x}:00.0 030200 10de:2330 driver=vfio-pci '
        f'group={number}' for number in range(CARDS)))
    tree.setUp()
    hypervisor = fakes.Hypervisor(tree)
    for number in range(DOMAINS):
        held = ([f'0000:{0x40 + number:02x}:00.0']
                if number < CARDS // 2 else [])
        hypervisor.start(f'aaaaaaaa-0000-4000-8000-{number:012}', *held)
    host = gpus.HostGPUs(pci.Sysfs(tree.root), hypervisor,
                         records.Records(tree.root / 'state'),
                         telemetry.Telemetry(), tree.root)
    host.start(policy.Policy(), 60, host_terms.Terms())
    host.restore([])
    return host, tree


def _memory(more: str) -> float:
    return float(subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', _LOAD.format(more=more)],
        check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])
