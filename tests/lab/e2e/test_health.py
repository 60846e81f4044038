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

"""Cards that leave the virtual host and come back."""

from lab import steps
from lab import topology

from e2e import base

_SINGLE = {'gpu_passthru:model': topology.SINGLE}
_RESCAN = 'echo 1 > /sys/bus/pci/rescan'
# A kernel that waits for a guest to let go says so after 10 seconds.
_REMOVAL_LIMIT = 120


class RemovalTest(base.LabTestCase):

    def _remove(self, address: str) -> None:
        self.addCleanup(self.lab.host.run, _RESCAN)
        with steps.step(f'Remove {address} from the virtual host'):
            # In the background, for the kernel waits for the guest that has
            # it, which QEMU asks to let go.
            self.lab.host.run(
                f'(echo 1 > /sys/bus/pci/devices/{address}/remove) '
                f'> /dev/null 2>&1 &')
            steps.wait_for(
                lambda: address not in self._addresses(),
                f'{address} is still there', _REMOVAL_LIMIT)

    def _rescan(self, address: str) -> None:
        with steps.step('Rescan the bus of the virtual host'):
            self.lab.host.run(_RESCAN)
            steps.wait_for(lambda: address in self._addresses(),
                           f'{address} does not come back', _REMOVAL_LIMIT)

    def _addresses(self) -> set[str]:
        return {function.address for function in self.lab.functions()}

    def _driver(self, address: str) -> str | None:
        driver, = (function.driver for function in self.lab.functions()
                   if function.address == address)
        return driver

    def test_while_it_is_offered(self) -> None:
        address, = (card['address'] for card in self.cards()
                    if card['model'] == topology.SINGLE)
        self._remove(address)
        self.assert_free(topology.TOTAL - 1)
        self.assertNotIn(address, [card['address'] for card in self.cards()])
        self._rescan(address)
        self.assert_free(topology.TOTAL)
        self.assertEqual('vfio-pci', self._driver(address))

    def test_while_a_guest_has_it(self) -> None:
        server = self.boot(**_SINGLE)
        card, = self.assert_sees_its_cards(server, self.report(server))
        address = card['address']
        self.assert_free(topology.TOTAL - 1)
        self._remove(address)
        self.assert_alive(server)
        self.lab.cloud.forget_gpu_stats()
        self.assert_free(topology.TOTAL - 1)
        gone, = (row for row in self.cards_of(server))
        self.assertEqual((address, 'withheld'),
                         (gone['address'], gone['verdict']))
        self.assertIn('is gone from the bus', gone['reason'])

        self._rescan(address)
        self.lab.cloud.forget_gpu_stats()
        self.assert_free(topology.TOTAL - 1)
        self.assert_no_valid_host('>=1', **_SINGLE)
        with steps.step('Reboot the server hard'):
            self.lab.cloud.act(server, 'reboot_server', 'ACTIVE',
                               reboot_type='HARD')
        self.assertEqual([address], [
            row['address'] for row in self.assert_sees_its_cards(
                server, self.report(server))])
        self.delete(server)
        self.assert_free(topology.TOTAL)
