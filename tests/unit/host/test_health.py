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

"""Cards that fall sick while they are offered."""

import fixtures

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from tests.unit import fakes
from tests.unit.host import gpus_base
from tests.unit.host import health_base

A, B, HOST, ONE = gpus_base.A, gpus_base.B, gpus_base.HOST, gpus_base.ONE
FIRST, SECOND, THIRD = gpus_base.FIRST, gpus_base.SECOND, gpus_base.THIRD
AUDIO = '0000:65:00.1'


class OfferedTest(health_base.TestCase):
    """It falls sick while it waits for guests."""

    # https://github.com/amd/MxGPU-Virtualization/issues/25
    def test_config_space_of_ones_costs_the_card_and_no_other(self) -> None:
        self.sysfs.set_dead(SECOND)
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertIn('power-cycle', self.reason(SECOND))

    def test_companion_that_does_not_answer_costs_its_card(self) -> None:
        self.sysfs.set_dead(AUDIO)
        self.gpus.refresh()
        self.assertIn(AUDIO, self.reason(FIRST))
        self.assertUsage(total=2, free=2)

    # https://github.com/kata-containers/kata-containers/issues/11708
    def test_sleeping_card_that_wakes_when_it_is_read_is_healthy(
            self) -> None:
        for state in ('D3hot', 'D3cold'):
            (self.sysfs.path(SECOND) / 'power_state').write_text(state)
            self.gpus.refresh()
            self.assertUsage(total=3, free=3)

    # The same: D3cold, and nothing wakes it.
    def test_sleeping_card_that_cannot_be_woken_is_withheld(self) -> None:
        (self.sysfs.path(SECOND) / 'power_state').write_text('D3cold')
        self.sysfs.set_dead(SECOND)
        self.gpus.refresh()
        self.assertIn('does not answer', self.reason(SECOND))

    # Proxmox 458b487b, isc30/ryzen-gpu-passthrough-proxmox#131
    def test_card_without_a_reset_is_offered(self) -> None:
        (self.sysfs.path(SECOND) / 'reset_method').write_text('\n')
        self.assertFalse((self.sysfs.path(THIRD) / 'reset_method').exists())
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)

    # The firmware's console was on it, and Linux is older than 6.0.
    def test_card_of_which_the_framebuffer_holds_memory(self) -> None:
        (self.sysfs.root / 'proc').mkdir()
        (self.sysfs.root / 'proc/iomem').write_text(f"""\
d0000000-dfffffff : {SECOND}
  d0000000-d02fffff : BOOTFB
e0000000-e0ffffff : {THIRD}
  e0000000-e0ffffff : vfio-pci
""")
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertIn(f'BOOTFB holds memory of {SECOND}', self.reason(SECOND))
        self.assertIn('initcall_blacklist=sysfb_init', self.reason(SECOND))

    # https://github.com/NVIDIA/kubevirt-gpu-device-plugin/pull/105
    def test_card_that_is_gone_is_one_fewer_until_it_comes_back(
            self) -> None:
        self.sysfs.remove(SECOND)
        self.gpus.refresh()
        self.assertUsage(total=2, free=2)
        self.assertNotIn('Traceback', self.log.output)
        self.sysfs.add(f'{SECOND} 030200 10de:2330 driver=nvidia group=2')
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)
        self.assertEqual(fakes.STUB, self.hypervisor.driver(SECOND))

    # The same, and https://bugs.launchpad.net/nova/+bug/1972028
    def test_card_that_goes_between_the_look_and_the_lookup_is_no_error(
            self) -> None:
        lookup = self.hypervisor.node_device

        def too_late(name: str) -> fakes.NodeDevice:
            self.sysfs.remove('0000:68:00.0')
            return lookup(name)

        self.sysfs.add('0000:68:00.0 030200 10de:2330 driver=nvidia group=4')
        with fixtures.MonkeyPatch(
                'tests.unit.fakes.Hypervisor.node_device',
                lambda hypervisor, name: too_late(name)):
            self.gpus.refresh()
        self.assertUsage(total=3, free=3)
        self.assertNotIn('Traceback', self.log.output)
        self.sysfs.add('0000:68:00.0 030200 10de:2330 driver=nvidia group=4')
        self.gpus.refresh()
        self.assertUsage(total=4, free=4)

    def test_card_that_was_gone_between_two_looks_is_detached_again(
            self) -> None:
        self.sysfs.remove(SECOND)
        # A file system may give the number of a deleted folder again.
        (self.sysfs.root / 'devices/other').mkdir()
        self.sysfs.add(f'{SECOND} 030200 10de:2330 driver=nvidia group=2')
        self.gpus.refresh()
        self.assertEqual(fakes.STUB, self.hypervisor.driver(SECOND))

    def test_card_that_is_gone_at_the_claim_is_not_given(self) -> None:
        self.sysfs.remove(FIRST)
        self.assertEqual([SECOND], self.claim(A))
        self.assertIn(f'{FIRST} is gone from the bus', self.log.output)

    def test_card_that_is_dead_at_the_claim_is_not_given(self) -> None:
        self.sysfs.set_dead(AUDIO)
        self.assertEqual([SECOND], self.claim(A))
        self.assertIn(f'{AUDIO} does not answer', self.log.output)

    def test_card_that_was_exchanged_before_the_claim_is_not_given(
            self) -> None:
        self.sysfs.remove(SECOND)
        self.sysfs.add(f'{SECOND} 030200 10de:20b5 driver=vfio-pci group=2')
        self.assertEqual([THIRD], self.claim(
            A, flavor.GPURequest(1, '10de:2330')))
        self.assertIn('is another device now, of model 10de:20b5',
                      self.log.output)

    def test_card_that_lost_a_function_is_not_offered_without_it(
            self) -> None:
        self.sysfs.remove(AUDIO)
        for _ in range(2):
            self.gpus.refresh()
            self.assertIn(f'{AUDIO} is gone', self.reason(FIRST))
            self.assertUsage(total=2, free=2)
        self.sysfs.add(f'{AUDIO} 040300 10de:1aef driver=vfio-pci group=1')
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)

    # Radeons of old have a second display function; the kernel removes any
    # function by itself.
    def test_card_that_lost_the_function_that_names_it(self) -> None:
        second = '0000:65:00.1'
        self.host(f"""
            {FIRST} 030000 1002:68f9 driver=radeon group=1
            {second} 038000 1002:68f8 driver=radeon group=1""")
        self.start()
        self.assertUsage(total=1, free=1)
        self.sysfs.remove(FIRST)
        self.gpus.refresh()
        self.assertUsage(total=0, free=0)
        self.assertIn(f'{FIRST} is gone', self.reason(second))
        self.sysfs.add(f'{FIRST} 030000 1002:68f9 driver=radeon group=1')
        self.gpus.refresh()
        self.assertUsage(total=1, free=1)

    def test_virtual_functions_that_are_gone_are_no_loss(self) -> None:
        card = '0000:68:00.0 030200 10de:2330 driver=nvidia group=4'
        vf = '0000:68:00.4 030200 10de:2330 group=5 physfn=0000:68:00.0'
        self.sysfs.add(f'{card} numvfs=1\n{vf}')
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)
        self.sysfs.remove('0000:68:00.4')
        (self.sysfs.path('0000:68:00.0') / 'sriov_numvfs').write_text('0')
        self.gpus.refresh()
        self.assertUsage(total=4, free=4)

    def test_other_card_with_fewer_functions_is_whole(self) -> None:
        self.sysfs.remove(FIRST)
        self.sysfs.remove(AUDIO)
        self.sysfs.add(f'{FIRST} 030200 10de:20b5 driver=nvidia group=1')
        self.gpus.refresh()
        self.assertEqual('', self.reason(FIRST))


class TakenTest(health_base.TestCase):
    """A host driver has it again, by somebody's hand."""

    def setUp(self) -> None:
        super().setUp()
        self.gpus.refresh()
        self.sysfs.set_driver(SECOND, 'nvidia')

    def test_it_is_left_there_and_withheld(self) -> None:
        for _ in range(2):
            self.gpus.refresh()
        self.assertEqual('nvidia', self.hypervisor.driver(SECOND))
        self.assertUsage(total=2, free=2)
        self.assertIn('is on nvidia now', self.reason(SECOND))
        self.assertIn(f'nova-gpu-passthru offer {SECOND}',
                      self.reason(SECOND))

    def test_it_is_not_given_before_the_next_look(self) -> None:
        self.assertEqual([FIRST], self.claim(A))
        self.assertEqual([THIRD], self.claim(B))
        self.assertRaises(exceptions.NotEnoughGPUs, self.claim, 'c')

    def test_it_is_offered_when_it_is_put_back(self) -> None:
        self.gpus.refresh()
        self.sysfs.set_driver(SECOND, 'vfio-pci')
        self.gpus.refresh()
        self.assertUsage(total=3, free=3)

    def test_it_is_detached_again_when_it_is_offered(self) -> None:
        self.gpus.refresh()
        card, = (c for c in self.gpus.cards if str(c.address) == SECOND)
        self.records.change(card, lambda record: record.but(retry=True))
        self.gpus.refresh()
        self.assertEqual(fakes.STUB, self.hypervisor.driver(SECOND))
        self.assertUsage(total=3, free=3)
        self.assertEqual({}, self.records.read())

    def test_it_is_detached_again_by_a_restart(self) -> None:
        self.gpus.refresh()
        self.start()
        self.assertEqual(fakes.STUB, self.hypervisor.driver(SECOND))
