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

"""The driver's own decisions; tests/functional has the life of guests."""

import ddt
import fixtures
from nova import context
from nova import exception
from nova import objects
from nova import test
from nova.tests import fixtures as nova_fixtures
from nova.virt import fake
from oslo_config import fixture as config_fixture

from nova_gpu_passthru import driver
from nova_gpu_passthru.host import pci
from tests import sysfs_tree
from tests.unit import base

UUID = 'aaaaaaaa-0000-4000-8000-000000000000'
HOST = """
0000:65:00.0 030200 10de:2330 driver=vfio-pci group=1
0000:66:00.0 030200 10de:2330 driver=vfio-pci group=2
"""


def instance(**extra_specs: str) -> objects.Instance:
    return objects.Instance(uuid=UUID, numa_topology=None,
                            flavor=objects.Flavor(flavorid='g1',
                                                  extra_specs=extra_specs))


class TestCase(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(nova_fixtures.LibvirtFixture())
        self.flags(virt_type='kvm', group='libvirt')

    def start(self, description: str = HOST) -> driver.GPUPassthruDriver:
        """Starts the driver as init_host() does, without Nova's part."""
        tree = self.useFixture(sysfs_tree.SysfsTree(description))
        for attribute in ('sysfs_root', 'host_root'):
            self.useFixture(fixtures.MonkeyPatch(
                f'nova_gpu_passthru.driver.GPUPassthruDriver.{attribute}',
                str(tree.root)))
        # Where it writes its metrics, and what it has to remember.
        self.flags(state_path=str(tree.root))
        one = driver.GPUPassthruDriver(fake.FakeVirtAPI())
        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.init_host',
                      lambda *args: None)
        self.stub_out('nova.objects.InstanceList.get_by_host',
                      lambda *args, **kwargs: [])
        return one


class InitHostTest(TestCase):
    def refusal(self) -> str:
        return str(self.assertRaises(exception.InvalidConfiguration,
                                     self.start().init_host, 'host'))

    def test_malformed_entry_stops_the_service(self) -> None:
        one = self.start()
        self.flags(exclude=['0000:82.0.0'], group='gpu_passthru')
        error = self.assertRaises(exception.InvalidConfiguration,
                                  one.init_host, 'host')
        self.assertIn("'0000:82.0.0'", str(error))

    # Nobody asks for it before the first guest with a NUMA topology comes.
    def test_option_of_another_kind_stops_the_service(self) -> None:
        self.useFixture(config_fixture.Config(driver.CONF)).load_raw_values(
            group='gpu_passthru', guest_numa_placement='perhaps')
        refusal = self.refusal()
        self.assertIn('[gpu_passthru] guest_numa_placement', refusal)
        self.assertIn("'perhaps'", refusal)

    def test_nova_that_it_was_not_made_for_stops_the_service(self) -> None:
        self.stub_out('nova.version.version_string', lambda: '35.0.0')
        self.assertIn('this is Nova 35.0.0', self.refusal())

    def test_other_hypervisors_get_no_gpus(self) -> None:
        self.flags(virt_type='lxc', group='libvirt')
        one = self.start()
        one.init_host('host')
        self.assertIn('virt_type is lxc', self.stdlog.logger.output)
        self.assertFalse(one._gpus.has_candidates())

    def test_cards_are_found(self) -> None:
        one = self.start()
        one.init_host('host')
        self.assertEqual(2, one._gpus.usage().free_gpus)


class StatsTest(TestCase):
    def stats(self, description: str) -> dict[str, object]:
        self.stub_out(
            'nova.virt.libvirt.driver.LibvirtDriver.get_available_resource',
            lambda *args: {'vcpus': 8, 'stats': {'uptime': '1 day'}})
        one = self.start(description)
        one.init_host('host')
        data = one.get_available_resource('node')
        self.assertEqual(8, data['vcpus'])
        return data['stats']

    def test_what_nova_reports_is_kept(self) -> None:
        stats = self.stats(HOST)
        self.assertEqual({'uptime', 'gpu_passthru'}, set(stats))
        self.assertIn('"free_gpus": 2', stats['gpu_passthru'])

    def test_host_without_gpus_reports_as_nova_does(self) -> None:
        self.assertEqual({'uptime': '1 day'}, self.stats(
            '0000:03:00.0 030000 1a03:2000 driver=ast group=1'))


@ddt.ddt
class ClaimTest(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.driver = self.start()
        self.driver.init_host('host')

    def test_shortage_lets_nova_try_the_next_host(self) -> None:
        # https://bugs.launchpad.net/nova/+bug/1986838
        error = self.assertRaises(
            exception.ComputeResourcesUnavailable,
            self.driver.prepare_for_spawn, instance(free_gpus='3'))
        self.assertIn(UUID, str(error))
        self.assertEqual(2, self.driver._gpus.usage().free_gpus)

    def test_shortage_is_logged_once(self) -> None:
        log = self.useFixture(base.operators_log())
        self.assertRaises(
            exception.ComputeResourcesUnavailable,
            self.driver.prepare_for_spawn, instance(free_gpus='3'))
        self.assertEqual(1, log.output.count('asks for 3 GPUs'), log.output)

    # https://bugs.launchpad.net/nova/+bug/1482019: a forced host skips the
    # filters.
    @ddt.data({'free_gpus': '=>2'},
              {'free_gpus': '1', 'resources:PGPU': '2'})
    def test_flavor_that_makes_no_sense_starts_no_guest(
            self, specs: dict[str, str]) -> None:
        error = self.assertRaises(
            exception.InstanceUnacceptable, self.driver.prepare_for_spawn,
            instance(**specs))
        self.assertIn(UUID, str(error))
        self.assertIn('free_gpus', str(error))

    def test_guest_without_gpus_claims_none(self) -> None:
        self.driver.prepare_for_spawn(instance(**{'hw:cpu_policy': 'mixed'}))
        self.assertEqual(2, self.driver._gpus.usage().free_gpus)

    def test_failed_spawn_gives_back_what_it_claimed(self) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            self.assertEqual(1, self.driver._gpus.usage().free_gpus)
            raise exception.NovaException('no disk')

        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.spawn', fail)
        self.assertRaises(exception.NovaException, self.driver.spawn,
                          context.get_admin_context(),
                          instance(free_gpus='1'))
        self.assertEqual(2, self.driver._gpus.usage().free_gpus)

    def test_failed_spawn_keeps_what_was_claimed_before(self) -> None:
        # Nova calls failed_spawn_cleanup() then.
        def fail(*args: object, **kwargs: object) -> None:
            raise exception.NovaException('no disk')

        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.spawn', fail)
        one = instance(free_gpus='1')
        self.driver.prepare_for_spawn(one)
        self.assertRaises(exception.NovaException, self.driver.spawn,
                          context.get_admin_context(), one)
        self.assertEqual(1, self.driver._gpus.usage().free_gpus)
        self.driver.failed_spawn_cleanup(one)
        self.assertEqual(2, self.driver._gpus.usage().free_gpus)

    def test_guest_that_has_gpus_does_not_move_while_it_runs(self) -> None:
        one = instance(free_gpus='1')
        for check in (self.driver.check_can_live_migrate_source,
                      self.driver.check_can_live_migrate_destination):
            error = self.assertRaises(exception.MigrationPreCheckError, check,
                                      context.get_admin_context(), one)
            self.assertIn(UUID, str(error))

    def test_guest_whose_flavor_lost_its_gpus_does_not_either(self) -> None:
        self.driver.prepare_for_spawn(instance(free_gpus='1'))
        self.assertEqual(
            {pci.PCIAddress(0, 0x65, 0, 0)},
            self.driver._gpus.held_by(UUID))
        self.assertRaises(exception.MigrationPreCheckError,
                          self.driver.check_can_live_migrate_source,
                          context.get_admin_context(), instance())
