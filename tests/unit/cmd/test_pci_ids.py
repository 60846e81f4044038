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

import pathlib

import fixtures

from nova_gpu_passthru.cmd import pci_ids
from tests.unit import base
from tests.unit import golden

FILE = golden.DATA / 'pci.ids'


class NamesTest(base.TestCase):
    def test_device_is_looked_up_below_its_vendor(self) -> None:
        self.assertEqual(
            {'10de:2204': 'GA102 [GeForce RTX 3090]',
             '1002:740f': 'Aldebaran/MI200 [Instinct MI210]'},
            pci_ids.names({'10de:2204', '1002:740f'}, [FILE]))

    def test_unknown_device_is_left_out(self) -> None:
        self.assertEqual({}, pci_ids.names(
            {'10de:ffff', 'ffff:2204', '0014:0014'}, [FILE]))

    def test_subsystems_and_classes_are_no_devices(self) -> None:
        self.assertEqual({}, pci_ids.names(
            {'10de:10de', '8086:00', 'C 03:00', '1eb8:10de'}, [FILE]))

    def test_first_file_that_can_be_read_is_used(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.assertEqual(
            {'10de:1eb8': 'TU104GL [Tesla T4]'},
            pci_ids.names({'10de:1eb8'}, [folder / 'missing', FILE]))
        self.assertEqual({}, pci_ids.names({'10de:1eb8'},
                                           [folder / 'missing']))

    def test_other_encoding_does_no_harm(self) -> None:
        file = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / 'ids'
        file.write_bytes(b'10de  NVIDIA\n\t0001  Caf\xe9\n')
        self.assertEqual({'10de:0001': 'Caf�'},
                         pci_ids.names({'10de:0001'}, [file]))
