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

"""What tests of sick cards have in common."""

import json

from tests.unit.host import gpus_base


class TestCase(gpus_base.RestoredTestCase):
    def give(self, uuid: str, *addresses: str) -> None:
        """A guest claims cards and runs with them."""
        self.claim(uuid)
        self.hypervisor.start(uuid, *addresses)
        self.gpus.refresh()

    def take_back(self, uuid: str) -> None:
        self.hypervisor.undefine(uuid)
        self.gpus.release(uuid)

    def by_model(self) -> dict[str, int]:
        return json.loads(self.gpus.usage().to_json())['free_by_model']
