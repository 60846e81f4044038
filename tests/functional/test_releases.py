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


"""What happens to a card between two guests, with Nova's services."""

import pathlib
import time
from typing import Any

import ddt
import fixtures

from tests.functional import base
from tests.functional import crash_base
from tests.functional import operator_command
from tests.functional import placement


class Hook(fixtures.Fixture):
    """An executable that notes its runs and waits until it may end.

    :param ending: what it does then
    """

    def __init__(self, ending: str = 'exit 0') -> None:
        super().__init__()
        self._ending = ending

    def _setUp(self) -> None:
        self._folder = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.path = self._folder / 'hook'
        self.path.write_text(
            f'#!/bin/sh\ncd {self._folder}\n'
            f'echo "$GPU_PASSTHRU_INSTANCE $@" >>runs\n'
            f'while [ ! -e go -a -e "$0" ]; do sleep .05; done\n'
            f'{self._ending}\n')
        self.path.chmod(0o755)
        # None waits when its nova-compute is gone.
        self.addCleanup(self.go)

    def go(self) -> None:
        """Lets this run and all later ones end."""
        if self._folder.exists():
            (self._folder / 'go').touch()

    @property
    def runs(self) -> list[list[str]]:
        """The instance and the addresses of each run."""
        file = self._folder / 'runs'
        return [line.split() for line in
                file.read_text().splitlines()] if file.exists() else []

    def wait(self, number: int = 1) -> None:
        """Waits until it has run so often."""
        deadline = time.monotonic() + 60
        while len(self.runs) < number:
            if time.monotonic() > deadline:
                raise AssertionError(f'the hook ran {len(self.runs)} times')
            time.sleep(.05)


class TestCase(placement.PlacementTestCase):
    """A host with two equal cards, and a hook."""

    ENDING = 'exit 0'
    OPTIONS: dict[str, Any] = {}

    def setUp(self) -> None:
        super().setUp()
        self.hook = self.useFixture(Hook(self.ENDING))
        self.flags(release_hook=str(self.hook.path), **self.OPTIONS,
                   group='gpu_passthru')
        self.connection = self.add_host('host1', base.TWO_CARDS)
        self.operator = self.useFixture(
            operator_command.OperatorCommand(self.connection))

    def assertPeriod(self, free: int, total: int, reserved: int = 0,
                     used: int = 0) -> None:
        """Checks what the host reports next."""
        self.run_periodic()
        self.assertFree(free, 'host1')
        self.assertPool('host1', total, reserved, used)

    def give_and_take(self) -> dict[str, Any]:
        """A server has the first card and is deleted; its hook waits."""
        server = self.create_pgpu_server()
        self.assertGPUs(server, base.CARD_1)
        self._delete_server(server)
        self.hook.wait()
        self.withheld['host1'] = 1
        return server

    def wait_until_free(self, total: int = 2) -> None:
        """Waits until no card is being released any more."""
        def is_free() -> None:
            self.run_periodic()
            self.assertFree(total, 'host1')

        self.withheld['host1'] = 2 - total
        self._wait_for_assert(is_free)


class HookTest(TestCase):

    def test_a_card_is_free_once_its_hook_is_done(self) -> None:
        server = self.give_and_take()
        # It stays in its pool: the inventory does not come and go.
        self.assertPeriod(free=1, total=2, reserved=1)
        other = self.create_pgpu_server()
        self.assertGPUs(other, base.CARD_2)
        self.create_pgpu_server(state='ERROR')
        self.hook.go()
        self._wait_for_assert(lambda: self.assertPeriod(
            free=1, total=2, used=1))
        self.withheld['host1'] = 0
        self.assertEqual([[server['id'], *base.CARD_1]], self.hook.runs)
        self.assertGPUs(self.create_pgpu_server(), base.CARD_1)

    def test_a_card_is_not_given_before_the_next_report(self) -> None:
        self.give_and_take()
        # Nova updates the pools when an instance goes.
        self.assertPool('host1', 2, reserved=1)
        self.assertNoHost(self.create_pgpu_server(2, state='ERROR'))
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)

    def test_both_cards_of_a_server_are_released_side_by_side(self) -> None:
        server = self.create_pgpu_server(2)
        self._delete_server(server)
        self.hook.wait(2)
        self.withheld['host1'] = 2
        self.assertPeriod(free=0, total=2, reserved=2)
        self.hook.go()
        self.wait_until_free()
        self.assertEqual(
            [[server['id'], *base.CARD_1], [server['id'], *base.CARD_2]],
            sorted(self.hook.runs))

    def test_what_does_not_end_an_instance_needs_no_release(self) -> None:
        server = self.create_pgpu_server()
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self._rebuild_server(
            server, '155d900f-4e14-4e4c-a73d-069cbf4541e6')
        self.run_periodic()
        self.assertGPUs(server, base.CARD_1)
        self.assertEqual([], self.hook.runs)

    def test_an_interrupted_release_starts_again(self) -> None:
        self.give_and_take()
        self.restart_compute_service('host1')
        self.assertPeriod(free=1, total=2, reserved=1)
        self.hook.go()
        self.wait_until_free()
        self.assertGPUs(self.create_pgpu_server(), base.CARD_1)

    def test_a_card_is_given_back_when_its_guest_went_without_us(
            self) -> None:
        server = self.create_pgpu_server()
        domain = self.domain_of(server)
        domain.destroy()
        domain.undefine()
        self._delete_server(server)
        self.hook.go()
        self.wait_until_free()
        self.assertEqual([[server['id'], *base.CARD_1]], self.hook.runs)


class FailureTest(TestCase):

    ENDING = 'echo uncorrectable ECC errors: 4; exit 7'

    def test_the_card_is_withheld_until_it_is_offered(self) -> None:
        self.give_and_take()
        self.hook.go()
        self._wait_for_assert(lambda: self.assertPeriod(free=1, total=1))
        self.restart_compute_service('host1')
        self.assertPeriod(free=1, total=1)
        text = self.operator('list', '--format', 'value')
        self.assertIn('ended with status 7 and printed: uncorrectable ECC '
                      'errors: 4', text)
        self.operator('offer', base.CARD_1[0])
        self.withheld['host1'] = 0
        self.assertPeriod(free=2, total=2)
        self.assertEqual(1, len(self.hook.runs))


class TimeOutTest(TestCase):

    OPTIONS = {'release_hook_timeout': 1}

    def test_the_card_is_withheld(self) -> None:
        self.give_and_take()
        self._wait_for_assert(lambda: self.assertPeriod(free=1, total=1))
        self.assertIn('did not end within 1 s',
                      self.operator('list', '--format', 'value'))


class HoldTest(TestCase):

    OPTIONS = {'hold_after_release': True}

    def test_the_card_is_kept_back_after_its_hook(self) -> None:
        self.give_and_take()
        self.hook.go()
        self._wait_for_assert(lambda: self.assertPeriod(free=1, total=1))
        self.assertGPUs(self.create_pgpu_server(), base.CARD_2)
        self.create_pgpu_server(state='ERROR')
        self.assertIn('hold_after_release',
                      self.operator('list', '--format', 'value'))
        self.operator('offer', base.CARD_1[0])
        self.withheld['host1'] = 0
        self.assertPeriod(free=1, total=2, used=1)
        self.assertGPUs(self.create_pgpu_server(), base.CARD_1)


@ddt.ddt
class CrashTest(crash_base.CrashTestCase):
    """nova-compute is killed while cards come and go."""

    ON_START = False

    def setUp(self) -> None:
        super().setUp()
        self.hook = self.useFixture(Hook())
        self.flags(release_hook=str(self.hook.path), group='gpu_passthru')
        self.connection = self.add_host('host1', self.HOST)

    def restart_killed(self, name: str = 'host1') -> None:
        """As it is, but cards that are being released come back later."""
        with fixtures.MonkeyPatch(
                'tests.functional.base.GPUTestCase._check_count',
                lambda *args: None):
            super().restart_killed(name)

    @ddt.data('before destroy', 'after destroy', 'after undefineFlags',
              'before release', 'after release')
    def test_delete_at(self, point: str) -> None:
        self.hook.go()
        server = self.create_gpu_server()
        self.kill_in(point, lambda: self.api.delete_server(server['id']))
        self._wait_until_deleted(server)
        self._wait_for_assert(self.assert_all_free)
        self.assertIn([server['id'], *base.CARD_1], self.hook.runs)

    def test_after_the_hook_is_done(self) -> None:
        server = self.create_gpu_server()
        self.api.delete_server(server['id'])
        self._wait_until_deleted(server)
        self.hook.wait()
        # Only now, for the thread of the deletion is none of those that the
        # point stops.
        self.kill_in('after run', self.hook.go)
        self._wait_for_assert(self.assert_all_free)
        self.assertEqual([[server['id'], *base.CARD_1]] * 2, self.hook.runs)

    @ddt.data('after claim', 'after change', 'after defineXML')
    def test_create_at(self, point: str) -> None:
        self.hook.go()
        self.crash.arm(point)
        server = self.post_gpu_server()
        self.restart_killed()
        self.wait_for_error(server)
        self.api.delete_server(server['id'])
        self._wait_until_deleted({**server, 'status': 'ERROR'})
        self._wait_for_assert(self.assert_all_free)

    def assert_all_free(self) -> None:
        self.held_without_domain['host1'] = self.without_domain('host1')
        self.run_periodic()
        self.assertFree(2, 'host1')
