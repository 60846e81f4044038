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


"""nova-compute finds and detaches the GPUs of its host, and nothing else."""

from nova import exception

from tests.functional import base
from tests.functional import gpu_libvirt
from tests.functional import guest_domain
from tests.functional import node_device
from tests.functional import sysfs

# A server: its BMC shows the console, one card waits for guests already.
MIXED = """
0000:03:00.0 030000 1a03:2000 driver=ast group=20 boot_vga=1
0000:04:00.0 020000 8086:1572 driver=i40e group=21
0000:05:00.0 010802 144d:a808 driver=nvme group=22
0000:17:00.0 030000 10de:1ff2 driver=vfio-pci group=33 boot_vga=0
0000:17:00.1 040300 10de:10fa driver=vfio-pci group=33
0000:65:00.0 030000 10de:1ff2 driver=nvidia group=34 boot_vga=0
0000:65:00.1 040300 10de:10fa driver=snd_hda_intel group=34
"""
# A desktop: its only display is a card like the other one.
CONSOLE = """
0000:17:00.0 030000 10de:1ff2 driver=nouveau group=33 boot_vga=1
0000:17:00.1 040300 10de:10fa driver=snd_hda_intel group=33
0000:65:00.0 030000 10de:1ff2 driver=nouveau group=34 boot_vga=0
0000:65:00.1 040300 10de:10fa driver=snd_hda_intel group=34
"""
# The second card shares its IOMMU group with a disk.
WITH_DISK = """
0000:17:00.0 030000 10de:1ff2 driver=nvidia group=33
0000:17:00.1 040300 10de:10fa driver=snd_hda_intel group=33
0000:65:00.0 030000 10de:1ff2 driver=nvidia group=34
0000:65:00.1 040300 10de:10fa driver=snd_hda_intel group=34
0000:66:00.0 010802 144d:a808 driver=nvme group=34
"""


class DetachTest(base.GPUTestCase):

    def test_only_gpus_of_host_drivers_are_detached(self) -> None:
        connection = self.add_host('host1', MIXED)
        self.assertEqual(base.CARD_2, connection.detached)
        self.assertEqual(base.CARD_1 + base.CARD_2,
                         sysfs.on_stub(connection.sysfs))
        self.assertFree(2, 'host1')

    def test_the_only_console_stays(self) -> None:
        connection = self.add_host('host1', CONSOLE)
        self.assertEqual(base.CARD_2, connection.detached)
        self.assertFree(1, 'host1')

    def test_a_card_in_a_group_with_a_disk_stays(self) -> None:
        connection = self.add_host('host1', WITH_DISK)
        self.assertEqual(base.CARD_1, connection.detached)
        self.assertFree(1, 'host1')

    def test_a_host_without_gpus(self) -> None:
        connection = self.add_host('host1', base.NO_CARD)
        self.assertEqual([], connection.calls)
        self.assertIsNone(self.reported('host1'))

    def test_an_excluded_card_stays(self) -> None:
        self.flags(exclude=['0000:17:00.1'], group='gpu_passthru')
        connection = self.add_host('host1', base.TWO_CARDS)
        self.assertEqual(base.CARD_2, connection.detached)
        self.assertFree(1, 'host1')


class BadCardTest(base.GPUTestCase):
    """One bad card costs one card."""

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.prepare_host('host1', base.TWO_CARDS)
        self.gpu = self.connection.device('0000:17:00.0')
        self.audio = self.connection.device('0000:17:00.1')

    def test_a_detach_that_fails(self) -> None:
        self.gpu.on_detach = node_device.fails('the driver says no')
        self._check_withheld('the driver says no')

    def test_a_detach_that_lies(self) -> None:
        self.gpu.on_detach = node_device.lies
        self._check_withheld('it is on nvidia')

    def test_a_second_function_that_fails(self) -> None:
        self.audio.on_detach = node_device.fails('the sound plays on')
        self._check_withheld('the sound plays on')
        self.assertEqual('nvidia',
                         sysfs.driver(self.connection.sysfs, '0000:17:00.0'))

    def test_a_second_function_that_lies(self) -> None:
        self.audio.on_detach = node_device.lies
        self._check_withheld('it is on snd_hda_intel')
        self.assertEqual('nvidia',
                         sysfs.driver(self.connection.sysfs, '0000:17:00.0'))

    def test_a_detach_that_hangs(self) -> None:
        self.flags(detach_timeout=1, group='gpu_passthru')
        self.gpu.on_detach = hangs = node_device.Hangs()
        self.addCleanup(hangs.release)
        self._check_withheld('0000:17:00.0')
        hangs.release()
        self._wait_for_assert(self._check_offered_again)

    def test_it_is_not_tried_again_before_a_restart(self) -> None:
        self.gpu.on_detach = node_device.fails('the driver says no')
        self.start_compute('host1')
        self.run_periodic()
        self.assertEqual(1, self.connection.detached.count('0000:17:00.0'))
        self.gpu.on_detach = node_device.detaches
        self.restart_compute_service('host1')
        self.assertFree(2, 'host1')

    def _check_withheld(self, reason: str) -> None:
        self.start_compute('host1')
        self.assertEqual(1, self.reported('host1')['total_gpus'])
        self.assertFree(1, 'host1')
        self.assertIn('GPU 0000:17:00.0 (10de:1ff2) is withheld',
                      self.stdlog.logger.output)
        self.assertIn(reason, self.stdlog.logger.output)
        server = self.create_gpu_server()
        self.assertGPUs(server, base.CARD_2)
        self.run_periodic()
        self.assertFree(0, 'host1')

    def _check_offered_again(self) -> None:
        self.run_periodic()
        self.assertFree(1, 'host1')


class BadOptionTest(base.GPUTestCase):

    def test_include(self) -> None:
        self._check_refused('include', '0000:17:00')

    def test_exclude(self) -> None:
        self._check_refused('exclude', 'all of them')

    def _check_refused(self, option: str, entry: str) -> None:
        connection = self.prepare_host('host1', base.TWO_CARDS)
        self.flags(group='gpu_passthru', **{option: [entry]})
        error = self.assertRaises(exception.InvalidConfiguration,
                                  self.start_compute, 'host1')
        self.assertIn(repr(entry), str(error))
        self.assertIn(option, str(error))
        self.assertEqual([], connection.calls)


class HandMadeDomainTest(base.GPUTestCase):
    """Somebody uses a card without Nova."""

    UUID = '3f2f4f0c-6d0c-4a0b-8b7e-1c7d9a8e0001'

    def setUp(self) -> None:
        super().setUp()
        # Nova refuses to start a new service beside domains.
        self.connection = self.add_host('host1', base.TWO_CARDS)

    def test_a_running_one_is_left_alone(self) -> None:
        domain = self._define()
        domain.create()
        self._check_left_alone()
        self.assertEqual(base.CARD_1, domain.functions)

    def test_one_that_is_shut_off_is_left_alone(self) -> None:
        self._define()
        self._check_left_alone()

    def test_one_that_takes_a_free_card(self) -> None:
        """The cards that it took count as taken before the next report."""
        self._define().create()
        self.assertFree(2, 'host1')
        server = self.create_gpu_server()
        self.assertGPUs(server, base.CARD_2)
        self.run_periodic()
        self.assertFree(0, 'host1')

    def test_its_card_is_free_when_it_is_gone(self) -> None:
        domain = self._define()
        self.run_periodic()
        self.assertFree(1, 'host1')
        domain.undefine()
        # A domain that is missing once may be in the middle of a change.
        self.run_periodic()
        self.run_periodic()
        self.assertFree(2, 'host1')
        server = self.create_gpu_server(2)
        self.assertGPUs(server, base.CARD_1 + base.CARD_2)

    def _define(self) -> guest_domain.Domain:
        return self.connection.defineXML(
            gpu_libvirt.hand_made('desktop', self.UUID, base.CARD_1))

    def _check_left_alone(self) -> None:
        self.connection.calls.clear()
        self.restart_compute_service('host1')
        self.assertFree(1, 'host1')
        server = self.create_gpu_server()
        self.assertGPUs(server, base.CARD_2)
        self.run_periodic()
        self.assertFree(0, 'host1')
        self.create_gpu_server(state='ERROR')
        self.assertEqual([], self.connection.calls)
