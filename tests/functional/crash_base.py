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


"""What the tests that kill nova-compute share."""

from collections.abc import Callable
from typing import Any

from nova import context as nova_context
from nova import objects

from tests.functional import base
from tests.functional import crashes

# Cards of one function, which libvirt takes out of a running guest.
TWO_H100 = """
0000:17:00.0 030200 10de:2330 driver=nvidia group=33
0000:65:00.0 030200 10de:2330 driver=nvidia group=34
"""
H100_1, H100_2 = ['0000:17:00.0'], ['0000:65:00.0']


class CrashTestCase(base.GPUTestCase):
    """A host with two equal cards whose nova-compute is killed.

    :cvar HOST: its PCI functions
    :cvar ON_START: whether nova-compute runs before the test
    """

    # The thread that is killed must not be the test's own.
    CAST_AS_CALL = False

    HOST = base.TWO_CARDS
    ON_START = True

    def setUp(self) -> None:
        super().setUp()
        if self.ON_START:
            self.connection = self.add_host('host1', self.HOST)
        self.crash = self.useFixture(crashes.Crash())

    def post_gpu_server(self, count: int = 1) -> dict[str, Any]:
        """Asks for a server, and does not wait for it."""
        return self.api.post_server({'server': self._build_server(
            flavor_id=self.create_flavor({'free_gpus': f'>={count}'}),
            networks='none')})

    def act(self, server: dict[str, Any], action: dict[str, Any]) -> None:
        self.api.post_server_action(server['id'], action)

    def wait_for_error(self, server: dict[str, Any]) -> None:
        """Waits for the state that Nova sets at its start, without fault."""
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:vm_state': 'error'})

    def kill_in(self, point: str, action: Callable[[], Any],
                name: str = 'host1') -> None:
        """Kills a host's service at a point of an action, and restarts it."""
        self.crash.arm(point)
        action()
        self.restart_killed(name)

    def restart_killed(self, name: str = 'host1') -> None:
        """Starts a service anew once it was killed, and checks the rules."""
        self.crash.wait()
        service = self.computes.pop(name)
        self.compute_rp_uuids.pop(name)
        for server in (service.rpcserver,
                       getattr(service, 'rpcserver_alt', None)):
            if server is not None:
                server.stop()
        connection = self._prepared[name]
        connection._event_callbacks.clear()
        self.start_compute(name, connection=connection)
        # Before the cleanup of the killed service, which waits for its
        # threads.
        self.addCleanup(self.crash.release)
        self.check()

    def check(self) -> None:
        """Checks the rules of design.md now.

        What the instances of a host ask for and no domain has is kept for
        them.
        """
        for name in self.computes:
            self.held_without_domain[name] = self.without_domain(name)
        self._check_rules()

    def check_neighbour(self) -> None:
        """The other card of the two is free for others, and only that."""
        self.check()
        self.assertFree(1, 'host1')
        neighbour = self.create_gpu_server()
        self.check()
        self.assertFree(0, 'host1')
        self._delete_server(neighbour)
        self.check()

    def check_deleted(self, server: dict[str, Any]) -> None:
        """The user deletes a server, and then all cards are free."""
        self.api.delete_server(server['id'])
        # In the state ERROR is where it may be meanwhile.
        self._wait_until_deleted({**server, 'status': 'ERROR'})
        self.check_all_free()

    def check_all_free(self) -> None:
        """All cards of all hosts can be given to guests."""
        self.check()
        for name in self.computes:
            self.assertEqual([], self._prepared[name].domains)
            self.assertFree(2, name)
            self.create_gpu_server(2, az=f'nova:{name}')

    def without_domain(self, name: str) -> int:
        """How many cards are kept for instances whose domain has none."""
        missing = 0
        for instance in objects.InstanceList.get_by_host(
                nova_context.get_admin_context(), name,
                expected_attrs=['flavor']):
            asked = instance.flavor.extra_specs.get('free_gpus', '0')
            have = {address.partition('.')[0]
                    for domain in self._prepared[name].domains
                    if domain.UUIDString() == instance.uuid
                    for address in domain.all_functions}
            missing += max(0, int(asked.lstrip('>= ')) - len(have))
        return missing
