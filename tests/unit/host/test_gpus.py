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

"""A host's GPUs when nova-compute starts, and in its periods."""

import json

from nova_gpu_passthru import flavor
from tests.unit import fakes
from tests.unit.host import gpus_base

A, B, HOST = gpus_base.A, gpus_base.B, gpus_base.HOST
FIRST, SECOND, THIRD = gpus_base.FIRST, gpus_base.SECOND, gpus_base.THIRD


class StartTest(gpus_base.TestCase):
    def test_every_offered_card_is_detached_and_free(self) -> None:
        self.host(HOST)
        self.start()
        self.assertEqual([FIRST, '0000:65:00.1', SECOND, THIRD],
                         sorted(self.hypervisor.detached))
        self.assertUsage(total=3, free=3)

    def test_usage_is_what_the_scheduler_reads(self) -> None:
        self.host(HOST)
        self.start()
        self.claim(A)
        self.assertEqual(
            {'free_gpus': 2, 'total_gpus': 3,
             'free_by_model': {'10de:2231': 0, '10de:2330': 2}},
            json.loads(self.gpus.usage().to_json()))

    def test_before_the_start_there_is_nothing(self) -> None:
        self.host(HOST)
        self.gpus = self.new_gpus()
        self.gpus.refresh()
        self.assertUsage(total=0, free=0)
        self.assertFalse(self.gpus.has_candidates())
        self.assertEqual([], self.hypervisor.detached)

    def test_host_without_gpus_is_left_alone(self) -> None:
        self.host('0000:03:00.0 030000 1a03:2000 driver=ast group=1\n'
                  '0000:04:00.0 020000 15b3:101b driver=mlx5_core group=2')
        self.start()
        self.assertFalse(self.gpus.has_candidates())
        self.assertEqual([], self.hypervisor.detached)

    # https://github.com/canonical/lxd/issues/18291
    def test_integrated_graphics_with_functions_is_no_candidate(
            self) -> None:
        self.host("""
            0000:00:02.0 030000 8086:a7ac driver=xe group=0 numvfs=1
            0000:00:02.1 030000 8086:a7ac driver=xe group=2 \
physfn=0000:00:02.0""")
        self.start()
        self.assertFalse(self.gpus.has_candidates())

    # https://github.com/apache/cloudstack/issues/11701
    def test_without_iommu_nothing_is_detached_and_the_log_says_why(
            self) -> None:
        self.host('0000:05:00.0 120000 1002:74a5 driver=amdgpu\n'
                  '0000:15:00.0 120000 1002:74a5 driver=amdgpu')
        self.start()
        self.assertEqual([], self.hypervisor.detached)
        self.assertUsage(total=0, free=0)
        self.assertTrue(self.gpus.has_candidates())
        self.assertIn('GPU 0000:05:00.0 (1002:74a5) is withheld: '
                      '0000:05:00.0 is in no IOMMU group', self.log.output)

    # https://github.com/HikariKnight/quickpassthrough/issues/22
    def test_no_foreign_device_is_detached_to_free_a_group(self) -> None:
        self.host(HOST + """
            0000:68:00.0 030200 10de:2330 driver=nvidia group=9
            0000:01:00.1 010601 1022:43c8 driver=ahci group=9""")
        self.start()
        self.assertUsage(total=3, free=3)
        self.assertEqual('ahci', self.hypervisor.driver('0000:01:00.1'))
        self.assertEqual('nvidia', self.hypervisor.driver('0000:68:00.0'))

    # https://github.com/truenas/middleware/pull/11397
    def test_excluded_twin_stays_with_the_host(self) -> None:
        self.host(HOST)
        self.start(exclude=[SECOND])
        self.assertEqual('nvidia', self.hypervisor.driver(SECOND))
        self.assertEqual(fakes.STUB, self.hypervisor.driver(THIRD))
        self.assertUsage(total=2, free=2)

    # https://github.com/xapi-project/xenopsd/pull/689
    def test_card_that_serves_virtual_functions_is_left_as_it_is(
            self) -> None:
        self.host("""
            0000:85:00.0 120000 1002:74a1 driver=gim group=71 numvfs=1
            0000:85:02.0 120000 1002:74b5 driver=vfio-pci group=72 \
physfn=0000:85:00.0""")
        self.hypervisor.start('by-hand', '0000:85:02.0')
        self.start()
        self.assertEqual([], self.hypervisor.detached)
        self.assertUsage(total=0, free=0)
        self.assertEqual(1, self.log.output.count(
            '0000:85:00.0 (1002:74a1) is withheld'))

    def test_each_verdict_is_logged_once(self) -> None:
        self.host(HOST)
        self.start(exclude=[SECOND])
        for _ in range(3):
            self.gpus.refresh()
        verdicts = [line for line in self.log.output.splitlines()
                    if ' is offered' in line or ' is withheld' in line]
        self.assertEqual([FIRST, SECOND, THIRD],
                         [line.split()[1] for line in verdicts])


class PeriodTest(gpus_base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host(HOST)
        self.start()

    # https://github.com/apache/cloudstack/issues/12910
    def test_count_does_not_rise_while_domains_cannot_be_read(self) -> None:
        self.hypervisor.start(A, FIRST)
        self.gpus.refresh()
        self.hypervisor.failure = fakes.libvirt_error('no connection')
        self.gpus.refresh()
        self.assertUsage(total=3, free=2)
        self.hypervisor.failure = None
        self.hypervisor.undefine(A)
        self.gpus.refresh()
        self.assertUsage(total=3, free=2)

    # A resume in another guest looks in between.
    def test_look_between_two_periods_is_no_period(self) -> None:
        self.hypervisor.start(A, FIRST)
        self.gpus.refresh()
        self.hypervisor.undefine(A)
        self.gpus.refresh()
        self.gpus.look()
        self.assertUsage(total=3, free=2)
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)

    # https://github.com/NVIDIA/kubevirt-gpu-device-plugin/pull/105
    def test_card_that_left_the_bus_is_one_fewer(self) -> None:
        self.sysfs.remove(SECOND)
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertIn(f'GPU {SECOND} is gone from the bus', self.log.output)
        self.assertNotIn('Traceback', self.log.output)

    def test_last_card_that_left_the_bus_is_noticed(self) -> None:
        for address in (FIRST, '0000:65:00.1', SECOND, THIRD):
            self.sysfs.remove(address)
        self.gpus.refresh()
        self.assertUsage(total=0, free=0)

    # https://github.com/amd/MxGPU-Virtualization/issues/25
    def test_card_that_does_not_answer_any_more_is_not_free(self) -> None:
        self.claim(A)
        self.sysfs.set_dead(FIRST)
        self.gpus.release(A)
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertIn('does not answer', self.reason(FIRST))
        self.assertEqual([SECOND], self.claim(B))

    def test_card_that_answers_again_is_offered_again(self) -> None:
        self.sysfs.set_dead(FIRST)
        self.gpus.refresh()
        self.sysfs.set_dead(FIRST, dead=False)
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)

    def test_new_card_is_detached_and_offered(self) -> None:
        self.sysfs.add('0000:68:00.0 030200 10de:2330 driver=nvidia group=4')
        self.gpus.refresh()
        self.assertUsage(total=4, free=4)

    # https://github.com/lxc/incus-os/issues/1146
    def test_card_that_a_host_driver_caught_is_detached_again(self) -> None:
        self.hypervisor.start('by-hand', FIRST, '0000:65:00.1')
        self.gpus.refresh()
        self.hypervisor.undefine('by-hand')
        self.sysfs.set_driver('0000:65:00.1', 'snd_hda_intel')
        for _ in range(3):
            self.gpus.refresh()
        self.assertEqual(fakes.STUB,
                         self.hypervisor.driver('0000:65:00.1'))
        self.assertUsage(total=3, free=3)

    # https://github.com/truenas/middleware/pull/13603
    def test_card_that_two_domains_name_counts_once(self) -> None:
        self.hypervisor.define(A, FIRST)
        self.hypervisor.define(B, FIRST)
        for _ in range(2):
            self.gpus.refresh()
        self.assertUsage(total=3, free=2)
        self.assertEqual(1, self.log.output.count(
            f'is named by domains {A} and {B} and counts as used once'))

    def test_log_tells_once_who_gets_which_card(self) -> None:
        self.claim(A)
        self.claim(A)
        self.claim(A, flavor.GPURequest(2))
        self.gpus.release(A)
        cards = [f'{FIRST} (10de:2231)', f'{SECOND} (10de:2330)']
        self.assertEqual(
            [f'GPUs {cards[0]} are given to instance {A}',
             f'GPUs {cards[1]} are given to instance {A}',
             f'GPUs {", ".join(cards)} of instance {A} are given back; free '
             f'now: 3'],
            [line for line in self.log.output.splitlines() if A in line])

    def test_count_drops_at_the_claim(self) -> None:
        self.claim(A)
        self.assertUsage(total=3, free=2)


class StrandedTest(gpus_base.TestCase):
    def test_card_beside_a_held_one_is_not_free(self) -> None:
        self.host(HOST.replace('group=3', 'group=2'))
        self.start()
        self.assertUsage(total=3, free=3)
        self.claim(A, flavor.GPURequest(1, '10de:2330'))
        self.assertUsage(total=3, free=1)
        self.claim(A, flavor.GPURequest(2, '10de:2330'))
        self.assertUsage(total=3, free=1)
