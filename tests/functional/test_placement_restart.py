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

"""What Placement allocated counts when nova-compute or its host starts.

Guests are claimed for and resumed before Nova reports to Placement at all.
"""

from typing import NoReturn

import fixtures
from keystoneauth1 import exceptions as keystone_exceptions

from tests.functional import base
from tests.functional import placement

AN_H100 = {'resources:PGPU': '1',
           f'trait:{placement.H100_TRAIT}': 'required'}
T4 = '10de:1eb8'


class TestCase(placement.PlacementTestCase):
    """Cards that have lower addresses are of another model."""

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', placement.TWO_OF_TWO_MODELS)
        self.first, self.server = (self.create_server(AN_H100)
                                   for _ in range(2))
        self.assertGPUs(self.server, placement.TWO_H100S[1:])

    def free_by_model(self) -> dict[str, int]:
        report = self.reported('host1')
        assert report is not None
        free: dict[str, int] = report['free_by_model']
        return free


class LostDomainTest(TestCase):
    """As when nova-compute is killed in the middle of a hard reboot."""

    def setUp(self) -> None:
        super().setUp()
        domain = self.domain_of(self.server)
        domain.destroy()
        domain.undefine()
        self.restart_compute_service('host1')

    def test_its_card_is_of_the_model_that_placement_took(self) -> None:
        self.assertEqual({base.T400: 2, base.H100: 0}, self.free_by_model())
        self.assertPool('host1', 2)
        self.assertPool('host1', 2, used=2, model=base.H100)
        self.create_gpu_server(2)
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, placement.TWO_H100S[1:])


class ReplacedCardTest(TestCase):
    """There is a card of another model at the guest's address."""

    def replace(self, model: str) -> None:
        """Shuts the host down, changes the card, and starts the host."""
        self.computes['host1'].stop()
        for domain in self.connection.domains:
            if domain.isActive():
                domain.destroy()
        address, = placement.TWO_H100S[1:]
        self.sysfs['host1'].remove(address)
        self.sysfs['host1'].add(
            f'{address} 030200 {model} driver=nvidia group=42')
        for address, driver in self.connection.original_drivers.items():
            self.sysfs['host1'].set_driver(address, driver)
        self.restart_compute_service('host1')

    def check_not_started(self) -> None:
        self.assertEqual('ERROR', self._show_server(self.server)['status'])
        self.assertEqual(
            [self.first['id']],
            [domain.UUIDString() for domain in self.connection.domains])
        self.held_without_domain['host1'] = 1
        self.assertEqual({base.T400: 2, base.H100: 0, T4: 0},
                         self.free_by_model())

    def test_the_guest_is_given_no_other_model(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        self.replace(T4)
        self.check_not_started()
        self.assertPool('host1', 2, used=2, model=base.H100)
        self.assertPool('host1', 1, reserved=1, model=T4)
        self.replace(base.H100)
        self._reboot_server(self.server, hard=True)
        self.held_without_domain.clear()
        self.assertGPUs(self.server, placement.TWO_H100S[1:])

    def test_nor_while_placement_does_not_tell(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        with fixtures.MonkeyPatch(
                'nova.scheduler.client.report.SchedulerReportClient'
                '.get_allocs_for_consumer', _fails):
            self.replace(T4)
        self.run_periodic()
        self.check_not_started()

    def test_the_next_one_of_its_model_is_its_own(self) -> None:
        """Although it stays off, and others ask before it starts."""
        self._stop_server(self.first)
        self._delete_server(self.first)
        self.replace(T4)
        self.run_periodic()
        self.assertEqual({base.T400: 2, base.H100: 0, T4: 0},
                         self.free_by_model())
        self.create_server({'free_gpus': '1',
                            'gpu_passthru:model': base.H100}, state='ERROR')
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, placement.TWO_H100S[:1])


def _fails(*args: object) -> NoReturn:
    raise keystone_exceptions.ConnectFailure('no answer')
