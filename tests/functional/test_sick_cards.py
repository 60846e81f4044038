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


"""Cards that fall sick, are withheld and come back, with Nova's services."""

from typing import Any

from nova.tests.functional.api import client as api_client

from tests.functional import base
from tests.functional import libvirt_errors
from tests.functional import operator_command
from tests.functional import placement
from tests.functional import sysfs

AGAIN_1 = """
0000:17:00.0 030000 10de:1ff2 driver=nvidia group=33 below=0000:00:02.0
0000:17:00.1 040300 10de:10fa driver=snd_hda_intel group=33 below=0000:00:02.0
"""


class TestCase(placement.PlacementTestCase):
    """A host with two equal cards; a server may have the first."""

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.TWO_CARDS)
        self.tree = self.connection.sysfs

    def create_on_card_1(self) -> dict[str, Any]:
        server = self.create_pgpu_server()
        self.assertGPUs(server, base.CARD_1)
        self.run_periodic()
        return server

    def assertPeriod(self, free: int, total: int, reserved: int = 0,
                     used: int = 0) -> None:
        """Checks what the host reports next."""
        self.run_periodic()
        self.assertFree(free, 'host1')
        self.assertPool('host1', total, reserved, used)

    def remove_card_1(self) -> None:
        for address in reversed(base.CARD_1):
            self.tree.remove(address)


class SickTest(TestCase):

    def test_dead_while_offered(self) -> None:
        self.tree.set_dead(base.CARD_1[0])
        self.withheld['host1'] = 1
        self.assertPeriod(free=1, total=1)
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)

    def test_dead_while_held_and_well_again(self) -> None:
        server = self.create_on_card_1()
        self.tree.set_dead(base.CARD_1[0])
        self.assertPeriod(free=1, total=2, used=1)
        self._delete_server(server)
        self.withheld['host1'] = 1
        self.assertPeriod(free=1, total=1)
        self.tree.set_dead(base.CARD_1[0], dead=False)
        self.withheld['host1'] = 0
        self.assertPeriod(free=2, total=2)

    # https://github.com/amd/MxGPU-Virtualization/issues/25
    def test_dead_by_the_reset_after_its_guest(self) -> None:
        server = self.create_pgpu_server(2)
        self.tree.set_dead(base.CARD_1[0])
        self._delete_server(server)
        self.withheld['host1'] = 1
        # Before any periodic task.
        self.create_pgpu_server(2, state='ERROR')
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)

    def test_gone_while_held(self) -> None:
        server = self.create_on_card_1()
        self.remove_card_1()
        for _ in range(2):
            self.assertPeriod(free=1, total=2, used=1)
        self._delete_server(server)
        self.assertPeriod(free=1, total=1)
        self.tree.add(AGAIN_1)
        self.assertPeriod(free=2, total=2)
        self.assertEqual(base.CARD_1 + base.CARD_2,
                         sysfs.on_stub(self.tree))

    def test_gone_while_held_and_back_before_its_guest_goes(self) -> None:
        server = self._stop_server(self.create_on_card_1())
        self.remove_card_1()
        self.assertPeriod(free=1, total=2, used=1)
        self.tree.add(AGAIN_1)
        self.assertPeriod(free=1, total=2, used=1)
        self._start_server(server)
        self.assertGPUs(server, base.CARD_1)

    def test_gone_for_good_and_its_guest_starts_with_another(self) -> None:
        server = self._stop_server(self.create_on_card_1())
        self.remove_card_1()
        self.assertPeriod(free=1, total=2, used=1)
        self._start_server(server)
        self.assertGPUs(server, base.CARD_2)
        self.assertPeriod(free=0, total=1, used=1)

    def test_gone_while_held_and_nova_compute_restarts(self) -> None:
        server = self.create_on_card_1()
        self.remove_card_1()
        self.restart_compute_service('host1')
        self.assertPeriod(free=1, total=2, used=1)
        self._delete_server(server)
        self.assertPeriod(free=1, total=1)


class WithholdTest(TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.operator = self.useFixture(
            operator_command.OperatorCommand(self.connection))

    def withhold(self) -> str:
        return self.operator('withhold', base.CARD_1[1], '--reason',
                             'a fan is loud')

    def test_a_card_that_was_withheld_a_second_ago_is_not_given(
            self) -> None:
        self.withhold()
        self.withheld['host1'] = 1
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)
        self.assertPeriod(free=0, total=1, used=1)

    def test_a_guest_keeps_it_until_it_is_gone(self) -> None:
        server = self.create_on_card_1()
        self.assertIn(server['id'], self.withhold())
        self.assertPeriod(free=1, total=2, used=1)
        self._reboot_server(server, hard=True)
        self.assertGPUs(server, base.CARD_1)
        self._stop_server(server)
        self._start_server(server)
        self.assertGPUs(server, base.CARD_1)
        self._delete_server(server)
        self.withheld['host1'] = 1
        self.assertPeriod(free=1, total=1)

    def test_it_is_withheld_over_a_restart_and_offered_again(self) -> None:
        self.withhold()
        self.withheld['host1'] = 1
        self.restart_compute_service('host1')
        self.assertPeriod(free=1, total=1)
        self.assertIn('is offered to guests',
                      self.operator('offer', base.CARD_1[0]))
        self.withheld['host1'] = 0
        self.assertPeriod(free=2, total=2)
        self.assertGPUs(self.create_pgpu_server(), base.CARD_1)

    def test_a_card_that_a_host_driver_took_is_offered_again(self) -> None:
        self.tree.set_driver(base.CARD_1[0], 'nvidia')
        self.assertPeriod(free=1, total=1)
        self.assertPeriod(free=1, total=1)
        self.assertEqual('nvidia', sysfs.driver(self.tree, base.CARD_1[0]))
        self.operator('offer', base.CARD_1[0])
        self.assertPeriod(free=2, total=2)


class StartFailureTest(TestCase):
    """A guest does not start because of its card."""

    NOT_VIABLE = ('internal error: qemu unexpectedly closed the monitor: '
                  '-device vfio-pci,host={0}: vfio {0}: group 33 is not '
                  'viable')

    def fail_once(self, text: str = NOT_VIABLE) -> None:
        self.connection.start_errors.append(libvirt_errors.error(
            text.format(base.CARD_1[0]),
            libvirt_errors.VIR_ERR_OPERATION_FAILED))

    # NVIDIA/open-gpu-kernel-modules#853, gnif/vendor-reset#35
    def test_the_card_is_not_offered_next_and_the_next_host_takes_over(
            self) -> None:
        self.add_host('host2', base.ONE_CARD)
        self.fail_once()
        server = self.create_pgpu_server()
        self.assertEqual('host2', self.host_of(server))
        self.withheld['host1'] = 1
        self.assertPeriod(free=1, total=1)

    def test_the_next_guest_of_the_host_gets_another_card(self) -> None:
        self.fail_once()
        failed = self.create_pgpu_server(state='ERROR')
        self.assertNoAllocations(failed)
        self.withheld['host1'] = 1
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)
        self.create_pgpu_server(state='ERROR')

    def test_a_restart_offers_it_again(self) -> None:
        self.fail_once()
        self.create_pgpu_server(state='ERROR')
        self.withheld['host1'] = 1
        self.assertPeriod(free=1, total=1)
        self.restart_compute_service('host1')
        self.withheld['host1'] = 0
        self.assertPeriod(free=2, total=2)

    def test_a_shortage_of_memory_withholds_none(self) -> None:
        self.fail_once('-device vfio-pci,host={0}: vfio {0}: failed to setup '
                       'container for group 33: memory listener '
                       'initialization failed: Cannot allocate memory')
        self.create_pgpu_server(state='ERROR')
        self.assertPeriod(free=2, total=2)

    def test_a_server_that_was_stopped_starts_with_another_card(
            self) -> None:
        server = self._stop_server(self.create_on_card_1())
        self.fail_once()
        # The test's services do all of a request before they answer.
        error = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            server['id'], {'os-start': None})
        self.assertIn('libvirtError', str(error))
        self._start_server(server)
        self.assertGPUs(server, base.CARD_2)
        self.withheld['host1'] = 1
        self.assertPeriod(free=0, total=1, used=1)
