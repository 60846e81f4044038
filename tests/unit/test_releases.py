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
from nova_gpu_passthru import releases
from tests.unit import base


@ddt.ddt
class CheckTest(base.TestCase):
    @ddt.data('31.0.0', '31.3.1', '32.2.1', '33.0.2', '34.0.0', '34.0.0.0rc1',
              '34.1.0.dev12')
    def test_release_that_the_driver_was_made_for(self, version: str) -> None:
        releases.check(version)

    @ddt.data('30.1.0', '35.0.0', '3.4', '340.0.0', '', 'unknown')
    def test_any_other_is_refused_and_named(self, version: str) -> None:
        error = self.assertRaises(exceptions.UnsupportedNova, releases.check,
                                  version)
        self.assertIn(f'this is Nova {version}', str(error))
        self.assertIn('Install', str(error))
