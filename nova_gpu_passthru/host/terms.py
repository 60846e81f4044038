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

"""What an operator wants between two guests of a card."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Terms:
    """What has to happen before a card goes from one guest to the next.

    :ivar hook: path of the operator's executable, empty for none
    :ivar hook_timeout: seconds that it may take for one card
    :ivar hold: whether an operator has to give the card back
    """

    hook: str = ''
    hook_timeout: float = 600
    hold: bool = False

    @property
    def needed(self) -> bool:
        return bool(self.hook) or self.hold
