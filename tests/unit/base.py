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

"""What the unit tests have in common."""

from collections.abc import Iterable
from typing import Any

import fixtures
from oslo_config import cfg
from oslo_log import formatters
from oslo_log import log
from oslotest import base

from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy
from tests import sysfs_tree


def policy(include: Iterable[str] = (), exclude: Iterable[str] = (),
           boot_vga: str = 'auto') -> host_policy.Policy:
    """Reads a policy from what would stand in nova.conf."""
    return host_policy.Policy(
        include=host_policy.DeviceList.parse(include, 'include'),
        exclude=host_policy.DeviceList.parse(exclude, 'exclude'),
        boot_vga=host_policy.BootVGA(boot_vga))


def operators_log() -> fixtures.FakeLogger:
    """The log as an operator sees it: oslo.log adds errors to its lines."""
    config = cfg.ConfigOpts()
    log.register_options(config)
    config([])
    return fixtures.FakeLogger(
        # Without a format it would not ask for the formatter.
        format='%(message)s',
        formatter=lambda *args: formatters.ContextFormatter(config=config))


class TestCase(base.BaseTestCase):
    """Tests on a sysfs of real files, and on what is logged."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())

    def tree(self, description: str) -> sysfs_tree.SysfsTree:
        tree: sysfs_tree.SysfsTree = self.useFixture(
            sysfs_tree.SysfsTree(description))
        return tree

    def cards(self, description: str, **options: Any
              ) -> tuple[host_cards.Card, ...]:
        """The cards of a host.

        :param description: the host, as in sysfs_tree
        :param options: of [gpu_passthru]
        """
        return host_cards.find(pci.Sysfs(self.tree(description).root),
                               policy(**options))

    def offered(self, description: str, **options: Any
                ) -> dict[str, list[str]]:
        """The companions of each offered card, by the card's address."""
        return {str(card.address): [str(f.address) for f in card.companions]
                for card in self.cards(description, **options)
                if card.offered}

    def reasons(self, description: str, **options: Any
                ) -> dict[str, str]:
        """Why each withheld card is withheld, by the card's address."""
        return {str(card.address): card.reason
                for card in self.cards(description, **options)
                if not card.offered}
