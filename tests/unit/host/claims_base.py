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

"""A host whose cards can be claimed."""

from typing import Any

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import claims as host_claims
from nova_gpu_passthru.host import fitting
from nova_gpu_passthru.host import pci
from tests.unit import base
from tests.unit import fakes

A = 'aaaaaaaa-0000-4000-8000-000000000000'
B = 'bbbbbbbb-0000-4000-8000-000000000000'
C = 'cccccccc-0000-4000-8000-000000000000'

# Three cards of two models, each alone in its group.
HOST = """
0000:31:00.0 030000 10de:2231 driver=vfio-pci group=1
0000:31:00.1 040300 10de:1aef driver=vfio-pci group=1
0000:4b:00.0 030200 10de:2330 driver=vfio-pci group=2
0000:b1:00.0 030000 10de:2231 driver=vfio-pci group=3
0000:b1:00.1 040300 10de:1aef driver=vfio-pci group=3
"""
FIRST, SECOND, THIRD = '0000:31:00.0', '0000:4b:00.0', '0000:b1:00.0'


class TestCase(base.TestCase):
    HOST = HOST

    def setUp(self) -> None:
        super().setUp()
        self.host = self.tree(self.HOST)
        self.hypervisor = fakes.Hypervisor(self.host)
        self.find()
        self.restart()

    def find(self, **options: Any) -> None:
        """Looks at the host again."""
        self.all_cards = host_cards.find(pci.Sysfs(self.host.root),
                                         base.policy(**options))

    def restart(self) -> None:
        """Starts as nova-compute does."""
        self.claims = host_claims.Claims(self.hypervisor)
        self.claims.read_domains()

    def claim(self, uuid: str, count: int = 1,
              model: str | None = None) -> list[str]:
        return [str(card.address) for card in self.claims.claim(
            uuid, flavor.GPURequest(count, model), self.all_cards)]

    def assertRefused(self, uuid: str, count: int = 1,
                      model: str | None = None) -> str:
        return str(self.assertRaises(exceptions.NotEnoughGPUs,
                                     self.claim, uuid, count, model))

    def free(self) -> list[str]:
        held = {a for uuid in (A, B, C, 'by-hand')
                for a in self.claims.held_by(uuid)}
        return [str(card.address) for card in fitting.available(
            [card for card in self.all_cards if card.ready], held,
            self.all_cards)]

    def holders(self) -> dict[str, tuple[str, ...]]:
        return {str(address): uuids for address, uuids in
                self.claims.holders(self.all_cards).items()}
