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

"""Servers with GPUs, from the API down to what the guest's kernel sees."""

from lab import topology

from e2e import base


class ServersTest(base.LabTestCase):
    """Creating and deleting servers."""

    def test_each_server_gets_a_card_of_its_own(self) -> None:
        first = self.boot()
        first_report = self.report(first)
        card, = self.assert_sees_its_cards(first, first_report)
        self.assert_free(topology.TOTAL - 1)

        second = self.boot()
        other, = self.assert_sees_its_cards(second, self.report(second))
        self.assertNotEqual(card['address'], other['address'])
        self.assert_free(topology.TOTAL - 2)

        self.assert_no_valid_host(f'>={topology.TOTAL - 1}')

        self.delete(first)
        self.assert_free(topology.TOTAL - 1)
        self.assertEqual([], self.cards_of(first))
        self.delete(second)
        self.assert_free(topology.TOTAL)

    def test_identical_cards_from_placement_on_q35(self) -> None:
        server = self.boot('>=2', 'q35', **{
            'gpu_passthru:model': topology.IDENTICAL,
            'resources1:PGPU': '2',
            'trait1:CUSTOM_GPU_1234_1111': 'required'})
        self.assertEqual(2, self.lab.cloud.allocated(server, 'PGPU'))
        self.assert_free(topology.TOTAL - 2)
        report = self.report(server)
        self.assert_sees_its_cards(server, report, count=2)
        self.assertEqual(
            sorted(topology.IDENTICAL_MIB.values()),
            sorted(function.mib for function in report.functions
                   if function.model == topology.IDENTICAL))

    def test_a_card_that_shares_a_group_takes_its_mate(self) -> None:
        model = {'gpu_passthru:model': topology.PAIR}
        server = self.boot('>=1', **model)
        self.assert_sees_its_cards(server, self.report(server))
        # The mate is not free for anybody else.
        self.assert_free(topology.TOTAL - 2)
        self.assert_no_valid_host('>=1', **model)
        self.delete(server)
        self.assert_free(topology.TOTAL)
