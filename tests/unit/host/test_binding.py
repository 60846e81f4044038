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

import contextlib
import threading
from typing import Any

import ddt
import fixtures

from nova_gpu_passthru.host import binding
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import processes
from nova_gpu_passthru import telemetry
from tests import proc_tree
from tests.unit import base
from tests.unit import fakes
from tests.unit import metrics

TURING = """
0000:86:00.0 030000 10de:1e30 driver=nvidia group=6
0000:86:00.1 040300 10de:10f7 driver=snd_hda_intel group=6
0000:86:00.2 0c0330 10de:1ad6 driver=xhci_hcd group=6
0000:86:00.3 0c8000 10de:1ad7 group=6
"""
DRIVERS = {'0000:86:00.0': 'nvidia', '0000:86:00.1': 'snd_hda_intel',
           '0000:86:00.2': 'xhci_hcd', '0000:86:00.3': None}
OTHERS = """
0000:8a:00.0 030200 10de:2330 driver=nvidia group=7
0000:8b:00.0 030200 10de:2330 driver=nvidia group=8
"""
# Seconds: long enough for a file to be written, short enough to wait for.
SHORT = 0.3


class TestCase(base.TestCase):
    def host(self, description: str, timeout: float = 30) -> None:
        self.host_tree = self.tree(description)
        self.sysfs = pci.Sysfs(self.host_tree.root)
        self.hypervisor = fakes.Hypervisor(self.host_tree)
        self.proc = self.tree('').root
        self.telemetry = telemetry.Telemetry()
        self.binder = binding.Binder(
            self.sysfs, self.hypervisor,
            processes.Processes(self.sysfs, self.proc), self.telemetry,
            timeout)

    def counted(self, reason: str) -> float:
        """How often detaching failed for a reason."""
        return metrics.scrape(self.telemetry.registry).get(metrics.key(
            'action_failures_total', action='detach', reason=reason), 0)

    def detach(self) -> dict[str, str]:
        """Detaches all cards; gives the failures."""
        failures = self.binder.detach(
            host_cards.find(self.sysfs, base.policy()))
        return {str(address): text for address, text in failures.items()}

    def drivers(self) -> dict[str, str | None]:
        return {str(address): function.driver
                for address, function in self.sysfs.functions().items()}

    def assertAllDetached(self) -> None:
        self.assertEqual({fakes.STUB}, set(self.drivers().values()))


class DetachTest(TestCase):
    # https://github.com/kubevirt/kubevirt/issues/6718
    def test_every_function_of_a_card_is_detached(self) -> None:
        self.host(TURING)
        self.assertEqual({}, self.detach())
        self.assertEqual(list(DRIVERS), self.hypervisor.detached)
        self.assertAllDetached()

    def test_nothing_but_the_card_is_detached(self) -> None:
        self.host("""
            0000:85:00.0 060400 8086:347a driver=pcieport group=6
            0000:86:00.0 030000 10de:1e30 driver=nvidia group=6 \
below=0000:85:00.0
            0000:87:00.0 020000 15b3:101b driver=mlx5_core group=7""")
        self.assertEqual({}, self.detach())
        self.assertEqual(['0000:86:00.0'], self.hypervisor.detached)

    # https://github.com/truenas/middleware/pull/11397
    def test_identical_card_that_is_not_given_is_left_alone(self) -> None:
        self.host(OTHERS)
        first, _ = host_cards.find(self.sysfs, base.policy())
        self.assertEqual({}, self.binder.detach([first]))
        self.assertEqual(['0000:8a:00.0'], self.hypervisor.detached)
        self.assertEqual('nvidia', self.hypervisor.driver('0000:8b:00.0'))

    # https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/1191
    def test_function_on_a_stub_driver_is_not_touched(self) -> None:
        self.host("""
            0000:86:00.0 030000 10de:1e30 driver=vfio-pci group=6
            0000:86:00.1 040300 10de:10f7 driver=snd_hda_intel group=6""")
        self.assertEqual({}, self.detach())
        self.assertEqual(['0000:86:00.1'], self.hypervisor.detached)
        self.assertAllDetached()

    # https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/1331
    def test_variant_of_the_stub_driver_is_not_touched(self) -> None:
        self.host('0000:86:00.0 030200 10de:2342 '
                  'driver=nvgrace_gpu_vfio_pci group=6')
        self.assertEqual({}, self.detach())
        self.assertEqual([], self.hypervisor.detached)

    def test_detached_card_is_logged_with_the_drivers_it_had(self) -> None:
        self.host(TURING)
        self.detach()
        self.assertIn('GPU 0000:86:00.0 (10de:1e30) was detached from '
                      'nvidia, snd_hda_intel, xhci_hcd', self.log.output)

    def test_nothing_to_do_is_no_failure(self) -> None:
        self.host('')
        self.assertEqual({}, self.detach())


@ddt.ddt
class FailureTest(TestCase):
    @ddt.data(*DRIVERS)
    def test_card_of_which_one_function_is_refused_is_put_back(
            self, refused: str) -> None:
        self.host(TURING + OTHERS)
        self.hypervisor.refused.add(refused)
        failures = self.detach()
        self.assertEqual(['0000:86:00.0'], list(failures))
        self.assertIn(refused, failures['0000:86:00.0'])
        self.assertIn('failed to unbind', failures['0000:86:00.0'])
        self.assertEqual(
            {**DRIVERS, '0000:8a:00.0': fakes.STUB,
             '0000:8b:00.0': fakes.STUB}, self.drivers())

    def test_card_for_which_no_thread_is_left_is_tried_again(self) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        self.host(OTHERS)
        with fixtures.MonkeyPatch('threading.Thread.start', refuse):
            failures = self.detach()
        self.assertEqual(['0000:8a:00.0', '0000:8b:00.0'], list(failures))
        self.assertIn("can't start new thread", failures['0000:8a:00.0'])
        self.assertEqual({}, self.detach())
        self.assertAllDetached()

    def test_only_what_was_detached_is_put_back(self) -> None:
        self.host("""
            0000:86:00.0 030000 10de:1e30 driver=vfio-pci group=6
            0000:86:00.1 040300 10de:10f7 driver=snd_hda_intel group=6
            0000:86:00.2 0c0330 10de:1ad6 driver=xhci_hcd group=6""")
        self.hypervisor.refused.add('0000:86:00.2')
        self.assertEqual(['0000:86:00.0'], list(self.detach()))
        self.assertNotIn('0000:86:00.0', self.hypervisor.reattached)
        self.assertEqual({'0000:86:00.0': 'vfio-pci',
                          '0000:86:00.1': 'snd_hda_intel',
                          '0000:86:00.2': 'xhci_hcd'}, self.drivers())

    # https://github.com/ROCm/gpu-operator/issues/417
    def test_libvirt_is_not_believed(self) -> None:
        self.host(TURING)
        self.hypervisor.lied_about.add('0000:86:00.1')
        failure = self.detach()['0000:86:00.0']
        self.assertIn('0000:86:00.1 is detached, but it is on snd_hda_intel',
                      failure)
        self.assertEqual(DRIVERS, self.drivers())

    # https://bugs.launchpad.net/nova/+bug/1972028
    def test_card_that_left_the_bus_is_a_failure(self) -> None:
        self.host(OTHERS)
        cards = host_cards.find(self.sysfs, base.policy())
        self.host_tree.remove('0000:8a:00.0')
        failures = self.binder.detach(cards)
        self.assertEqual([cards[0].address], list(failures))
        self.assertIn('0000:8a:00.0', failures[cards[0].address])
        self.assertEqual(fakes.STUB, self.hypervisor.driver('0000:8b:00.0'))

    def test_error_that_nobody_expected_costs_one_card(self) -> None:
        self.host(OTHERS)
        self.hypervisor.broken.add('0000:8a:00.0')
        failures = self.detach()
        self.assertEqual(['0000:8a:00.0'], list(failures))
        self.assertIn('the connection is closed', failures['0000:8a:00.0'])
        self.assertIn('RuntimeError', self.log.output)

    def test_failure_is_counted(self) -> None:
        self.host(TURING)
        self.hypervisor.refused.add('0000:86:00.2')
        self.detach()
        self.assertEqual(1, self.counted('DetachFailed'))

    def test_failed_card_can_be_tried_again(self) -> None:
        self.host(TURING)
        self.hypervisor.refused.add('0000:86:00.2')
        self.assertEqual(['0000:86:00.0'], list(self.detach()))
        self.hypervisor.refused.clear()
        self.assertEqual({}, self.detach())
        self.assertAllDetached()


class StuckTest(TestCase):
    """A driver that does not let go.

    https://github.com/kubernetes/kubernetes/issues/112795
    """

    def setUp(self) -> None:
        super().setUp()
        self.host(TURING + OTHERS, timeout=SHORT)
        self.let_go = threading.Event()
        self.addCleanup(self.wait_for_threads)
        self.addCleanup(self.let_go.set)
        self.hypervisor.blocked['0000:8a:00.0'] = self.let_go

    def wait_for_threads(self) -> None:
        for thread in threading.enumerate():
            if thread.name == 'detach-0000:8a:00.0':
                thread.join(30)

    def test_others_are_detached_meanwhile(self) -> None:
        failures = self.detach()
        self.assertEqual(['0000:8a:00.0'], list(failures))
        self.assertEqual(
            {**dict.fromkeys(DRIVERS, fakes.STUB), '0000:8a:00.0': 'nvidia',
             '0000:8b:00.0': fakes.STUB}, self.drivers())

    def test_failure_names_the_driver_and_the_cure(self) -> None:
        failure = self.detach()['0000:8a:00.0']
        for words in ('nvidia', 'has not let go', 'nvidia-persistenced',
                      'stop it'):
            self.assertIn(words, failure)

    def test_it_is_counted(self) -> None:
        self.detach()
        self.assertEqual(1, self.counted('timeout'))

    def test_there_is_one_attempt_at_a_time(self) -> None:
        self.detach()
        self.assertEqual(['0000:8a:00.0'], list(self.detach()))
        self.assertEqual(1, self.hypervisor.detached.count('0000:8a:00.0'))

    def test_there_is_one_also_if_two_begin_at_once(self) -> None:
        # The periodic report and the resume of a guest, say.
        both = threading.Barrier(2)

        class Attempts(dict[Any, Any]):
            def get(self, *args: Any) -> Any:
                found = super().get(*args)
                with contextlib.suppress(threading.BrokenBarrierError):
                    both.wait(SHORT)
                return found

        self.binder._running = Attempts()
        cards = host_cards.find(self.sysfs, base.policy())[1:2]
        threads = [threading.Thread(target=self.binder.detach, args=(cards,))
                   for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.let_go.set()
        self.wait_for_threads()
        self.assertEqual(['0000:8a:00.0'], self.hypervisor.detached)

    def test_card_that_is_let_go_late_is_detached(self) -> None:
        self.detach()
        self.let_go.set()
        self.wait_for_threads()
        self.assertAllDetached()
        self.assertEqual({}, self.detach())

    def test_service_can_stop_while_a_driver_does_not_let_go(self) -> None:
        # Another test's may wait for its next look at a process yet.
        others = threading.enumerate()
        self.detach()
        stuck, = (thread for thread in threading.enumerate()
                  if thread.name == 'detach-0000:8a:00.0'
                  and thread not in others)
        self.assertTrue(stuck.daemon)


class BusyTest(TestCase):
    """A process that uses the card.

    https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1119
    """

    def setUp(self) -> None:
        super().setUp()
        self.host(OTHERS, timeout=SHORT)
        self.processes = proc_tree.ProcTree(self.proc, self.host_tree)
        self.processes.serve_nvidia('0000:8a:00.0', 0)
        self.processes.serve_nvidia('0000:8b:00.0', 1)
        self.processes.run(812, 'nvidia-persiste', 'nvidia0')
        self.addCleanup(self.processes.end, 812)

    def test_card_is_not_touched_and_the_process_named(self) -> None:
        self.assertEqual(
            {'0000:8a:00.0': 'nvidia-persiste (pid 812) uses it, and still '
                             'does after 0 s; stop it, and the card is '
                             'offered once it is detached'}, self.detach())
        self.assertEqual(['0000:8b:00.0'], self.hypervisor.detached)

    def test_card_is_detached_once_the_process_has_ended(self) -> None:
        self.detach()
        self.processes.end(812)
        self.binder.timeout = 30
        self.assertEqual({}, self.detach())
        self.assertAllDetached()

    def test_where_the_processes_cannot_be_seen(self) -> None:
        self.processes.end(812)
        self.processes.run_unseen(813)
        let_go = self.hypervisor.blocked['0000:8a:00.0'] = threading.Event()
        self.addCleanup(let_go.set)
        failure = self.detach()['0000:8a:00.0']
        self.assertIn('nvidia has not let go', failure)
        self.assertIn(f'fuser -v {self.proc}/dev/nvidia0', failure)
