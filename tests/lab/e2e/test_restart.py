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

"""Servers with GPUs when what is below them is restarted."""

from lab import nova_compute
from lab import steps
from lab import topology

from e2e import base


class RestartTest(base.LabTestCase):
    """What outlives nova-compute, and what outlives its host's uptime."""

    def _restart_compute(self) -> None:
        # What the scheduler was told before must not stand in for what the
        # new process says.
        self.lab.cloud.forget_gpu_stats()
        with steps.step('Start nova-compute again'):
            self.lab.compute.start()

    def test_nova_compute_killed_and_the_host_rebooted(self) -> None:
        server = self.boot()
        card, = self.assert_sees_its_cards(server, self.report(server))
        self.assert_free(topology.TOTAL - 1)
        domain = self.lab.running_id(server)
        drivers = self.lab.functions()

        with nova_compute.watch_bindings(self.lab.host) as bindings:
            with steps.step('Kill nova-compute with SIGKILL'):
                self.lab.compute.kill()
            self._restart_compute()
        self.assertEqual([], bindings)
        self.assertEqual(drivers, self.lab.functions())

        self.assertEqual(domain, self.lab.running_id(server))
        self.assert_alive(server)
        self.assertEqual([card], self.cards_of(server))
        self.assert_free(topology.TOTAL - 1)

        with steps.step('Reboot the virtual host'):
            self.lab.host.power_off()
            self.lab.host.power_on()
            self.lab.host.wait_ready()
        self._restart_compute()

        # The server is off and keeps its card.
        self.assertEqual([card], self.cards_of(server))
        self.assert_free(topology.TOTAL - 1)
        with steps.step('Start the server'):
            self.lab.cloud.wait_status(server, 'SHUTOFF')
            self.lab.cloud.act(server, 'start_server')
        self.assertEqual([card], self.assert_sees_its_cards(
            server, self.report(server)))
        self.delete(server)
        self.assert_free(topology.TOTAL)
