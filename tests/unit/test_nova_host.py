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

import inspect

import ddt
import fixtures
import libvirt
from nova import context
from nova import exception
from nova import objects
from nova import test
from nova.virt.libvirt import driver as libvirt_driver

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru import nova_host
from tests.unit.host import test_hypervisor


def instance(uuid: str, extra_specs: dict[str, str] | None
             ) -> objects.Instance:
    of_flavor = objects.Flavor(flavorid='g1')
    if extra_specs is not None:
        of_flavor.extra_specs = extra_specs
    return objects.Instance(uuid=uuid, flavor=of_flavor, numa_topology=None)


class HookTest(test.NoDBTestCase):
    def test_hook_has_the_signature_of_novas_method(self) -> None:
        @nova_host.hook
        def reboot(self: object, *args: object, **kwargs: object) -> None:
            pass

        self.assertEqual(
            inspect.signature(libvirt_driver.LibvirtDriver.reboot),
            inspect.signature(reboot))

    def test_method_that_nova_does_not_have_is_an_error(self) -> None:
        def reboot_gently(self: object) -> None:
            pass

        self.assertRaises(AttributeError, nova_host.hook, reboot_gently)


@ddt.ddt
class RequestTest(test.NoDBTestCase):
    UUID = 'aaaaaaaa-0000-4000-8000-000000000000'
    OTHER = 'bbbbbbbb-0000-4000-8000-000000000000'

    @ddt.unpack
    @ddt.data((None, None), ({}, None), ({'hw:cpu_policy': 'shared'}, None),
              ({'free_gpus': '>=2'}, flavor.GPURequest(2)))
    def test_instance_asks_for_what_its_flavor_says(
            self, specs: dict[str, str] | None,
            expected: flavor.GPURequest | None) -> None:
        self.assertEqual(expected,
                         nova_host.request_of(instance(self.UUID, specs)))

    def test_flavor_that_makes_no_sense_is_an_error(self) -> None:
        self.assertRaises(
            exceptions.InvalidFlavor, nova_host.request_of,
            instance(self.UUID, {'free_gpus': '=>2'}))

    def test_one_instance_that_makes_no_sense_hides_no_other(self) -> None:
        self.stub_out(
            'nova.objects.InstanceList.get_by_host',
            lambda *args, **kwargs: [
                instance(self.OTHER, {'free_gpus': '=>2'}),
                instance('cccccccc-0000-4000-8000-000000000000', {}),
                instance(self.UUID, {'free_gpus': '2'})])
        self.assertEqual([(self.UUID, flavor.GPURequest(2))],
                         [(i.uuid, request) for i, request in
                          nova_host.requests_on('host')])
        self.assertIn("'=>2'", self.stdlog.logger.output)


class RevertTest(test.NoDBTestCase):
    def reverts_here(self, source: str, destination: str) -> bool:
        self.stub_out(
            'nova.objects.Migration.get_by_instance_and_status',
            lambda *args: objects.Migration(source_compute=source,
                                            dest_compute=destination))
        return nova_host.reverts_on_same_host(
            context.get_admin_context(),
            instance(RequestTest.UUID, {'free_gpus': '1'}))

    def test_resize_that_never_left_its_host(self) -> None:
        self.assertIs(True, self.reverts_here('one', 'one'))
        self.assertIs(False, self.reverts_here('one', 'two'))


class LibvirtHost:
    """A nova.virt.libvirt.host.Host with two domains.

    :ivar connections: how often the connection was asked for
    """

    def __init__(self) -> None:
        self.connections = 0
        self.asked: list[bool] = []

    def get_connection(self) -> test_hypervisor.Connection:
        self.connections += 1
        return test_hypervisor.Connection()

    def list_instance_domains(self, only_running: bool = True
                              ) -> list[test_hypervisor.Domain]:
        self.asked.append(only_running)
        return [test_hypervisor.Domain(True), test_hypervisor.Domain(False)]


class NovaHypervisorTest(test.NoDBTestCase):
    def test_domains_that_are_shut_off_are_read_too(self) -> None:
        host = LibvirtHost()
        self.assertEqual(
            [False, True, False],
            [description.running for description in
             nova_host.NovaHypervisor(host).domains()])
        self.assertEqual([False], host.asked)

    def test_connection_is_novas_of_the_moment(self) -> None:
        # Nova opens it anew after libvirt was restarted.
        host = LibvirtHost()
        hypervisor = nova_host.NovaHypervisor(host)
        self.assertEqual(0, host.connections)
        for _ in range(2):
            hypervisor.node_device('pci_0000_3b_00_0')
        self.assertEqual(2, host.connections)

    def test_without_a_connection_libvirt_does_not_tell(self) -> None:
        # Nova says so with an error of its own.
        def refuse(*args: object, **kwargs: object) -> None:
            raise exception.HypervisorUnavailable()

        host = LibvirtHost()
        for name in ('get_connection', 'list_instance_domains'):
            self.useFixture(fixtures.MockPatchObject(host, name, refuse))
        hypervisor = nova_host.NovaHypervisor(host)
        for call in (lambda: list(hypervisor.domains()),
                     lambda: hypervisor.node_device('pci_0000_3b_00_0'),
                     lambda: hypervisor.set_metadata('uuid', '<x/>', 'y')):
            error = self.assertRaises(libvirt.libvirtError, call)
            self.assertIn('hypervisor is broken', str(error))
