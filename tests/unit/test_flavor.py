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

import ddt

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from tests.unit import base


@ddt.ddt
class CountTest(base.TestCase):
    @ddt.unpack
    @ddt.data(('1', 1), ('>=1', 1), ('>= 1', 1), ('>=16', 16),
              ('9999', 9999))
    def test_every_spelling_of_a_number_is_read(self, text: str,
                                                count: int) -> None:
        for key in (flavor.FREE_GPUS, flavor.SCOPED_FREE_GPUS):
            self.assertEqual(flavor.GPURequest(count),
                             flavor.parse({key: text}))

    @ddt.data('>=x', '>=-1', '=>2', '>=2.5', '', ' ', '[1, 2]', '0', '>=0',
              '00', '02', ' 2', '2 ', '2\n', ' >=2', '= 2', '== 4', '>2',
              '<=2', '> =2', '>=', '٢', '>=２', '²', '2 GPUs', '1e1', '0x2',
              '1_0', '10000', '9' * 20, '2\x00', '>=2,>=3', '<in> 2', 'None')
    def test_nonsense_is_refused_with_key_text_and_cure(
            self, text: str) -> None:
        for key in (flavor.FREE_GPUS, flavor.SCOPED_FREE_GPUS):
            error = self.assertRaises(exceptions.InvalidFlavor,
                                      flavor.parse, {key: text})
            self.assertIn(f'{key} = {text!r}', str(error))
            self.assertIn("write '>=N' or 'N'", str(error))

    @ddt.data(None, ['1'], {'1': 1}, 1.5, True)
    def test_what_is_no_text_is_refused(self, value: object) -> None:
        self.assertRaises(exceptions.InvalidFlavor, flavor.parse,
                          {flavor.FREE_GPUS: value})

    @ddt.data(None, {}, {'hw:cpu_policy': 'dedicated'},
              {'free_gpu': '1', 'FREE_GPUS': '1', 'other:free_gpus': '1'},
              {'resources:VGPU': '1', 'resources:PGPUS': '1',
               'trait:PGPU': 'required'})
    def test_flavor_without_our_keys_asks_for_nothing(
            self, specs: dict[str, str] | None) -> None:
        self.assertIsNone(flavor.parse(specs))


@ddt.ddt
class AgreementTest(base.TestCase):
    # https://github.com/IFCA-Advanced-Computing/caso/issues/41: some clouds
    # need a key with a namespace.
    @ddt.data(
        {'free_gpus': '>=2', 'gpu_passthru:free_gpus': '2'},
        {'free_gpus': '2', 'resources:PGPU': '2'},
        {'gpu_passthru:free_gpus': '>= 2', 'resources:PGPU': '2'},
        {'free_gpus': '2', 'resources1:PGPU': '1', 'resources2:PGPU': '1'},
        {'free_gpus': '2', 'resources:PGPU': '1', 'resources_a:PGPU': '1'},
        {'resources:PGPU': '2'}, {'resources_GPU-a:PGPU': '2'})
    def test_keys_that_agree_are_one_request(self, specs: dict[str, str]
                                             ) -> None:
        request = flavor.parse(specs)
        assert request is not None
        self.assertEqual((2, None), (request.count, request.model))
        self.assertEqual(any(key.endswith(':PGPU') for key in specs),
                         request.asks_placement)

    @ddt.data(
        {'free_gpus': '>=2', 'gpu_passthru:free_gpus': '3'},
        {'free_gpus': '2', 'resources:PGPU': '1'},
        {'gpu_passthru:free_gpus': '1', 'resources:PGPU': '2'},
        {'free_gpus': '1', 'resources1:PGPU': '1', 'resources2:PGPU': '1'})
    def test_keys_that_contradict_each_other_are_all_named(
            self, specs: dict[str, str]) -> None:
        error = self.assertRaises(exceptions.InvalidFlavor, flavor.parse,
                                  specs)
        for key in specs:
            self.assertIn(key, str(error))
        self.assertIn('make the values agree', str(error))

    # Nova takes no other (nova.scheduler.utils.ResourceRequest), and leaves
    # out what it cannot read.
    @ddt.data('>=1', '>= 1', 'x', '', '-1')
    def test_resources_pgpu_is_a_plain_number(self, text: str) -> None:
        error = self.assertRaises(exceptions.InvalidFlavor, flavor.parse,
                                  {'resources:PGPU': text})
        self.assertIn(f'resources:PGPU = {text!r}', str(error))


@ddt.ddt
class ModelTest(base.TestCase):
    @ddt.data('10de:2330', '10DE:2330', '1002:74A1')
    def test_model_is_read_in_either_case(self, text: str) -> None:
        self.assertEqual(
            flavor.GPURequest(1, text.lower()),
            flavor.parse({'free_gpus': '1', 'gpu_passthru:model': text}))

    @ddt.data('', 'H100', '10de', '10de:', '10de:233', '10de:02330',
              '0x10de:0x2330', '10de-2330', '10de:2330,10de:2331',
              '10dg:2330', '１0de:2330', '10de:2330\n10de')
    def test_nonsense_is_refused_with_text_and_cure(self, text: str) -> None:
        error = self.assertRaises(
            exceptions.InvalidFlavor, flavor.parse,
            {'free_gpus': '1', 'gpu_passthru:model': text})
        self.assertIn(repr(text), str(error))
        self.assertIn('such as 10de:2330', str(error))

    def test_model_without_a_number_is_refused(self) -> None:
        error = self.assertRaises(exceptions.InvalidFlavor, flavor.parse,
                                  {'gpu_passthru:model': '10de:2330'})
        self.assertIn('set free_gpus too', str(error))

    def test_what_placement_gave_is_picked(self) -> None:
        request = flavor.GPURequest(3, allocated={'10de:2330': 2,
                                                  '1002:74a1': 1})
        self.assertEqual([('1002:74a1', 1), ('10de:2330', 2)],
                         request.parts())

    def test_what_placement_gave_for_another_number_is_not(self) -> None:
        # A resize has an allocation of the old flavor too.
        request = flavor.GPURequest(3, '10de:2330',
                                    allocated={'10de:2330': 2})
        self.assertEqual([('10de:2330', 3)], request.parts())

    def test_request_reads_as_a_person_would_say_it(self) -> None:
        self.assertEqual(
            ['1 GPU', '2 GPUs of model 10de:2330'],
            [str(flavor.GPURequest(1)),
             str(flavor.GPURequest(2, '10de:2330'))])
