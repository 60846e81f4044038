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

"""What is run, and with which driver class."""

import dataclasses
import enum


class Driver(enum.Enum):
    """The class that stands in the place of Nova's LibvirtDriver."""

    OURS = 'ours'
    NOVAS = 'novas'


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tests of Nova that can run in one process."""

    # Importing it sets up the process: Nova's unit tests and functional tests
    # each do that in their own way.
    package: str
    # Modules, or packages of modules.
    tests: tuple[str, ...]


SUITES = {
    'unit': Suite('nova.tests.unit',
                  ('nova.tests.unit.virt.libvirt.test_driver',
                   'nova.tests.unit.virt.test_virt_drivers')),
    'functional': Suite('nova.tests.functional',
                        ('nova.tests.functional.libvirt',)),
}

# How the runner tells the processes that run the tests.
SUITE_VARIABLE = 'NOVA_SUITES_SUITE'
DRIVER_VARIABLE = 'NOVA_SUITES_DRIVER'
FOLDER_VARIABLE = 'NOVA_SUITES_FOLDER'
