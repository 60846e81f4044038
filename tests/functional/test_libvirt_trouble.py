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


"""libvirt is restarted, does not answer, or answers with nothing.

Failure to read is not evidence of freedom.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import base
from tests.functional import gpu_libvirt
from tests.functional import libvirt_errors

UUID = '11111111-2222-3333-4444-555555555555'


class RestartOfLibvirtTest(base.GPUTestCase):
    """Nova opens a new connection; guests have run on meanwhile."""

    def setUp(self) -> None:
        super().setUp()
        self.old = self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_gpu_server()
        self.number = self.domain_of(self.server).ID()
        self.calls = list(self.old.calls)
        self._restart_libvirt()

    def tearDown(self) -> None:
        self.assertEqual([], self.new.calls)
        self.assertEqual(self.calls, self.old.calls)
        super().tearDown()

    def test_counts_stay(self) -> None:
        for _ in range(3):
            self.run_periodic()
            self.assertFree(1, 'host1')
        self.assertEqual(self.number, self.domain_of(self.server).ID())
        self.assertGPUs(self.server, base.CARD_1)

    def test_others_get_the_other_card(self) -> None:
        self.assertGPUs(self.create_gpu_server(), base.CARD_2)

    def test_hard_reboot(self) -> None:
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, base.CARD_1)

    def test_delete(self) -> None:
        self._delete_server(self.server)
        self.run_periodic()
        self.assertFree(2, 'host1')
        self.assertGPUs(self.create_gpu_server(2), base.CARD_1 + base.CARD_2)

    def _restart_libvirt(self) -> None:
        old = self.old
        self.new = gpu_libvirt.Connection(
            old.sysfs, hostname='host1', host_info=old.host_info)
        self.new.original_drivers = old.original_drivers
        self.new._id_counter = old._id_counter
        self.new._vms = old._vms
        for domain in old.domains:
            domain._connection = self.new
        for name in dir(old):
            if callable(getattr(old, name)) and not name.startswith('_'):
                setattr(old, name, mock.Mock(side_effect=libvirt_errors.error(
                    'internal error: client socket is closed',
                    fakelibvirt.VIR_ERR_INTERNAL_ERROR)))
        self._prepared['host1'] = self.new
        host = self.computes['host1'].driver._host
        host.get_connection = lambda: self.new


class UnreadableTest(base.GPUTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_gpu_server()
        self.run_periodic()
        self.assertFree(1, 'host1')

    def test_a_list_that_fails(self) -> None:
        with self._listing(_failing):
            self._check_periods(1, 1, 1)
        self._check_periods(1)

    def test_a_list_that_is_empty_once(self) -> None:
        with self._listing(_empty):
            self._check_periods(1)
        self._check_periods(1, 1)

    def test_a_domain_that_nova_did_not_make_is_missed_once(self) -> None:
        self.connection.defineXML(gpu_libvirt.hand_made(
            'by-hand', UUID, base.CARD_2))
        self._check_periods(0)
        for listing in (_empty, _failing):
            with self._listing(listing):
                self._check_periods(0)
            self._check_periods(0)

    def test_after_a_list_that_is_empty_others_get_the_other_card(
            self) -> None:
        with self._listing(_empty):
            self._check_periods(1)
        self.assertGPUs(self.create_gpu_server(), base.CARD_2)
        self.create_gpu_server(state='ERROR')

    def test_a_create_while_the_list_fails(self) -> None:
        """Whoever comes gets no card that somebody may have."""
        self.connection.defineXML(gpu_libvirt.hand_made(
            'by-hand', UUID, base.CARD_2))
        with self._listing(_failing):
            self.create_gpu_server(state='ERROR')
        self.assertGPUs(self.server, base.CARD_1)

    def test_a_delete_while_the_list_fails(self) -> None:
        """The card is not free before libvirt says that it is."""
        with self._listing(_failing):
            self._delete_server(self.server)
            self._check_periods(1)
        # A domain is gone when it is missed twice.
        self._check_periods(1, 2)
        self.assertGPUs(self.create_gpu_server(2), base.CARD_1 + base.CARD_2)

    def _check_periods(self, *free: int) -> None:
        for count in free:
            self.run_periodic()
            self.assertFree(count, 'host1')

    def _listing(self, behaviour: Callable[[], list[Any]]
                 ) -> fixtures.Fixture:
        """Lets the list of all domains fail; that of running ones works.

        Without that one Nova's driver reports nothing at all.
        """
        original = self.connection.listAllDomains

        def listing(flags: int = 0) -> list[Any]:
            if flags == fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE:
                return list(original(flags))
            return behaviour()

        return fixtures.MockPatchObject(self.connection, 'listAllDomains',
                                        listing)


def _failing() -> list[Any]:
    raise libvirt_errors.error('internal error: no answer',
                               fakelibvirt.VIR_ERR_INTERNAL_ERROR)


def _empty() -> list[Any]:
    return []
