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

"""Finding all cards beside Nova's finding all PCI devices.

A host with 8 GPUs and 1,000 virtual functions. Nova asks libvirt for each
device by itself; here libvirt is Nova's fixture in the same process, so what
the real one takes, and the way there, is missing from Nova's time.
"""

from collections.abc import Iterator
import contextlib
import logging

import fixtures
from nova import conf
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import conf as conf_fixture
from nova.tests.fixtures import libvirt as libvirt_fixture
from nova.virt import fake
from nova.virt.libvirt import driver

from nova_gpu_passthru.host import cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy
from tests.benchmark import measure
from tests import sysfs_tree

GPUS, VFS = 8, 1000
# Seconds after which Nova's is not waited for any longer.
_PATIENCE = 60


def run() -> Iterator[measure.Comparison]:
    logging.disable(logging.INFO)
    with contextlib.ExitStack() as stack:
        stack.enter_context(conf_fixture.ConfFixture(conf.CONF))
        stack.enter_context(nova_fixtures.LibvirtFixture())
        connection = libvirt_fixture.Connection(
            'qemu:///system', version=libvirt_fixture.FAKE_LIBVIRT_VERSION,
            hv_version=libvirt_fixture.FAKE_QEMU_VERSION, readonly=False,
            pci_info=libvirt_fixture.HostPCIDevicesInfo(
                num_pfs=GPUS, num_vfs=VFS))
        stack.enter_context(fixtures.MonkeyPatch(
            'nova.virt.libvirt.host.Host.get_connection',
            lambda host: connection))
        nova = driver.LibvirtDriver(fake.FakeVirtAPI(), False)
        host = stack.enter_context(sysfs_tree.SysfsTree(_described()))
        sysfs = pci.Sysfs(host.root)
        assert sum(card.offered for card in
                   cards.find(sysfs, policy.Policy())) == GPUS
        # Nova 34 keeps the first answer, whatever changes on the host.
        look = driver.LibvirtDriver._get_pci_passthrough_devices
        look = getattr(look, '__wrapped__', look)
        novas, gave_up = measure.within(
            lambda: lambda: look(nova), _PATIENCE)
        yield measure.Comparison(
            f'Look at a host with {GPUS} GPUs and {VFS:,} virtual functions',
            'ms',
            ours=1e3 * measure.best(
                lambda: cards.find(sysfs, policy.Policy())),
            novas=1e3 * novas, at_least=gave_up, goal=50)


def _described() -> str:
    """The host, as sysfs_tree describes one."""
    lines = [f'0000:{0x40 + number:02x}:00.0 030200 10de:2330 '
             f'driver=vfio-pci group={number} numa={number % 2}'
             for number in range(GPUS)]
    for card in range(GPUS):
        bus = 0x80 + card
        lines.append(f'0000:{bus:02x}:00.0 020000 15b3:101b '
                     f'driver=mlx5_core group={100 + card} '
                     f'numvfs={VFS // GPUS}')
        lines += [f'0000:{bus:02x}:{number // 8:02x}.{number % 8} 020000 '
                  f'15b3:101c group={1000 + card * 200 + number} '
                  f'physfn=0000:{bus:02x}:00.0'
                  for number in range(8, 8 + VFS // GPUS)]
    return '\n'.join(lines)
