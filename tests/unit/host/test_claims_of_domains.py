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

"""Cards that domains hold, and what is known of them."""

from nova_gpu_passthru.guest import domain
from tests.unit import fakes
from tests.unit.host import claims_base

A, B, C = claims_base.A, claims_base.B, claims_base.C
FIRST, SECOND, THIRD = (claims_base.FIRST, claims_base.SECOND,
                        claims_base.THIRD)


class DomainsTest(claims_base.TestCase):
    """Domains hold cards, whoever made them."""

    # https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/1331
    def test_running_domain_holds_its_cards_after_a_restart(self) -> None:
        self.hypervisor.start(A, FIRST, '0000:31:00.1')
        self.restart()
        self.assertEqual([SECOND, THIRD], self.free())
        self.assertEqual([FIRST], self.claim(A))

    # https://github.com/harvester/harvester/issues/5957
    def test_domain_that_is_shut_off_holds_its_cards(self) -> None:
        self.hypervisor.define(A, THIRD)
        self.restart()
        self.assertEqual([THIRD], self.claim(A))
        self.assertEqual([FIRST, SECOND], self.free())

    def test_domain_made_after_the_last_reading_is_seen_by_a_claim(
            self) -> None:
        self.hypervisor.define('by-hand', FIRST)
        self.assertEqual([SECOND], self.claim(A))

    def test_card_in_either_description_of_a_domain_is_held(self) -> None:
        self.hypervisor.start('by-hand', FIRST)
        self.hypervisor.defined['by-hand'] = fakes.domain_xml('by-hand',
                                                              SECOND)
        self.restart()
        self.assertEqual([THIRD], self.free())

    # https://github.com/lf-edge/eve/pull/2544
    def test_domain_with_half_a_card_holds_all_of_it(self) -> None:
        self.hypervisor.define('by-hand', '0000:31:00.1')
        self.restart()
        self.assertEqual({FIRST: ('by-hand',)}, self.holders())
        self.assertRefused(A, 3)

    # https://github.com/truenas/middleware/pull/13603
    def test_card_that_two_domains_name_is_held_once(self) -> None:
        self.hypervisor.define(A, FIRST)
        self.hypervisor.define('by-hand', FIRST)
        self.restart()
        self.assertEqual({FIRST: (A, 'by-hand')}, self.holders())
        self.assertEqual([SECOND, THIRD], self.free())
        self.assertEqual([SECOND], self.claim(A))

    def test_domain_without_host_devices_holds_nothing(self) -> None:
        self.hypervisor.start(A)
        self.restart()
        self.assertEqual({}, self.holders())

    def test_only_running_domains_use_their_cards(self) -> None:
        self.hypervisor.define(A, FIRST)
        self.hypervisor.start(B, '0000:b1:00.1')
        self.restart()
        self.assertEqual([THIRD], [
            str(address) for address in self.claims.in_use(self.all_cards)])

    # https://bugs.launchpad.net/nova/+bug/1633120
    def test_excluded_card_stays_with_the_guest_that_has_it(self) -> None:
        self.hypervisor.start(A, FIRST, '0000:31:00.1')
        self.restart()
        self.find(exclude=[FIRST])
        self.assertEqual([FIRST], self.claim(A))
        self.hypervisor.undefine(A)
        self.assertTrue(self.claims.release(A))
        self.assertEqual([SECOND], self.claim(A))

    def test_excluded_card_on_a_host_driver_is_not_given(self) -> None:
        # Nobody detaches it, so its guest could not start with it.
        self.hypervisor.define(A, FIRST, '0000:31:00.1')
        self.host.set_driver(FIRST, 'nvidia')
        self.restart()
        self.find(exclude=[FIRST])
        self.assertEqual([SECOND], self.claim(A))

    def define_with_models(self, **models: str) -> None:
        """Defines A as this driver does; FIRST='10de:2330' and so on."""
        given = {globals()[name]: model for name, model in models.items()}
        record = ''.join(f"<g:card address='{address}' model='{model}'/>"
                         for address, model in given.items())
        self.hypervisor.defined[A] = fakes.domain_xml(
            A, *given, metadata=f"<g:cards xmlns:g='{domain.NAMESPACE}'>"
                                f'{record}</g:cards>')
        self.restart()

    def test_renumbered_bus_is_noticed(self) -> None:
        self.define_with_models(FIRST='10de:2330')
        self.assertEqual([SECOND], self.claim(A))
        self.assertIn(A, self.log.output)
        self.assertIn('10de:2330', self.log.output)

    def test_card_that_moved_is_not_replaced_by_one_the_guest_has(
            self) -> None:
        self.define_with_models(FIRST='10de:2231', SECOND='10de:2231')
        self.assertEqual([FIRST, THIRD], self.claim(A, 2))

    def test_two_cards_that_moved_are_replaced_by_two(self) -> None:
        self.host.add('0000:c1:00.0 030200 10de:2330 driver=vfio-pci '
                      'group=4')
        self.find()
        self.define_with_models(FIRST='10de:2330', THIRD='10de:2330')
        self.assertEqual([SECOND, '0000:c1:00.0'], self.claim(A, 2))

    def test_card_that_moved_is_replaced_by_any_where_there_is_no_other(
            self) -> None:
        self.define_with_models(FIRST='10de:ffff')
        self.assertEqual(1, len(self.claim(A)))


class UnreadableTest(claims_base.TestCase):
    """Failure to read is not evidence of freedom.

    https://github.com/apache/cloudstack/issues/12910
    """

    def setUp(self) -> None:
        super().setUp()
        self.hypervisor.start(A, FIRST)
        self.hypervisor.start(B, SECOND)
        self.restart()

    def fail(self) -> None:
        self.hypervisor.failure = fakes.libvirt_error('no connection')

    def test_domains_that_cannot_be_read_keep_their_cards(self) -> None:
        self.fail()
        for _ in range(5):
            self.claims.read_domains()
            self.assertEqual([THIRD], self.free())
        self.assertIn('no connection', self.log.output)

    def test_empty_list_frees_nothing_the_first_time(self) -> None:
        self.hypervisor.undefine(A)
        self.hypervisor.undefine(B)
        self.claims.read_domains()
        self.assertEqual([THIRD], self.free())

    def test_domain_that_is_missing_twice_is_gone(self) -> None:
        self.hypervisor.undefine(A)
        self.claims.read_domains()
        self.claims.read_domains()
        self.assertEqual([FIRST, THIRD], self.free())

    def test_failure_between_two_misses_is_no_miss(self) -> None:
        self.hypervisor.undefine(A)
        self.claims.read_domains()
        self.fail()
        self.claims.read_domains()
        self.assertEqual([THIRD], self.free())

    def test_domain_that_comes_back_is_not_missing(self) -> None:
        for _ in range(3):
            self.hypervisor.undefine(A)
            self.claims.read_domains()
            self.hypervisor.start(A, FIRST)
            self.claims.read_domains()
        self.assertEqual([THIRD], self.free())

    def test_domain_seen_in_between_is_not_missing_twice(self) -> None:
        self.hypervisor.undefine(A)
        self.claims.read_domains()
        self.hypervisor.start(A, FIRST)
        self.claim(C)
        self.hypervisor.undefine(A)
        self.claims.read_domains()
        self.assertEqual((A,), self.holders()[FIRST])

    def test_guests_get_what_they_have_and_nothing_else_is_given(
            self) -> None:
        self.fail()
        self.assertEqual([FIRST], self.claim(A))
        self.assertIn('libvirt does not tell', self.assertRefused(C))
        self.assertIn('libvirt does not tell', self.assertRefused(A, 2))

    def test_nothing_is_given_before_the_first_reading(self) -> None:
        self.fail()
        self.restart()
        self.assertFalse(self.claims.known)
        text = self.assertRefused(C)
        self.assertIn(C, text)
        self.assertIn('libvirt does not tell', text)

    def test_domain_that_is_no_xml_is_a_failure_to_read(self) -> None:
        self.hypervisor.undefine(A)
        self.hypervisor.defined[C] = '<domain>'
        self.claims.read_domains()
        self.claims.read_domains()
        self.assertEqual([THIRD], self.free())
