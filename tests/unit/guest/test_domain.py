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

"""Domains of Nova, of other tools and of people, as they are read."""

import ddt
from lxml import etree

from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import pci
from tests.unit import base
from tests.unit import fakes

UUID = '6f70b1a2-9d2c-4c1e-9a0e-0d5f0c6d3d01'


def with_devices(devices: str, metadata: str = '') -> str:
    return f"""<domain type='kvm'>
  <name>by-hand</name>
  <uuid>{UUID}</uuid>
  <metadata>{metadata}</metadata>
  <devices>{devices}</devices>
</domain>"""


def hostdev(attributes: str, managed: str = 'no') -> str:
    return f"""<hostdev mode='subsystem' type='pci' managed='{managed}'>
  <source><address {attributes}/></source></hostdev>"""


def addresses(xml: str) -> list[str]:
    return sorted(str(address) for address in domain.read(xml).addresses)


@ddt.ddt
class ReadTest(base.TestCase):
    def test_domain_is_named(self) -> None:
        devices = domain.read(with_devices(''))
        self.assertEqual((UUID, 'by-hand'), (devices.uuid, devices.name))

    def test_domain_without_devices_holds_nothing(self) -> None:
        self.assertEqual([], addresses(with_devices('')))

    # In libvirt's formats hexadecimal and decimal stand side by side: see
    # tests/nodedevschemadata/pci_0000_02_10_7_sriov.xml there.
    @ddt.unpack
    @ddt.data(
        ("domain='0x0000' bus='0x2d' slot='0x00' function='0x1'",
         '0000:2d:00.1'),
        ("bus='0x2d' slot='0x00' function='0x1'", '0000:2d:00.1'),
        ("domain='0X0001' bus='0XD8' slot='0X1F' function='0X7'",
         '0001:d8:1f.7'),
        ("domain='0' bus='45' slot='16' function='7'", '0000:2d:10.7'),
        ("domain='0' bus='010' slot='0' function='0'", '0000:08:00.0'),
        ("domain='0x0000' bus='0x2d' slot='0x00'", '0000:2d:00.0'),
        ("domain='0x10001' bus='0x84' slot='0x00' function='0x0'",
         '10001:84:00.0'))
    def test_every_spelling_of_an_address_is_read(
            self, attributes: str, meant: str) -> None:
        self.assertEqual([meant], addresses(with_devices(
            hostdev(attributes))))

    # https://github.com/lxc/incus-os/issues/1146
    @ddt.data('yes', 'no')
    def test_managed_does_not_matter(self, managed: str) -> None:
        self.assertEqual(['0000:2d:00.0'], addresses(with_devices(hostdev(
            "bus='0x2d' slot='0x00' function='0x0'", managed))))

    @ddt.data(
        '', "bus='' slot='0x00' function='0x0'", "bus='0x2d' function='0'",
        "bus='0xzz' slot='0x00' function='0x0'",
        "bus='2d:00' slot='0x00' function='0x0'",
        "bus='1.5' slot='0x00' function='0x0'")
    def test_what_is_no_address_hides_no_other(self, junk: str) -> None:
        self.assertEqual(['0000:2d:00.0'], addresses(with_devices(
            hostdev(junk) +
            hostdev("bus='0x2d' slot='0x00' function='0x0'"))))

    def test_other_host_devices_are_no_pci_functions(self) -> None:
        self.assertEqual([], addresses(with_devices("""
            <hostdev mode='subsystem' type='mdev' model='vfio-pci'>
              <source>
                <address uuid='c2177883-f1bb-47f0-914d-32a22e3a8804'/>
              </source>
            </hostdev>
            <hostdev mode='subsystem' type='usb'>
              <source><address bus='1' device='2'/></source>
            </hostdev>
            <hostdev mode='capabilities' type='misc'>
              <source><char>/dev/input/event3</char></source>
            </hostdev>
            <hostdev mode='subsystem' type='pci'/>""")))

    def test_address_in_the_guest_is_not_the_hosts(self) -> None:
        self.assertEqual(['0000:2d:00.0'], addresses(with_devices("""
            <hostdev mode='subsystem' type='pci' managed='no'>
              <source>
                <address bus='0x2d' slot='0x00' function='0x0'/>
              </source>
              <address type='pci' bus='0x01' slot='0x00' function='0x0'/>
            </hostdev>""")))

    def test_interface_may_hold_a_function_too(self) -> None:
        self.assertEqual(['0000:81:10.1'], addresses(with_devices("""
            <interface type='hostdev' managed='yes'>
              <mac address='fa:16:3e:00:00:01'/>
              <source>
                <address type='pci' domain='0x0000' bus='0x81' slot='0x10'
                         function='0x1'/>
              </source>
            </interface>
            <interface type='bridge'>
              <source bridge='br-int'/>
              <address type='pci' bus='0x03' slot='0x00' function='0x0'/>
            </interface>""")))

    def test_text_is_not_taken_for_a_device(self) -> None:
        self.assertEqual([], addresses(with_devices(
            '<!--' + hostdev("bus='0x2d' slot='0x00'") + '-->')))

    # What libvirt and people may write, and what they cannot.
    @ddt.data('<domain/>', '<domain><uuid/><devices/></domain>',
              '<network><name>default</name></network>',
              "<domain xmlns='http://example.org'><devices/></domain>",
              "<?xml version='1.0'?>\n<domain/>",
              "<?xml version='1.0' encoding='UTF-8'?>\n<domain/>",
              '<domain><!-- c --><?pi x?><devices><!-- c --></devices>'
              '</domain>')
    def test_any_xml_is_read(self, xml: str) -> None:
        self.assertEqual([], addresses(xml))

    @ddt.data('', 'no XML', '<domain>', '<domain></devices>')
    def test_what_is_no_xml_is_refused(self, text: str) -> None:
        self.assertRaises(etree.XMLSyntaxError, domain.read, text)


@ddt.ddt
class ModelsTest(base.TestCase):
    def models(self, metadata: str) -> dict[pci.PCIAddress, str]:
        return domain.read(with_devices('', metadata)).models

    def test_models_of_the_cards_are_read(self) -> None:
        self.assertEqual(
            {pci.PCIAddress(0, 0x2d, 0, 0): '10de:2330'}, self.models(f"""
            <g:cards xmlns:g='{domain.NAMESPACE}'>
              <g:card address='0000:2d:00.0' model='10de:2330'/>
            </g:cards>"""))

    @ddt.data("<g:card/>", "<g:card address='' model='10de:2330'/>",
              "<g:card address='0000:2d:00' model='10de:2330'/>",
              "<g:other address='0000:2d:00.0' model='10de:2330'/>",
              "<card address='0000:2d:00.0' model='10de:2330'/>", 'text')
    def test_nonsense_is_passed_over(self, junk: str) -> None:
        self.assertEqual({}, self.models(
            f"<g:cards xmlns:g='{domain.NAMESPACE}'>{junk}</g:cards>"))

    def test_metadata_of_others_is_passed_over(self) -> None:
        self.assertEqual({}, self.models("""
            <o:cards xmlns:o='http://example.org/gpus'>
              <o:card address='0000:2d:00.0' model='10de:2330'/>
            </o:cards>"""))


class MergedTest(base.TestCase):
    def test_running_and_defined_hold_what_either_names(self) -> None:
        defined = domain.read(fakes.domain_xml(UUID, '0000:2d:00.0'))
        running = domain.read(fakes.domain_xml(UUID, '0000:2e:00.0'),
                              running=True)
        for merged in (defined.merged(running), running.merged(defined)):
            self.assertEqual(['0000:2d:00.0', '0000:2e:00.0'],
                             sorted(str(a) for a in merged.addresses))
            self.assertTrue(merged.running)
        self.assertFalse(defined.merged(defined).running)
