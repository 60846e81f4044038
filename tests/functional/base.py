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


"""Nova's services in one process, with GPU hosts of real files."""

import json
import pathlib
import sys
from typing import Any

import fixtures
from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base

from nova_gpu_passthru import conf
from nova_gpu_passthru import driver
from tests.functional import gpu_libvirt
from tests.functional import guest_domain
from tests.functional import sysfs
from tests import sysfs_tree

# Two cards of two functions each, and what any host has beside them.
TWO_CARDS = """
0000:00:02.0 060400 8086:2030 driver=pcieport group=1
0000:00:03.0 060400 8086:2031 driver=pcieport group=2
0000:03:00.0 030000 1a03:2000 driver=ast group=20 boot_vga=1
0000:04:00.0 020000 8086:1572 driver=i40e group=21
0000:17:00.0 030000 10de:1ff2 driver=nvidia group=33 below=0000:00:02.0
0000:17:00.1 040300 10de:10fa driver=snd_hda_intel group=33 below=0000:00:02.0
0000:65:00.0 030000 10de:1ff2 driver=nvidia group=34 below=0000:00:03.0
0000:65:00.1 040300 10de:10fa driver=snd_hda_intel group=34 below=0000:00:03.0
"""
CARD_1 = ['0000:17:00.0', '0000:17:00.1']
CARD_2 = ['0000:65:00.0', '0000:65:00.1']
T400 = '10de:1ff2'

ONE_CARD = """
0000:04:00.0 020000 8086:1572 driver=i40e group=21
0000:17:00.0 030000 10de:1ff2 driver=nvidia group=33
0000:17:00.1 040300 10de:10fa driver=snd_hda_intel group=33
"""
# The same address as ONE_CARD's, another model.
ONE_H100 = """
0000:04:00.0 020000 8086:1572 driver=i40e group=21
0000:17:00.0 030200 10de:2330 driver=nvidia group=33
"""
H100 = '10de:2330'

NO_CARD = """
0000:03:00.0 030000 1a03:2000 driver=ast group=20 boot_vga=1
0000:04:00.0 020000 8086:1572 driver=i40e group=21
"""


class GPUTestCase(base.ServersTestBase):
    """Starts GPU hosts and checks the rules of design.md at the end.

    The scheduler prefers host1 to host2 to host3.
    """

    # Filters of the scheduler beside Nova's default and ours.
    MORE_FILTERS: list[str] = []

    microversion = 'latest'
    ADMIN_API = True

    def setUp(self) -> None:
        self.sysfs: dict[str, sysfs_tree.SysfsTree] = {}
        self._prepared: dict[str, gpu_libvirt.Connection] = {}
        # Cards that a claim holds for an instance that has no domain.
        self.held_without_domain: dict[str, int] = {}
        # Cards on their stub driver that nobody has and that are withheld.
        self.withheld: dict[str, int] = {}
        conf.register_opts(driver.CONF)
        self.useFixture(nova_fixtures.HostNameWeigherFixture())
        super().setUp()
        self.metrics_file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova.prom')
        self.flags(metrics_file=str(self.metrics_file),
                   group='gpu_passthru')
        # As LibvirtFixture does to Nova's modules.
        for name, module in list(sys.modules.items()):
            if name.startswith('nova_gpu_passthru.') and hasattr(
                    module, 'libvirt'):
                self.useFixture(fixtures.MonkeyPatch(f'{name}.libvirt',
                                                     fakelibvirt))

    def tearDown(self) -> None:
        # Not a cleanup: the hosts' sysfs would be gone.
        try:
            self._check_rules()
        finally:
            super().tearDown()

    def _setup_compute_service(self) -> None:
        # An installed Nova has it there, a checkout where Nova's fixture
        # looks.
        paste = pathlib.Path(sys.prefix, 'etc/nova/api-paste.ini')
        if paste.exists():
            self.flags(api_paste_config=str(paste), group='wsgi')
        self.flags(
            compute_driver='nova_gpu_passthru.driver.GPUPassthruDriver')

    def _setup_scheduler_service(self) -> Any:
        self.flags(
            available_filters=[
                'nova.scheduler.filters.all_filters',
                'nova_gpu_passthru.scheduler.filters.FreeGPUsFilter'],
            enabled_filters=[
                *driver.CONF.filter_scheduler.enabled_filters,
                *self.MORE_FILTERS, 'FreeGPUsFilter'],
            group='filter_scheduler')
        return self.start_service('scheduler')

    def _get_connection(self, *args: Any) -> gpu_libvirt.Connection:
        # start_compute() passes the host's name last.
        return self._prepared[args[-1]]

    def start_compute(self, hostname: str = 'host1', *args: Any,
                      **kwargs: Any) -> str:
        # The driver reads it once; these hosts share one configuration.
        self.flags(state_dir=str(self.sysfs[hostname].root / 'state'),
                   group='gpu_passthru')
        driver = 'nova_gpu_passthru.driver.GPUPassthruDriver'
        root = self.sysfs[hostname].root
        with (fixtures.MonkeyPatch(f'{driver}.sysfs_root', root),
              fixtures.MonkeyPatch(f'{driver}.host_root', root)):
            super().start_compute(hostname, *args, **kwargs)
        return hostname

    def add_host(self, name: str,
                 description: str) -> gpu_libvirt.Connection:
        """Starts nova-compute on a host with these PCI functions."""
        connection = self.prepare_host(name, description)
        self.start_compute(name)
        return connection

    def add_host_of_nova(self, name: str) -> None:
        """Starts nova-compute with Nova's own driver."""
        self.flags(compute_driver='libvirt.LibvirtDriver')
        self.add_host(name, NO_CARD)
        self.assertNotIsInstance(self.computes[name].driver,
                                 driver.GPUPassthruDriver)

    def prepare_host(self, name: str,
                     description: str) -> gpu_libvirt.Connection:
        """Makes a host on which nova-compute does not run yet."""
        self.sysfs[name] = self.useFixture(
            sysfs_tree.SysfsTree(description))
        self._prepared[name] = gpu_libvirt.Connection(
            self.sysfs[name], hostname=name,
            host_info=fakelibvirt.HostInfo(cpu_nodes=2, cpu_sockets=1,
                                           cpu_cores=2, cpu_threads=2))
        return self._prepared[name]

    def copy_no_disks(self) -> None:
        """Lets guests move that have no disks which could be copied."""
        def power_off_only(driver: Any, context: Any, instance: Any,
                           *args: Any, **kwargs: Any) -> str:
            driver.power_off(instance)
            return '{}'

        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.driver.LibvirtDriver'
            '.migrate_disk_and_power_off', power_off_only))

    def evacuate(self, server: dict[str, Any]) -> None:
        """Lets host1 fail and moves a server from there to host2."""
        service = self.admin_api.get_services(
            host='host1', binary='nova-compute')[0]
        self.computes['host1'].stop()
        self.admin_api.put_service_force_down(service['id'], True)
        self._evacuate_server(server, expected_host='host2')

    def create_flavor(self, extra_specs: dict[str, str] | None = None) -> str:
        return self._create_flavor(
            memory_mb=256, vcpu=1, disk=1, ephemeral=0,
            extra_spec=extra_specs or None)

    def create_server(self, extra_specs: dict[str, str] | None = None,
                      flavor_id: str | None = None,
                      state: str = 'ACTIVE', **kwargs: Any) -> dict[str, Any]:
        """Creates a server and waits for it.

        :param extra_specs: of its flavor, which is made
        :param flavor_id: a flavor that exists
        :param state: the state to wait for
        """
        return self._create_server(
            flavor_id=flavor_id or self.create_flavor(extra_specs),
            networks='none', expected_state=state, **kwargs)

    def create_gpu_server(self, count: int = 1,
                          **kwargs: Any) -> dict[str, Any]:
        return self.create_server({'free_gpus': f'>={count}'}, **kwargs)

    def create_at_once(self, count: int,
                       flavor_id: str) -> list[dict[str, Any]]:
        """Creates several servers by one request."""
        body = self._build_server(flavor_id=flavor_id, networks='none')
        body['min_count'] = count
        self.api.post_server({'server': body})
        return [self._wait_for_state_change(server, 'ACTIVE')
                for server in self.api.get_servers()]

    def host_of(self, server: dict[str, Any]) -> str | None:
        server = self.api.get_server(server['id'])
        return server['OS-EXT-SRV-ATTR:host']

    def domain_of(self, server: dict[str, Any]) -> guest_domain.Domain:
        found = [domain for name in self.computes
                 for domain in self._prepared[name].domains
                 if domain.UUIDString() == server['id']]
        self.assertEqual(1, len(found), 'domains of the server')
        return found[0]

    def run_periodic(self, *names: str) -> None:
        """Lets hosts, or all, report their resources."""
        for name in names or tuple(self.computes):
            self.computes[name].manager.update_available_resource(
                nova_context.get_admin_context())

    def stats_of(self, name: str) -> dict[str, str]:
        """What the scheduler knows of a host."""
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            nova_context.get_admin_context(), name)
        return node.stats

    def reported(self, name: str) -> Any:
        """What the scheduler knows of a host's GPUs, None if nothing."""
        text = self.stats_of(name).get('gpu_passthru')
        return None if text is None else json.loads(text)

    def assertFree(self, count: int, name: str) -> None:
        """Checks how many GPUs the scheduler believes to be free."""
        report = self.reported(name)
        self.assertIsNotNone(report, f'{name} reports no GPUs')
        self.assertEqual(count, report['free_gpus'], f'{name}: {report}')

    def assertGPUs(self, server: dict[str, Any],
                   functions: list[str]) -> None:
        """Checks which host functions a running server has, in order."""
        self.assertEqual(functions, self.domain_of(server).functions)

    def guest_places(self, server: dict[str, Any]) -> list[str]:
        """Where a server finds its host functions, in order."""
        xml = etree.fromstring(self.domain_of(server).XMLDesc(0))
        return [
            '{:02x}:{:02x}.{:x}'.format(*(
                int(address.get(name), 16)
                for name in ('bus', 'slot', 'function')))
            for address in xml.iterfind("devices/hostdev/address")]

    def assertNoHost(self, server: dict[str, Any]) -> None:
        """Checks that a server found no host and left nothing behind.

        Nova has another text where it tried all hosts.
        """
        self.assertRegex(server['fault']['message'],
                         'No valid host|Exhausted all hosts')
        self.assertIsNone(self.host_of(server))
        self.assertNoAllocations(server)

    def assertNoAllocations(self, server: dict[str, Any]) -> None:
        self.assertEqual(
            {}, self._get_allocations_by_server_uuid(server['id']))

    def _check_rules(self) -> None:
        for name in self.computes:
            held = self._held_once(name)
            self.run_periodic(name)
            self._check_count(name, held)
            self._check_strangers(name)

    def _held_once(self, name: str) -> set[str]:
        """A function has one holder at most, running or defined."""
        holders: dict[str, set[str]] = {}
        for domain in self._prepared[name].domains:
            for flags in (0, fakelibvirt.VIR_DOMAIN_XML_INACTIVE):
                xml = etree.fromstring(domain.XMLDesc(flags))
                for address in guest_domain.host_functions(xml):
                    holders.setdefault(address, set()).add(domain.name())
        for address, names in holders.items():
            self.assertEqual(1, len(names), f'{name}: {address}: {names}')
        return set(holders)

    def _check_count(self, name: str, held: set[str]) -> None:
        """What is told to be free is free, and nothing free is kept."""
        tree = self.sysfs[name]
        closed = held.union(*(sysfs.group_mates(tree, a) for a in held))
        free = [card for card in sysfs.cards_on_stub(tree)
                if closed.isdisjoint(card)]
        expected = (len(free) - self.held_without_domain.get(name, 0) -
                    self.withheld.get(name, 0))
        report = self.reported(name) or {'free_gpus': 0}
        self.assertEqual(expected, report['free_gpus'],
                         f'{name}: {report}, held: {sorted(held)}')

    def _check_strangers(self, name: str) -> None:
        """What is no part of a card is where it was."""
        tree = self.sysfs[name]
        cards = {a for card in sysfs.cards_on_stub(tree) for a in card}
        originals = self._prepared[name].original_drivers
        for address, original in originals.items():
            if address not in cards and tree.path(address).exists():
                self.assertEqual(original, sysfs.driver(tree, address),
                                 f'{name}: driver of {address}')
