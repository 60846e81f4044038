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

"""Claims on hosts whose domains are described in every senseless way."""

import random
import re

import hypothesis
from hypothesis import strategies
from lxml import etree

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import gpus
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import records
from nova_gpu_passthru.host import terms as host_terms
from nova_gpu_passthru import telemetry
from tests import sysfs_tree
from tests.unit import base
from tests.unit import fakes
from tests.unit.fuzz import examples

HOST = """
0000:65:00.0 030000 10de:1ff2 driver=vfio-pci group=2
0000:65:00.1 040300 10de:10fa driver=vfio-pci group=2
0000:66:00.0 030200 10de:2330 driver=vfio-pci group=3
0000:67:00.0 030200 10de:2330 driver=vfio-pci group=4
"""
CARDS = ('0000:65:00.0', '0000:66:00.0', '0000:67:00.0')
FUNCTIONS = (*CARDS, '0000:65:00.1')
OWNER = 'aaaaaaaa-0000-4000-8000-000000000000'
OTHER = 'bbbbbbbb-0000-4000-8000-000000000000'

METADATA = """
<c:cards xmlns:c='urn:nova-gpu-passthru:domain:1'>
  <c:card address='0000:66:00.0' model='10de:2330'/>
  <c:for_revert address='0000:67:00.0'/>
</c:cards>
"""

WORDS = strategies.one_of(
    examples.NUMBERS, strategies.text(max_size=8),
    strategies.sampled_from(('', 'pci', 'usb', 'mdev', '0x', '08', '0000',
                             '0x0000', 'FFFF', '\N{ARABIC-INDIC DIGIT ONE}')))
MUTATIONS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(('drop', 'attribute', 'tag', 'text',
                                 'duplicate')),
        strategies.integers(0, 30), WORDS),
    max_size=8)


def mutate(xml: str, mutations: list[tuple[str, int, str]]) -> str:
    """Changes elements of a domain, none of them the first hostdev's."""
    root = etree.fromstring(xml)
    intact = root.find('devices/hostdev')
    for kind, number, word in mutations:
        kept = {intact, *intact.iter(), *intact.iterancestors()}
        elements = [e for e in root.iter() if e not in kept]
        if not elements:
            continue
        element = elements[number % len(elements)]
        try:
            if kind == 'drop':
                element.getparent().remove(element)
            elif kind == 'attribute':
                names = list(element.attrib) or ['type']
                element.set(names[number % len(names)], word)
            elif kind == 'tag':
                element.tag = word
            elif kind == 'text':
                element.text = word
            else:
                element.addnext(etree.fromstring(etree.tostring(
                    element, with_tail=False)))
        except ValueError:
            pass  # no XML can have that word there
    return str(etree.tostring(root, encoding='unicode'))


class BrokenDomainsTest(base.TestCase):
    @examples.SETTINGS
    @hypothesis.given(strategies.sampled_from(FUNCTIONS), MUTATIONS,
                      strategies.booleans())
    def test_what_a_domain_names_is_never_free(
            self, address: str, mutations: list[tuple[str, int, str]],
            running: bool) -> None:
        with sysfs_tree.SysfsTree(HOST) as tree:
            hypervisor = fakes.Hypervisor(tree)
            xml = mutate(fakes.domain_xml(OWNER, address, *FUNCTIONS,
                                          metadata=METADATA), mutations)
            hypothesis.note(xml)
            hypervisor.defined[OWNER] = xml
            if running:
                hypervisor.running[OWNER] = xml
            host = started(hypervisor)
            self.assertHeld(host, address)
            self.assertEqual(0, host.usage().free_gpus)

    @examples.SETTINGS
    @hypothesis.given(strategies.sampled_from(FUNCTIONS),
                      strategies.randoms(use_true_random=False),
                      strategies.text(max_size=6), strategies.booleans())
    def test_domain_that_is_no_xml_frees_nothing(
            self, address: str, chance: random.Random, junk: str,
            was_known: bool) -> None:
        with sysfs_tree.SysfsTree(HOST) as tree:
            hypervisor = fakes.Hypervisor(tree)
            xml = fakes.domain_xml(OWNER, address)
            hypervisor.defined[OWNER] = xml
            host = started(hypervisor)
            if not was_known:
                host = new_host(hypervisor)
            # Before a tag, so that the address stays what it is or is none.
            cut = chance.choice([m.start() for m in re.finditer('<', xml)])
            hypervisor.defined[OWNER] = xml[:cut] + junk
            if was_known:
                host.refresh()
            else:
                host.start(base.policy(), 30, host_terms.Terms())
            self.assertHeld(host, address)

    def assertHeld(self, host: gpus.HostGPUs, address: str) -> None:
        """Checks that nobody else gets the card of a function."""
        owned = address[:-1] + '0'
        self.assertLessEqual(host.usage().free_gpus, 2)
        got: list[str] = []
        try:
            for number in range(4):
                got += [str(card.address) for card in host.claim(
                    OTHER[:-1] + str(number), flavor.GPURequest(1))]
        except exceptions.NotEnoughGPUs:
            pass
        self.assertNotIn(owned, got)
        self.assertEqual(len(set(got)), len(got))


def new_host(hypervisor: fakes.Hypervisor) -> gpus.HostGPUs:
    root = hypervisor.tree.root
    return gpus.HostGPUs(pci.Sysfs(root), hypervisor,
                         records.Records(root / 'gpu_passthru'),
                         telemetry.Telemetry(), root)


def started(hypervisor: fakes.Hypervisor) -> gpus.HostGPUs:
    host = new_host(hypervisor)
    host.start(base.policy(), 30, host_terms.Terms())
    return host
