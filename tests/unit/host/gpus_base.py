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

"""A host whose GPUs are found, detached and claimed."""

import os
import pathlib
import threading
import time
from typing import Any

import fixtures

from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import gpus
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import records
from nova_gpu_passthru.host import terms as host_terms
from nova_gpu_passthru import telemetry
from tests.unit import base
from tests.unit import fakes

A = 'aaaaaaaa-0000-4000-8000-000000000000'
B = 'bbbbbbbb-0000-4000-8000-000000000000'

HOST = """
0000:65:00.0 030000 10de:2231 driver=nvidia group=1
0000:65:00.1 040300 10de:1aef driver=snd_hda_intel group=1
0000:66:00.0 030200 10de:2330 driver=nvidia group=2
0000:67:00.0 030200 10de:2330 driver=nvidia group=3
"""
FIRST, SECOND, THIRD = '0000:65:00.0', '0000:66:00.0', '0000:67:00.0'
ONE = flavor.GPURequest(1)


class TestCase(base.TestCase):
    def host(self, description: str) -> None:
        self.sysfs = self.tree(description)
        self.hypervisor = fakes.Hypervisor(self.sysfs)
        self.records = records.Records(pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'gpu_passthru'))

    def start(self, timeout: float = 30,
              terms: host_terms.Terms = host_terms.Terms(),
              **options: Any) -> None:
        """Starts nova-compute, anew where it ran before."""
        self.hypervisor.detached.clear()
        self.gpus = self.new_gpus()
        self.gpus.start(base.policy(**options), timeout, terms)

    def new_gpus(self) -> gpus.HostGPUs:
        return gpus.HostGPUs(pci.Sysfs(self.sysfs.root), self.hypervisor,
                             self.records, telemetry.Telemetry(),
                             self.sysfs.root)

    def claim(self, uuid: str, request: flavor.GPURequest = ONE
              ) -> list[str]:
        return [str(card.address)
                for card in self.gpus.claim(uuid, request)]

    def reason(self, address: str) -> str:
        reason, = (card.reason for card in self.gpus.cards
                   if str(card.address) == address)
        return reason

    def hook(self, script: str) -> str:
        """Makes an executable of the lines of a shell script."""
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'hook')
        path.write_text(f'#!/bin/sh\n{script}\n')
        path.chmod(0o755)
        return str(path)

    def wait_for(self, path: str | os.PathLike[str]) -> None:
        """Waits until a hook has made a file."""
        deadline = time.monotonic() + 60
        while not os.path.exists(path):
            self.assertLess(time.monotonic(), deadline, f'no {path}')
            time.sleep(.02)

    def finish_releases(self) -> None:
        """Waits until no card is being released any more."""
        for thread in threading.enumerate():
            if thread.name.startswith('release-'):
                thread.join(60)

    def assertUsage(self, total: int, free: int) -> None:
        usage = self.gpus.usage()
        self.assertEqual((total, free), (usage.total_gpus, usage.free_gpus))


class RestoredTestCase(TestCase):
    """nova-compute has started on a host without guests."""

    def setUp(self) -> None:
        super().setUp()
        self.host(HOST)
        self.start()
        self.gpus.restore([])
