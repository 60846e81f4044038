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


"""Other devices come and go beside the cards."""

import os
import pathlib

from lxml import etree
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_gpu_passthru import driver
from tests.functional import base


class DevicesTest(base.GPUTestCase):

    CAST_AS_CALL = False
    MACHINE = 'pc'

    def setUp(self) -> None:
        super().setUp()
        self.flags(hw_machine_type=[f'x86_64={self.MACHINE}'],
                   group='libvirt')
        # No events of libvirt reach Nova here: it looks when that is over.
        self.flags(device_detach_timeout=1, group='libvirt')
        self.add_host('host1', base.TWO_CARDS)
        self.server = self.create_gpu_server()
        self.places = self.guest_places(self.server)

    def _attach(self, volume: str) -> None:
        # Nova's _attach_volume() is not there before Nova 33.
        self.api.post_server_volume(
            self.server['id'], {'volumeAttachment': {'volumeId': volume}})
        self._wait_for_volume_attach(self.server['id'], volume)
        self.notifier.wait_for_versioned_notifications(
            'instance.volume_attach.end')

    def test_volume(self) -> None:
        volume = nova_fixtures.CinderFixture.IMAGE_BACKED_VOL
        disks = self._count('disk')
        self._attach(volume)
        self.assertEqual(disks + 1, self._count('disk'))
        self._check_as_before()
        self.api.delete_server_volume(self.server['id'], volume)
        self._wait_for_assert(
            lambda: self.assertEqual(disks, self._count('disk')))
        self._check_as_before()

    def test_interface(self) -> None:
        port = self.neutron.port_1['id']
        self._attach_interface(self.server, port)
        self.assertEqual(1, self._count('interface'))
        self._check_as_before()
        self._detach_interface(self.server, port)
        self.assertEqual(0, self._count('interface'))
        self._check_as_before()

    def test_both_through_a_hard_reboot(self) -> None:
        self._attach(nova_fixtures.CinderFixture.IMAGE_BACKED_VOL)
        self._attach_interface(self.server, self.neutron.port_1['id'])
        disks = self._count('disk')
        self._reboot_server(self.server, hard=True)
        self.assertEqual(disks, self._count('disk'))
        self.assertEqual(1, self._count('interface'))
        self.assertGPUs(self.server, base.CARD_1)

    def test_stable_device_rescue(self) -> None:
        """The guest keeps all its devices and boots from another disk."""
        image = self.glance.create(None, {
            'name': 'rescue', 'disk_format': 'raw',
            'container_format': 'bare', 'is_public': True, 'min_ram': 0,
            'min_disk': 0, 'properties': {'hw_rescue_device': 'disk',
                                          'hw_rescue_bus': 'virtio'}})
        os.makedirs(pathlib.Path(driver.CONF.instances_path,
                                 self.server['id']))
        disks = self._count('disk')
        self.api.post_server_action(self.server['id'], {
            'rescue': {'rescue_image_ref': image['id']}})
        self._wait_for_state_change(self.server, 'RESCUE')
        self.assertEqual(disks + 1, self._count('disk'))
        self.assertGPUs(self.server, base.CARD_1)
        self._unrescue_server(self.server)
        self.assertEqual(disks, self._count('disk'))
        self._check_as_before()

    def _count(self, device: str) -> int:
        """How many devices of a kind the guest is defined with."""
        xml = etree.fromstring(self.domain_of(self.server).XMLDesc(
            fakelibvirt.VIR_DOMAIN_XML_INACTIVE))
        return len(xml.findall(f'devices/{device}'))

    def _check_as_before(self) -> None:
        self.assertGPUs(self.server, base.CARD_1)
        self.assertEqual(self.places, self.guest_places(self.server))
        self.run_periodic()
        self.assertFree(1, 'host1')


class DevicesOnQ35Test(DevicesTest):

    MACHINE = 'q35'
