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

import time
from typing import Any

import fixtures
from lxml import etree

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.guest import hotplug
from nova_gpu_passthru.host import pci
from tests.unit import fakes
from tests.unit.guest import test_add_cards


class Guest:
    """A running guest that lets go of devices, or does not.

    :ivar deaf: addresses of functions that it does not let go of
    :ivar refused: addresses that libvirt does not even ask it for
    """

    def __init__(self, xml: str) -> None:
        self._defined = xml
        self._running = etree.fromstring(xml)
        self.deaf: set[pci.PCIAddress | None] = set()
        self.refused: set[pci.PCIAddress | None] = set()

    def get_xml_desc(self, dump_inactive: bool = False) -> str:
        return (self._defined if dump_inactive else
                etree.tostring(self._running, encoding='unicode'))

    def attach_device(self, conf: Any, persistent: bool = False,
                      live: bool = False) -> None:
        assert live and not persistent
        self._running.find('devices').append(
            etree.fromstring(conf.to_xml()))

    def detach_device(self, conf: Any, persistent: bool = False,
                      live: bool = False) -> None:
        assert live and not persistent
        address = domain.source_address(etree.fromstring(conf.to_xml()))
        if address in self.refused:
            raise fakes.libvirt_error('device is in use')
        for element in self._running.findall('devices/hostdev'):
            if domain.source_address(element) == address and (
                    address not in self.deaf):
                element.getparent().remove(element)

    def addresses(self) -> list[str]:
        """The host's functions that the guest has now."""
        return sorted(str(a) for a in domain.read(
            self.get_xml_desc(), running=True).addresses)


class HotplugTest(test_add_cards.TestCase):
    def guest(self, cards: str, others: str = '') -> Guest:
        given = self.guest_cards(cards)
        self.own = frozenset(a for card in given for a in card.addresses)
        xml = domain.add_cards(test_add_cards.nova_xml('q35'), given)
        return Guest(xml.replace('</devices>', f'{others}</devices>'))

    def take_out(self, guest: Guest) -> None:
        hotplug.take_out(guest, self.own, timeout=0)

    def refused(self, guest: Guest) -> str:
        return str(self.assertRaises(exceptions.HotplugFailed,
                                     self.take_out, guest))

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch('time.sleep', lambda _: None))

    def test_cards_are_taken_out_and_given_back(self) -> None:
        guest = self.guest('arc')
        before = guest.addresses()
        self.assertEqual(2, len(before))
        self.take_out(guest)
        self.assertEqual([], guest.addresses())
        hotplug.give_back(guest, self.own)
        self.assertEqual(before, guest.addresses())

    def test_what_is_given_back_has_its_old_address_in_the_guest(
            self) -> None:
        guest = self.guest('one-function')
        before = etree.fromstring(guest.get_xml_desc())
        self.take_out(guest)
        hotplug.give_back(guest, self.own)
        after = etree.fromstring(guest.get_xml_desc())
        self.assertEqual(
            [test_add_cards.canonical(root.find('devices/hostdev'))
             for root in (before, before)],
            [test_add_cards.canonical(root.find('devices/hostdev'))
             for root in (before, after)])

    def test_giving_back_twice_gives_once(self) -> None:
        guest = self.guest('one-function')
        hotplug.give_back(guest, self.own)
        hotplug.give_back(guest, self.own)
        self.assertEqual(['0000:08:00.0'], guest.addresses())

    def test_other_host_devices_stay(self) -> None:
        guest = self.guest('one-function', others="""
            <hostdev mode='subsystem' type='pci' managed='yes'>
              <source><address domain='0x0000' bus='0x81' slot='0x00'
                               function='0x1'/></source>
            </hostdev>""")
        self.take_out(guest)
        self.assertEqual(['0000:81:00.1'], guest.addresses())

    def test_guest_that_does_not_let_go_keeps_all(self) -> None:
        guest = self.guest('arc')
        deaf = pci.PCIAddress(0, 7, 0, 0)
        guest.deaf.add(deaf)
        self.assertIn(str(deaf), self.refused(guest))
        self.assertEqual(['0000:06:00.0', '0000:07:00.0'],
                         guest.addresses())

    def test_error_of_libvirt_gives_back_what_was_out(self) -> None:
        guest = self.guest('arc')
        guest.refused.add(pci.PCIAddress(0, 7, 0, 0))
        self.assertIn('device is in use', self.refused(guest))
        self.assertEqual(['0000:06:00.0', '0000:07:00.0'],
                         guest.addresses())

    def test_device_of_several_functions_is_refused_before_anything_is_out(
            self) -> None:
        # qemuIsMultiFunctionDevice() in libvirt's qemu_hotplug.c
        guest = self.guest('with-audio')
        text = self.refused(guest)
        self.assertIn('several functions', text)
        self.assertIn('stop the guest instead', text)
        self.assertEqual(2, len(guest.addresses()))

    def test_guest_has_its_time_to_let_go(self) -> None:
        guest = self.guest('one-function')
        deaf = pci.PCIAddress(0, 8, 0, 0)
        guest.deaf.add(deaf)

        def let_go(seconds: float) -> None:
            guest.deaf.clear()
            guest.detach_device(hotplug._devices(
                guest.get_xml_desc(), self.own)[0], live=True)

        self.useFixture(fixtures.MonkeyPatch('time.sleep', let_go))
        started = time.monotonic()
        hotplug.take_out(guest, self.own, timeout=60)
        self.assertEqual([], guest.addresses())
        self.assertLess(time.monotonic() - started, 60)
