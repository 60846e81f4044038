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
    # Modules of the packages that are left out.
    without: tuple[str, ...] = ()
    by_default: bool = True


_UNIT = 'nova.tests.unit'
_FUNCTIONAL = 'nova.tests.functional'
# Two thirds of the functional tests, many minutes. They are about what Nova
# chooses before it asks the driver (PCI requests, NUMA placement) or keeps
# beside it (secrets of vTPMs); the others do to guests what users do.
_LONG = (f'{_FUNCTIONAL}.libvirt.test_numa_servers',
         f'{_FUNCTIONAL}.libvirt.test_pci_in_placement',
         f'{_FUNCTIONAL}.libvirt.test_pci_sriov_servers',
         f'{_FUNCTIONAL}.libvirt.test_vtpm')

SUITES = {
    'unit': Suite(_UNIT, (f'{_UNIT}.virt.libvirt.test_driver',
                          f'{_UNIT}.virt.test_virt_drivers')),
    'functional': Suite(_FUNCTIONAL, (f'{_FUNCTIONAL}.libvirt',),
                        without=_LONG),
    'functional-long': Suite(_FUNCTIONAL, _LONG, by_default=False),
}

# How the runner tells the processes that run the tests.
SUITE_VARIABLE = 'NOVA_SUITES_SUITE'
DRIVER_VARIABLE = 'NOVA_SUITES_DRIVER'
FOLDER_VARIABLE = 'NOVA_SUITES_FOLDER'
