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

"""A resize on one host: what the instance had is kept until its end."""

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import domain
from tests.unit import fakes
from tests.unit.host import claims_base

A, B = claims_base.A, claims_base.B
FIRST, SECOND, THIRD = (claims_base.FIRST, claims_base.SECOND,
                        claims_base.THIRD)


class TestCase(claims_base.TestCase):
    def define(self, uuid: str, *addresses: str, for_revert: str = ''
               ) -> None:
        """Defines what _get_guest_xml() makes, and starts it."""
        record = ''.join(f"<g:for_revert address='{address}'/>"
                         for address in for_revert.split())
        xml = fakes.domain_xml(uuid, *addresses, metadata=f"""
            <g:cards xmlns:g='{domain.NAMESPACE}'>{record}</g:cards>""")
        self.hypervisor.defined[uuid] = self.hypervisor.running[uuid] = xml


# https://bugs.launchpad.net/nova/+bug/1778563
class ResizeTest(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.assertEqual([FIRST, SECOND], self.claim(A, 2))
        self.define(A, FIRST, SECOND)
        self.claims.keep_for_revert(A)

    def test_smaller_flavor_keeps_the_rest(self) -> None:
        self.assertEqual([FIRST], self.claim(A, 1))
        self.define(A, FIRST, for_revert=f'{FIRST} {SECOND}')
        self.assertEqual([THIRD], self.free())

    def test_larger_flavor_needs_only_what_is_more(self) -> None:
        self.assertEqual([FIRST, SECOND, THIRD], self.claim(A, 3))

    def test_flavor_without_gpus_keeps_all(self) -> None:
        self.claims.give_up(A)
        self.define(A, for_revert=f'{FIRST} {SECOND}')
        self.claims.read_domains()
        self.assertEqual([THIRD], self.free())

    def test_it_is_kept_while_there_is_no_domain(self) -> None:
        self.hypervisor.undefine(A)
        self.claim(A, 1)
        for _ in range(3):
            self.claims.read_domains()
        self.assertEqual([THIRD], self.free())

    def test_confirm_gives_the_rest_back_at_once(self) -> None:
        self.claim(A, 1)
        self.define(A, FIRST, for_revert=f'{FIRST} {SECOND}')
        self.hypervisor.on_metadata = lambda uuid: self.define(uuid, FIRST)
        self.claims.confirm(A)
        self.assertEqual([SECOND, THIRD], self.free())
        self.assertNotIn('for_revert', self.hypervisor.metadata[A])

    def test_confirm_that_libvirt_refuses_frees_nothing(self) -> None:
        self.claim(A, 1)
        self.define(A, FIRST, for_revert=f'{FIRST} {SECOND}')
        self.hypervisor.failure = fakes.libvirt_error('no connection')
        self.claims.confirm(A)
        self.assertEqual([THIRD], self.free())
        self.assertIn(A, self.log.output)

    def test_revert_gives_the_same_cards_again(self) -> None:
        self.claim(A, 1)
        self.define(A, FIRST, for_revert=f'{FIRST} {SECOND}')
        self.claims.revert(A)
        self.hypervisor.undefine(A)
        self.assertEqual([FIRST, SECOND], self.claim(A, 2))
        self.assertEqual([THIRD], self.free())

    def test_restart_in_between_forgets_nothing(self) -> None:
        self.claim(A, 1)
        self.define(A, FIRST, for_revert=f'{FIRST} {SECOND}')
        self.restart()
        self.assertEqual([THIRD], self.free())
        self.claims.revert(A)
        self.hypervisor.undefine(A)
        self.assertEqual([FIRST, SECOND], self.claim(A, 2))

    def test_release_ends_it_too(self) -> None:
        self.hypervisor.undefine(A)
        self.assertTrue(self.claims.release(A))
        self.assertEqual([FIRST, SECOND, THIRD], self.free())

    def test_others_are_not_touched(self) -> None:
        self.claim(B)
        self.claims.confirm(A)
        self.claims.revert(B)
        self.assertEqual((B,), self.holders()[THIRD])


class CheckOwnTest(TestCase):
    """Before a domain starts that is not described anew."""

    def setUp(self) -> None:
        super().setUp()
        self.hypervisor.defined[A] = fakes.domain_xml(A, FIRST, metadata=f"""
            <g:cards xmlns:g='{domain.NAMESPACE}'>
              <g:card address='{FIRST}' model='10de:2231'/>
            </g:cards>""")

    def check(self) -> None:
        self.claims.check_own(A, self.all_cards)

    def test_domain_whose_cards_are_there_may_start(self) -> None:
        self.check()

    def test_domain_without_our_record_may_start(self) -> None:
        self.hypervisor.define(A, FIRST)
        self.check()

    def test_card_of_another_model_is_refused(self) -> None:
        self.host.remove(FIRST)
        self.host.add(f'{FIRST} 030000 10de:2204 driver=vfio-pci group=1')
        self.find()
        error = self.assertRaises(exceptions.NotEnoughGPUs, self.check)
        for words in (A, FIRST, '10de:2231', 'Hard reboot'):
            self.assertIn(words, str(error))

    def test_card_that_left_the_bus_is_refused(self) -> None:
        self.host.remove(FIRST)
        self.find()
        self.assertRaises(exceptions.NotEnoughGPUs, self.check)

    def test_card_on_a_host_driver_is_refused(self) -> None:
        self.host.set_driver(FIRST, 'nvidia')
        self.find()
        self.assertRaises(exceptions.NotEnoughGPUs, self.check)
