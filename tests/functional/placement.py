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


"""What Placement has on record of a test's hosts and servers."""

import collections
from typing import Any, NamedTuple

from lxml import etree
from nova.compute import instance_actions
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import base
from tests.functional import guest_domain
from tests import sysfs_tree

TWO_MODELS = base.ONE_CARD + """
0000:65:00.0 030200 10de:2330 driver=nvidia group=34
"""
THE_H100 = ['0000:65:00.0']
# In the order of addresses both H100s stand after both T400s.
TWO_OF_TWO_MODELS = base.TWO_CARDS + """
0000:81:00.0 030200 10de:2330 driver=nvidia group=41
0000:82:00.0 030200 10de:2330 driver=nvidia group=42
"""
TWO_H100S = ['0000:81:00.0', '0000:82:00.0']
# Two cards that only one guest can have.
ONE_GROUP = """
0000:17:00.0 030200 10de:1ff2 driver=nvidia group=33
0000:65:00.0 030200 10de:1ff2 driver=nvidia group=33
"""

T400_TRAIT = 'CUSTOM_GPU_10DE_1FF2'
H100_TRAIT = 'CUSTOM_GPU_10DE_2330'


class Pool(NamedTuple):
    """The inventory of one provider and what is allocated from it."""

    total: int
    reserved: int = 0
    used: int = 0


class PlacementTestCase(base.GPUTestCase):
    """Compares Placement's records with domains and sysfs at the end."""

    def pgpu_flavor(self, count: int, **more: str) -> str:
        return self.create_flavor({'resources:PGPU': str(count), **more})

    def create_pgpu_server(self, count: int = 1,
                           **kwargs: Any) -> dict[str, Any]:
        return self.create_server({'resources:PGPU': str(count)}, **kwargs)

    def pool_uuids(self, host: str) -> dict[str, str]:
        """The providers of a host's GPUs: uuid by model."""
        root = self.compute_rp_uuids[host]
        providers = self.placement.get(
            f'/resource_providers?in_tree={root}',
            version='1.14').body['resource_providers']
        prefix = f'{host}_gpu_'
        return {p['name'].removeprefix(prefix).replace('_', ':'): p['uuid']
                for p in providers if p['name'].startswith(prefix)}

    def pools(self, host: str) -> dict[str, Pool]:
        """The records of a host's GPUs by model."""
        found = {}
        for model, uuid in self.pool_uuids(host).items():
            inventory = self._get_provider_inventory(uuid)
            self.assertEqual({'PGPU'}, set(inventory))
            found[model] = Pool(
                inventory['PGPU']['total'], inventory['PGPU']['reserved'],
                self._get_provider_usages(uuid)['PGPU'])
        return found

    def given(self, consumer: str) -> dict[tuple[str, str], int]:
        """What a consumer has on record: the number by host and model."""
        allocations = self._get_allocations_by_server_uuid(consumer)
        return {(host, model): allocations[uuid]['resources']['PGPU']
                for host in self.computes
                for model, uuid in self.pool_uuids(host).items()
                if uuid in allocations}

    def assertPool(self, host: str, total: int, reserved: int = 0,
                   used: int = 0, model: str = base.T400) -> None:
        self.assertEqual(Pool(total, reserved, used),
                         self.pools(host).get(model), f'{model} of {host}')

    def assertGiven(self, server: dict[str, Any], host: str, count: int,
                    model: str = base.T400) -> None:
        """Checks all that Placement gave a server of GPUs."""
        self.assertEqual({(host, model): count}, self.given(server['id']))

    def assertNeverRescheduled(self, server: dict[str, Any]) -> None:
        """Checks that the first host that was asked took the server."""
        actions = self.api.get_instance_actions(server['id'])
        created, = [action for action in actions
                    if action['action'] == instance_actions.CREATE]
        shown = self.api.get_instance_action_details(
            server['id'], created['request_id'])
        builds = [event for event in shown['events']
                  if event['event'] == 'compute__do_build_and_run_instance']
        self.assertEqual(['Success'], [event['result'] for event in builds])

    def _check_rules(self) -> None:
        super()._check_rules()
        for host in self.computes:
            self._check_pools(host)
            self._check_guests(host)

    def _check_pools(self, host: str) -> None:
        """Placement has as many left as the host, or fewer, never more."""
        report = self.reported(host) or {'free_by_model': {}}
        for model, pool in self.pools(host).items():
            left = pool.total - pool.reserved - pool.used
            self.assertEqual(report['free_by_model'].get(model, 0),
                             max(0, left), f'{model} of {host}: {pool}')

    def _check_guests(self, host: str) -> None:
        """Guests that asked Placement have the cards that it took."""
        tree = self.sysfs[host]
        for domain in self._prepared[host].domains:
            given = {model: count for (on, model), count in self.given(
                domain.UUIDString()).items() if on == host}
            if not given:
                continue
            cards = collections.Counter(
                _model(tree, address) for address in _functions(domain)
                if address.endswith('.0'))
            self.assertEqual(given, dict(cards), domain.UUIDString())


def _functions(domain: guest_domain.Domain) -> set[str]:
    """What a domain has, or will have when it starts."""
    return {address for flags in (0, fakelibvirt.VIR_DOMAIN_XML_INACTIVE)
            for address in guest_domain.host_functions(
                etree.fromstring(domain.XMLDesc(flags)))}


def _model(tree: sysfs_tree.SysfsTree, address: str) -> str:
    return ':'.join(
        (tree.path(address) / name).read_text().strip().removeprefix('0x')
        for name in ('vendor', 'device'))
