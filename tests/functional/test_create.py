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


"""Guests get exactly what their flavor asks for, where there is enough."""

from lxml import etree
from nova.tests.functional.api import client as api_client
from nova import utils

from nova_gpu_passthru import driver
from tests.functional import base

TWO_MODELS = base.ONE_CARD + """
0000:65:00.0 030200 10de:2330 driver=nvidia group=34
"""


class CreateTest(base.GPUTestCase):

    def test_one_gpu_is_one_whole_card(self) -> None:
        connection = self.add_host('host1', base.TWO_CARDS)
        server = self.create_gpu_server()
        self.assertGPUs(server, base.CARD_1)
        self.assertCountEqual(base.CARD_1 + base.CARD_2, connection.detached)

    def test_libvirt_leaves_the_card_on_its_stub_driver(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        server = self.create_gpu_server()
        xml = etree.fromstring(self.domain_of(server).XMLDesc(0))
        self.assertEqual(['no', 'no'],
                         xml.xpath('devices/hostdev/@managed'))

    def test_two_gpus_are_two_whole_cards(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        server = self.create_gpu_server(2)
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)

    def test_each_card_has_one_slot_of_the_guest(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        server = self.create_gpu_server(2)
        places = self.guest_places(server)
        self.assertEqual(4, len(places))
        slots = [place.split('.')[0] for place in places]
        self.assertEqual(slots[0], slots[1])
        self.assertEqual(slots[2], slots[3])
        self.assertNotEqual(slots[0], slots[2])
        self.assertEqual(['0', '1', '0', '1'],
                         [place.split('.')[1] for place in places])

    def test_the_second_guest_gets_the_other_card(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        first, second = self.create_gpu_server(), self.create_gpu_server()
        self.assertGPUs(first, base.CARD_1)
        self.assertGPUs(second, base.CARD_2)

    def test_a_host_without_gpus_is_not_chosen(self) -> None:
        self.add_host('host1', base.NO_CARD)
        self.add_host('host2', base.ONE_CARD)
        self.assertIsNone(self.reported('host1'))
        server = self.create_gpu_server()
        self.assertEqual('host2', self.host_of(server))

    def test_a_host_with_too_few_gpus_is_not_chosen(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        self.add_host('host2', base.TWO_CARDS)
        server = self.create_gpu_server(2)
        self.assertEqual('host2', self.host_of(server))

    def test_more_than_is_there_is_refused(self) -> None:
        connection = self.add_host('host1', base.TWO_CARDS)
        server = self.create_gpu_server(3, state='ERROR')
        self.assertNoHost(server)
        self.assertEqual([], connection.domains)

    def test_more_than_is_left_is_refused(self) -> None:
        connection = self.add_host('host1', base.TWO_CARDS)
        self.create_gpu_server()
        self.run_periodic()
        server = self.create_gpu_server(2, state='ERROR')
        self.assertNoHost(server)
        self.assertEqual(1, len(connection.domains))

    def test_counts_follow_create_and_delete(self) -> None:
        self.add_host('host1', base.TWO_CARDS)
        self.assertEqual({'free_gpus': 2, 'total_gpus': 2,
                          'free_by_model': {base.T400: 2}},
                         self.reported('host1'))
        server = self.create_gpu_server()
        self.run_periodic()
        self.assertEqual({'free_gpus': 1, 'total_gpus': 2,
                          'free_by_model': {base.T400: 1}},
                         self.reported('host1'))
        self._delete_server(server)
        self.run_periodic()
        self.assertEqual({'free_gpus': 2, 'total_gpus': 2,
                          'free_by_model': {base.T400: 2}},
                         self.reported('host1'))

    def test_cards_go_to_the_next_guest_after_a_delete(self) -> None:
        connection = self.add_host('host1', base.ONE_CARD)
        for _ in range(2):
            server = self.create_gpu_server()
            self.assertGPUs(server, base.CARD_1)
            self._delete_server(server)
            self.run_periodic()
        self.assertEqual(base.CARD_1, connection.detached)

    def test_statistics_of_nova_are_kept(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        self.add_host_of_nova('host2')
        self.assertEqual(
            {*self.stats_of('host2'), 'gpu_passthru'},
            set(self.stats_of('host1')))
        self.assertIn('uptime', self.stats_of('host1'))


class PlainFlavorTest(base.GPUTestCase):

    def test_it_lands_on_a_gpu_host_and_gets_none(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        self.add_host('host2', base.NO_CARD)
        server = self.create_server()
        self.assertEqual('host1', self.host_of(server))
        self.assertGPUs(server, [])
        self.run_periodic()
        self.assertFree(1, 'host1')

    def test_its_domain_is_the_one_of_novas_driver(self) -> None:
        """What this driver adds to XML, it adds for GPU flavors only."""
        self.add_host('host1', base.ONE_CARD)
        self.add_host_of_nova('host2')
        servers = [self.create_server(az=f'nova:{host}')
                   for host in ('host1', 'host2')]
        self.assertEqual(*(self._elements(server) for server in servers))

    def _elements(self, server: dict[str, str]) -> list[object]:
        xml = etree.fromstring(self.domain_of(server).XMLDesc(0))
        return [(element.tag, sorted(element.attrib))
                for element in xml.iter()]


class FlavorValuesTest(base.GPUTestCase):

    def test_nova_default_filters_are_on(self) -> None:
        for name in ('ComputeFilter', 'ComputeCapabilitiesFilter',
                     'ImagePropertiesFilter'):
            self.assertIn(name,
                          driver.CONF.filter_scheduler.enabled_filters)

    def test_every_way_to_write_one(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        for key in ('free_gpus', 'gpu_passthru:free_gpus'):
            for value in ('1', '>=1', '>= 1'):
                server = self.create_server({key: value})
                self.assertGPUs(server, base.CARD_1)
                self._delete_server(server)
                self.run_periodic()

    def test_every_way_to_write_too_many(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        for key in ('free_gpus', 'gpu_passthru:free_gpus'):
            for value in ('2', '>=2', '>= 2'):
                self.create_server({key: value}, state='ERROR')

    def test_nonsense_is_refused_when_it_is_set(self) -> None:
        for key, values in (
                ('free_gpus', ('>=x', '>=-1', '=>2', '>=2.5', '', '[1, 2]')),
                ('gpu_passthru:free_gpus', ('many',)),
                ('gpu_passthru:model', ('H100',))):
            for value in values:
                error = self.assertRaises(
                    api_client.OpenStackApiException, self.create_flavor,
                    {key: value})
                self.assertEqual(400, error.response.status_code)
                self.assertIn(f"'{value}' is not", str(error))

    def test_nonsense_in_an_old_flavor_is_refused(self) -> None:
        connection = self.add_host('host1', base.ONE_CARD)
        # Before this version the API does not look at extra specs.
        with utils.temporary_mutation(self.api_fixture.admin_api,
                                      microversion='2.85'):
            flavor_id = self.create_flavor({'free_gpus': 'many'})
        server = self.create_server(flavor_id=flavor_id, state='ERROR')
        self.assertNoHost(server)
        self.assertEqual([], connection.domains)

    def test_model_chooses_the_host(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        self.add_host('host2', base.ONE_H100)
        for model in (base.H100, base.H100.upper()):
            server = self.create_server(
                {'free_gpus': '>=1', 'gpu_passthru:model': model})
            self.assertEqual('host2', self.host_of(server))
            self._delete_server(server)
            self.run_periodic()

    def test_model_chooses_the_card(self) -> None:
        self.add_host('host1', TWO_MODELS)
        server = self.create_server(
            {'free_gpus': '1', 'gpu_passthru:model': base.H100})
        self.assertGPUs(server, ['0000:65:00.0'])
        self.run_periodic()
        self.assertEqual({base.T400: 1, base.H100: 0},
                         self.reported('host1')['free_by_model'])

    def test_cards_of_another_model_do_not_count(self) -> None:
        self.add_host('host1', TWO_MODELS)
        self.create_server(
            {'free_gpus': '2', 'gpu_passthru:model': base.H100},
            state='ERROR')


class AggregateFilterTest(base.GPUTestCase):

    MORE_FILTERS = ['AggregateInstanceExtraSpecsFilter']

    def test_the_scoped_key_passes(self) -> None:
        self.add_host('host1', base.ONE_CARD)
        server = self.create_server({'gpu_passthru:free_gpus': '>=1'})
        self.assertGPUs(server, base.CARD_1)
