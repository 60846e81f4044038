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


"""nova-compute is killed between any two steps and started again.

No card is lost, none has two holders, the counts are right, and what was
interrupted is finished at the start or can be ended by the user. A point that
leaves the same behind as another one stands for both.
"""

import ddt

from tests.functional import base
from tests.functional import crash_base


@ddt.ddt
class CreateTest(crash_base.CrashTestCase):

    @ddt.data('before claim', 'after claim', 'after defineXML',
              'after createWithFlags')
    def test_at(self, point: str) -> None:
        self.crash.arm(point)
        server = self.post_gpu_server()
        self.restart_killed()
        # As Nova does with what was being built.
        self.wait_for_error(server)
        self.check_neighbour()
        self.check_deleted(server)


@ddt.ddt
class DeleteTest(crash_base.CrashTestCase):

    @ddt.data('before destroy', 'after destroy', 'after undefineFlags',
              'after release')
    def test_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.api.delete_server(server['id']))
        # Nova goes on with it when it starts.
        self._wait_until_deleted(server)
        self.check_all_free()


@ddt.ddt
class RebootTest(crash_base.CrashTestCase):

    @ddt.data('before destroy', 'after destroy', 'after undefineFlags',
              'after defineXML', 'after createWithFlags')
    def test_hard_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.act(
            server, {'reboot': {'type': 'HARD'}}))
        # Nova reboots it again, unless it runs.
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertGPUs(server, base.CARD_1)
        self.check_neighbour()
        self.check_deleted(server)


@ddt.ddt
class StopAndStartTest(crash_base.CrashTestCase):

    @ddt.data('before destroy', 'after destroy')
    def test_stop_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.act(server, {'os-stop': None}))
        self._wait_for_state_change(server, 'SHUTOFF')
        self.check_neighbour()
        self._start_server(server)
        self.assertGPUs(server, base.CARD_1)
        self.check_deleted(server)

    @ddt.data('after undefineFlags', 'after defineXML',
              'after createWithFlags')
    def test_start_at(self, point: str) -> None:
        server = self._stop_server(self.create_gpu_server())
        self.kill_in(point, lambda: self.act(server, {'os-start': None}))
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertGPUs(server, base.CARD_1)
        self.check_neighbour()
        self.check_deleted(server)


@ddt.ddt
class RebuildTest(crash_base.CrashTestCase):

    @ddt.data('after destroy', 'after undefineFlags', 'after defineXML',
              'after createWithFlags')
    def test_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.act(
            server, {'rebuild': {'imageRef': server['image']['id']}}))
        self.check_neighbour()
        self.wait_for_error(server)
        self._reboot_server(server, hard=True)
        self.assertGPUs(server, base.CARD_1)
        self.check_deleted(server)


@ddt.ddt
class SuspendTest(crash_base.CrashTestCase):

    HOST = crash_base.TWO_H100

    @ddt.data('before detachDeviceFlags', 'after detachDeviceFlags',
              'after managedSave')
    def test_suspend_at(self, point: str) -> None:
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.act(server, {'suspend': None}))
        self.check_neighbour()
        # Nova leaves it in "suspending", out of which a hard reboot leads.
        self._reboot_server(server, hard=True)
        self.assertGPUs(server, crash_base.H100_1)
        self.check_deleted(server)

    @ddt.data('before createWithFlags', 'after createWithFlags',
              'after attachDeviceFlags')
    def test_resume_at(self, point: str) -> None:
        server = self._suspend_server(self.create_gpu_server())
        self.kill_in(point, lambda: self.act(server, {'resume': None}))
        self.check_neighbour()
        self._reboot_server(server, hard=True)
        self.assertGPUs(server, crash_base.H100_1)
        self.check_deleted(server)

    @ddt.data('suspend after detachDeviceFlags',
              'resume after createWithFlags')
    def test_what_runs_has_its_card_again_at(self, at: str) -> None:
        """No guest runs on without its card and nobody the wiser."""
        action, _, point = at.partition(' ')
        server = self.create_gpu_server()
        if action == 'resume':
            self._suspend_server(server)
        self.kill_in(point, lambda: self.act(server, {action: None}))
        self.assertEqual(1, self.domain_of(server).isActive())
        self.assertGPUs(server, crash_base.H100_1)


@ddt.ddt
class StartUpTest(crash_base.CrashTestCase):

    ON_START = False

    @ddt.data('before detachFlags', 'after detachFlags',
              'after detachFlags 3')
    def test_at(self, point: str) -> None:
        self.flags(detach_timeout=1, group='gpu_passthru')
        self.connection = self.prepare_host('host1', self.HOST)
        self.crash.arm(point)
        self.crash.run(lambda: self.start_compute('host1'))
        self.start_compute('host1')
        self.assertFree(2, 'host1')
        self.check_all_free()
