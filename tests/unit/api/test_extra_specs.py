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
from nova import exception
from nova import test

from nova_gpu_passthru.api import extra_specs
from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor


@ddt.ddt
class ValidatorTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.validators = {validator.name: validator
                           for validator in extra_specs.register()}

    def validate(self, key: str, value: str) -> None:
        self.validators[key].validate(key, value)

    def test_each_of_our_keys_has_one(self) -> None:
        self.assertEqual({'free_gpus', 'gpu_passthru:free_gpus',
                          'gpu_passthru:model'}, set(self.validators))

    def test_each_says_what_it_is_for(self) -> None:
        for validator in self.validators.values():
            self.assertTrue(validator.description)
            self.assertTrue(validator.value['description'])

    # One parser decides: what the API lets through is what it reads, so that
    # no flavor is made that no host fits.
    @ddt.data('1', '>=1', '>= 1', '>=  16', '9999', '0', '>=0', '', ' 1',
              '1 ', '1\n', '01', '>=x', '=>2', '>=2.5', '= 2', '== 4', '-1',
              '10000', '2 GPUs', '٢', '>=\t1')
    def test_api_and_parser_agree_on_numbers(self, text: str) -> None:
        for key in (flavor.FREE_GPUS, flavor.SCOPED_FREE_GPUS):
            self.assertEqual(self.parses({key: text}),
                             self.passes(key, text))

    @ddt.data('10de:2330', '10DE:2330', '1002:74a1', '', 'H100', '10de',
              '10de:2330 ', ' 10de:2330', '10de:2330\n', '0x10de:0x2330')
    def test_api_and_parser_agree_on_models(self, text: str) -> None:
        self.assertEqual(
            self.parses({'free_gpus': '1', flavor.MODEL: text}),
            self.passes(flavor.MODEL, text))

    def parses(self, specs: dict[str, str]) -> bool:
        try:
            flavor.parse(specs)
        except exceptions.InvalidFlavor:
            return False
        return True

    def passes(self, key: str, value: str) -> bool:
        try:
            self.validate(key, value)
        except exception.ValidationError:
            return False
        return True
