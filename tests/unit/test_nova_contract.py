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

"""What the driver takes for granted about Nova's code.

A release of Nova that moves a hook must fail here, not in a cloud. What is
expected is the same in Nova 31.3.1, 32.2.1, 33.0.2 and 34.0.0. When a newer
one differs, read what moved, adapt the driver, and only then change this.
"""

import ast
from collections.abc import Callable
import functools
import inspect
import textwrap
from typing import Any

import ddt
from nova.compute import manager
from nova.virt.libvirt import driver as libvirt_driver

from nova_gpu_passthru import driver
from tests.unit import base

# Of LibvirtDriver: which of its methods call self.METHOD.
CALLERS_IN_DRIVER = {
    # All descriptions of guests: the cards are added in this one place.
    '_get_guest_config': {'_get_guest_xml'},
    '_get_guest_xml': {
        '_get_existing_domain_xml', '_hard_reboot', 'finish_migration',
        'finish_revert_migration', 'rescue', 'spawn'},
    # All domains that are defined or started.
    '_create_guest': {'_create_guest_with_network', 'rescue', 'unrescue'},
    '_create_guest_with_network': {
        '_hard_reboot', 'finish_migration', 'finish_revert_migration',
        'resume', 'spawn'},
    # It destroys and undefines the domain: every way to it keeps the claim.
    '_hard_reboot': {'power_on', 'reboot', 'resume_state_on_host_boot'},
    'destroy': {'_hard_reboot', 'rollback_live_migration_at_destination'},
    # It ends the claim.
    'cleanup': {'destroy'},
    '_undefine_domain': {'_cleanup', '_cleanup_resize'},
    # A cold snapshot suspends the guest, but does not call resume().
    'suspend': {'_suspend_guest_for_snapshot'},
    '_suspend_guest_for_snapshot': {'snapshot'},
    '_resume_guest_after_snapshot': {'snapshot'},
}

# Of ComputeManager: which of its methods call self.driver.METHOD.
CALLERS_IN_MANAGER = {
    'prepare_for_spawn': {'_build_resources'},
    'failed_spawn_cleanup': {'_build_resources_cleanup'},
    # The last three without prepare_for_spawn().
    'spawn': {
        '_build_and_run_instance', '_rebuild_default_impl',
        '_unshelve_instance', '_finish_snapshot_based_resize_at_dest_spawn'},
    'reboot': {'_reboot_instance'},
    'power_on': {'_power_on'},
    'resume_state_on_host_boot': {'_resume_guests_state'},
    'suspend': {'suspend_instance'},
    'resume': {'resume_instance'},
    'unrescue': {'unrescue_instance'},
    'finish_migration': {'_finish_resize'},
    'finish_revert_migration': {
        '_finish_revert_resize',
        '_finish_revert_snapshot_based_resize_at_source', '_init_instance'},
    'confirm_migration': {'_confirm_resize'},
    'check_can_live_migrate_destination': {
        'check_can_live_migrate_destination'},
    'check_can_live_migrate_source': {'check_can_live_migrate_source'},
    'destroy': {
        '_destroy_evacuated_instances',
        '_prep_snapshot_based_resize_at_source', '_rebuild_default_impl',
        '_revert_snapshot_based_resize_at_dest', '_shelve_offload_instance',
        '_shutdown_instance', 'revert_resize'},
    'cleanup': {
        '_confirm_snapshot_based_resize_at_source', '_post_live_migration'},
}


def _methods(cls: type) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(cls).items()
            if inspect.isfunction(value)}


def _overrides() -> dict[str, Callable[..., Any]]:
    """Our methods that Nova's class has as well."""
    return {name: method
            for name, method in _methods(driver.GPUPassthruDriver).items()
            if hasattr(libvirt_driver.LibvirtDriver, name) and
            name != '__init__'}


def _written_parameters(method: Callable[..., Any]) -> list[str]:
    """Names a method's parameters as its source has them.

    inspect.signature() tells Nova's instead.
    """
    code = method.__code__
    return list(code.co_varnames[:code.co_argcount])


@functools.lru_cache
def _callers(cls: type, receiver: str) -> dict[str, set[str]]:
    """Tells for each method of receiver which methods of a class call it.

    Handing it to something that calls it is as good as a call.
    """
    found: dict[str, set[str]] = {}
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    for method in tree.body[0].body:  # type: ignore[attr-defined]
        if not isinstance(method, ast.FunctionDef):
            continue
        for node in ast.walk(method):
            if (isinstance(node, ast.Attribute) and
                    ast.unparse(node.value) == receiver):
                found.setdefault(node.attr, set()).add(method.name)
    return found


@ddt.ddt
class NovaContractTest(base.TestCase):

    @ddt.data(*sorted(_overrides()))
    def test_override_takes_what_nova_hands_over(self, name: str) -> None:
        ours = _overrides()[name]
        novas = getattr(libvirt_driver.LibvirtDriver, name)
        written = _written_parameters(ours)
        parameters = list(inspect.signature(novas).parameters)
        self.assertEqual(parameters[:len(written)], written)
        if len(written) < len(parameters):
            self.assertTrue(ours.__code__.co_flags & inspect.CO_VARARGS)
            self.assertTrue(ours.__code__.co_flags & inspect.CO_VARKEYWORDS)

    @ddt.data(*sorted(_overrides()))
    def test_override_tells_the_signature_of_novas(self, name: str) -> None:
        """Nova's own tests ask for it, and so do mocks with autospec."""
        self.assertEqual(
            inspect.signature(getattr(libvirt_driver.LibvirtDriver, name)),
            inspect.signature(_overrides()[name]))

    def test_our_own_methods_are_private(self) -> None:
        """Nova takes a public one for a part of its driver interface."""
        own = _methods(driver.GPUPassthruDriver).keys() - _overrides().keys()
        self.assertEqual([], [name for name in own
                              if not name.startswith('_')])

    @ddt.data(*sorted(CALLERS_IN_DRIVER))
    def test_callers_in_libvirt_driver(self, name: str) -> None:
        self.assertEqual(
            CALLERS_IN_DRIVER[name],
            _callers(libvirt_driver.LibvirtDriver, 'self').get(name))

    @ddt.data(*sorted(CALLERS_IN_MANAGER))
    def test_callers_in_compute_manager(self, name: str) -> None:
        self.assertEqual(
            CALLERS_IN_MANAGER[name],
            _callers(manager.ComputeManager, 'self.driver').get(name))

    def test_every_override_has_a_known_caller(self) -> None:
        known = (CALLERS_IN_DRIVER.keys() | CALLERS_IN_MANAGER.keys() |
                 # Called by the service and by the resource tracker.
                 {'init_host', 'get_available_resource',
                  'update_provider_tree'})
        self.assertEqual([], sorted(_overrides().keys() - known))
