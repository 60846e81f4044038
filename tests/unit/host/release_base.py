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


"""A host with a hook for the time between two guests."""

import pathlib

import fixtures

from nova_gpu_passthru.host import terms as host_terms
from tests.unit.host import gpus_base

A, HOST = gpus_base.A, gpus_base.HOST
FIRST = gpus_base.FIRST
AUDIO = '0000:65:00.1'


class TestCase(gpus_base.TestCase):
    """Guest A has the first card."""

    HOLD = False

    def setUp(self) -> None:
        super().setUp()
        self.host(HOST)
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.addCleanup(self.finish_releases)
        self.addCleanup((self.folder / 'go').touch)

    def start_with(self, script: str = '', timeout: float = 60) -> None:
        """Starts nova-compute with a hook, and a guest."""
        self.terms = host_terms.Terms(
            self.hook(f'cd {self.folder}\necho "$@" >>runs\n{script}'),
            timeout, self.HOLD)
        self.restart()
        self.give(A)

    def restart(self) -> None:
        self.start(terms=self.terms)
        self.gpus.restore([])

    def give(self, uuid: str) -> None:
        self.assertEqual([FIRST], self.claim(uuid))
        self.hypervisor.start(uuid, FIRST, AUDIO)
        self.gpus.refresh()

    def take_back(self, uuid: str) -> None:
        self.hypervisor.undefine(uuid)
        self.gpus.release(uuid)

    def come_and_go(self, uuid: str, *addresses: str) -> None:
        """Somebody makes a domain and takes it away, with two reports."""
        self.hypervisor.start(uuid, *addresses)
        self.gpus.refresh()
        self.hypervisor.undefine(uuid)
        for _ in range(2):
            self.gpus.refresh()
        self.finish_releases()

    def runs(self) -> list[str]:
        """The arguments of each run of the hook."""
        file = self.folder / 'runs'
        return file.read_text().splitlines() if file.exists() else []
