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

from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import pools
from tests.unit import base

A, B = 'guest-a', 'guest-b'
HOST = """
0000:01:00.0 030200 10de:2330 driver=vfio-pci group=1
0000:02:00.0 030200 10de:2330 driver=vfio-pci group=2
0000:03:00.0 030200 10de:2330 driver=vfio-pci group=2
0000:04:00.0 120000 1002:74a1 driver=vfio-pci group=4
"""


class CountTest(base.TestCase):
    def count(self, holders: dict[str, tuple[str, ...]],
              host: str = HOST, known: bool = True,
              **options: object) -> list[pools.Pool]:
        return pools.count(
            self.cards(host, **options),
            {pci.PCIAddress.parse(address): uuids
             for address, uuids in holders.items()}, known)

    def test_cards_of_a_model_are_one_pool(self) -> None:
        self.assertEqual([pools.Pool('1002:74a1', total=1),
                          pools.Pool('10de:2330', total=3)], self.count({}))

    def test_each_holder_counts_its_cards(self) -> None:
        _, pool = self.count({'0000:02:00.0': (A,), '0000:03:00.0': (A,),
                              '0000:01:00.0': (B,)})
        self.assertEqual({A: 2, B: 1}, pool.held)
        self.assertEqual((3, 0, 0), (pool.total, pool.blocked, pool.free))

    # https://github.com/truenas/middleware/pull/13603
    def test_card_of_two_domains_counts_once(self) -> None:
        _, pool = self.count({'0000:01:00.0': (A, B)})
        self.assertEqual({A: 1}, pool.held)
        self.assertEqual(2, pool.free)

    def test_stranded_card_is_blocked(self) -> None:
        _, pool = self.count({'0000:02:00.0': (A,)})
        self.assertEqual((3, 1, 1), (pool.total, pool.blocked, pool.free))

    def test_while_holders_are_not_known_all_is_blocked(self) -> None:
        for pool in self.count({}, known=False):
            self.assertEqual(pool.total, pool.blocked)
            self.assertEqual(0, pool.free)

    # https://bugs.launchpad.net/nova/+bug/1633120
    def test_excluded_card_counts_while_it_is_held(self) -> None:
        pool, _ = self.count({'0000:04:00.0': (A,)}, exclude=['1002:74a1'])
        self.assertEqual((1, 0), (pool.total, pool.free))
        self.assertEqual(['10de:2330'], [
            pool.model for pool in self.count({}, exclude=['1002:74a1'])])

    # https://bugs.launchpad.net/openstack-cyborg/+bug/1987380
    def test_virtual_function_of_a_guest_is_no_card(self) -> None:
        self.assertEqual([], self.count({'0000:85:02.0': (A,)}, host="""
            0000:85:00.0 120000 1002:74a1 driver=gim group=71 numvfs=1
            0000:85:02.0 120000 1002:74b5 driver=vfio-pci group=72 \
physfn=0000:85:00.0"""))
