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


"""Flavors that ask Placement, and what they get."""

from tests.functional import base
from tests.functional import placement


class FlavorTest(placement.PlacementTestCase):

    def test_pgpu_alone(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        server = self.create_pgpu_server(2)
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)
        self.assertGiven(server, 'host1', 2)
        self.assertNeverRescheduled(server)

    def test_with_free_gpus(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        server = self.create_server(
            {'resources:PGPU': '1', 'free_gpus': '>=1'})
        self.assertGPUs(server, base.CARD_1)
        self.assertGiven(server, 'host1', 1)

    def test_in_a_group_with_a_number(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        server = self.create_server({'resources1:PGPU': '1'})
        self.assertGPUs(server, base.CARD_1)
        self.assertGiven(server, 'host1', 1)

    def test_more_than_is_there_is_refused(self) -> None:
        connection = self.add_host('host1', base.TWO_CARDS)
        self.assertNoHost(self.create_pgpu_server(3, state='ERROR'))
        self.assertEqual([], connection.domains)

    def test_more_than_is_left_is_refused_at_once(self) -> None:
        """Placement knows without a report of the host in between."""
        self.add_host('host1', base.TWO_CARDS)
        self.create_pgpu_server()
        self.assertFree(2, 'host1')
        server = self.create_pgpu_server(2, state='ERROR')
        self.assertNoHost(server)
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)

    def test_what_a_guest_gave_back_is_given_at_once(self) -> None:
        """As above: the report still says that it is held."""
        self.add_host('host1', base.ONE_CARD)
        for specs in ({}, {'free_gpus': '>=1'},
                      {'gpu_passthru:model': base.T400}):
            server = self.create_server({'resources:PGPU': '1', **specs})
            self.run_periodic()
            self._delete_server(server)
            self.assertFree(0, 'host1')
        self.assertGPUs(self.create_pgpu_server(), base.CARD_1)

    def test_the_next_host_is_found_without_a_refusal(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        self.add_host('host2', base.ONE_CARD)
        for host in ('host1', 'host2'):
            server = self.create_pgpu_server()
            self.assertEqual(host, self.host_of(server))
            self.assertNeverRescheduled(server)

    def test_several_servers_of_one_request(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        self.add_host('host2', base.TWO_CARDS)
        for server in self.create_at_once(4, self.pgpu_flavor(1)):
            self.assertNeverRescheduled(server)
        self.assertPool('host1', 2, used=2)
        self.assertPool('host2', 2, used=2)


class ModelTest(placement.PlacementTestCase):
    """A host with two models, of which Placement may take either."""

    TRAIT = {f'trait:{placement.H100_TRAIT}': 'required'}
    MODEL = {'gpu_passthru:model': base.H100}

    def setUp(self) -> None:
        super().setUp()
        self.add_host('host1', placement.TWO_OF_TWO_MODELS)

    def _check_h100s_only(self, specs: dict[str, str]) -> None:
        for address in placement.TWO_H100S:
            server = self.create_server(specs)
            self.assertGPUs(server, [address])
            self.assertGiven(server, 'host1', 1, base.H100)
            self.assertNeverRescheduled(server)
        self.assertNoHost(self.create_server(specs, state='ERROR'))

    def test_by_trait(self) -> None:
        self._check_h100s_only({'resources:PGPU': '1', **self.TRAIT})

    def test_by_trait_with_free_gpus(self) -> None:
        self._check_h100s_only(
            {'resources:PGPU': '1', 'free_gpus': '1', **self.TRAIT})

    def test_by_model(self) -> None:
        """Placement, which was not told, cannot prefer the right one twice."""
        for specs, functions, model in (
                ({'gpu_passthru:model': base.T400}, base.CARD_1, base.T400),
                (self.MODEL, placement.TWO_H100S[:1], base.H100)):
            server = self.create_server({'resources:PGPU': '1', **specs})
            self.assertGPUs(server, functions)
            self.assertGiven(server, 'host1', 1, model)
            self.assertNeverRescheduled(server)

    def test_by_a_model_of_which_there_is_no_more(self) -> None:
        self._check_h100s_only({'resources:PGPU': '1', **self.MODEL})

    def test_by_trait_and_model(self) -> None:
        self._check_h100s_only(
            {'resources:PGPU': '1', **self.TRAIT, **self.MODEL})

    def test_one_of_each_by_groups(self) -> None:
        server = self.create_server({
            'resources1:PGPU': '1', 'resources2:PGPU': '1',
            f'trait1:{placement.T400_TRAIT}': 'required',
            f'trait2:{placement.H100_TRAIT}': 'required',
            'group_policy': 'none'})
        self.assertGPUs(server, base.CARD_1 + placement.TWO_H100S[:1])
        self.assertEqual({('host1', base.T400): 1, ('host1', base.H100): 1},
                         self.given(server['id']))

    def test_a_forbidden_model(self) -> None:
        for address in placement.TWO_H100S:
            server = self.create_pgpu_server_without(placement.T400_TRAIT)
            self.assertGPUs(server, [address])

    def create_pgpu_server_without(self, trait: str) -> dict[str, object]:
        return self.create_server(
            {'resources:PGPU': '1', f'trait:{trait}': 'forbidden'})

    def test_any_model_gets_what_placement_took(self) -> None:
        """Four guests; the end of the test compares cards and records."""
        for _ in range(4):
            server = self.create_pgpu_server()
            self.assertEqual(1, sum(self.given(server['id']).values()))
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))


class MixedTest(placement.PlacementTestCase):
    """Guests that asked Placement beside guests that did not."""

    def test_each_kind_finds_what_the_other_left(self) -> None:
        self.add_host('host1', placement.TWO_OF_TWO_MODELS)
        self.create_gpu_server()
        self.run_periodic()
        self.create_pgpu_server()
        self.run_periodic()
        self.create_gpu_server()
        self.run_periodic()
        self.create_pgpu_server()
        self.run_periodic()
        self.assertFree(0, 'host1')
        self.assertNoHost(self.create_gpu_server(state='ERROR'))
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))

    def test_between_two_reports_the_host_refuses(self) -> None:
        """Placement gives what a guest has whom it was not told of yet."""
        self.add_host('host1', base.ONE_CARD)
        server = self.create_gpu_server()
        self.assertFree(1, 'host1')
        self.assertNoHost(self.create_pgpu_server(state='ERROR'))
        self.assertGPUs(server, base.CARD_1)

    def test_between_two_reports_the_next_host_is_found(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        self.add_host('host2', base.ONE_CARD)
        self.create_gpu_server()
        server = self.create_pgpu_server()
        self.assertGiven(server, 'host2', 1)
        self.assertGPUs(server, base.CARD_1)

    def test_one_that_did_not_ask_leaves_what_is_allocated(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        server = self.create_pgpu_server()
        self.assertFree(1, 'host1')
        self.assertNoHost(self.create_gpu_server(state='ERROR'))
        self.assertGPUs(server, base.CARD_1)
        self.assertGiven(server, 'host1', 1)
