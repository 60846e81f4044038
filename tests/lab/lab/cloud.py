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

"""What the tests do as a user and as an operator of the cloud."""

import json
import pathlib
import typing
import uuid

import openstack
from openstack import exceptions
import pymysql

from lab import control_plane
from lab import pci
from lab import steps

BOOT_LIMIT = 400
"""From "the guest runs" to its report; it took 10 s, with q35 30 s."""

_STATUS_LIMIT = 400
_DELETE_LIMIT = 240

# They make the guest's kernel trust the clocks that it is given: measuring
# them under emulation takes several seconds. It would also look twice through
# all possible PCI buses for an AGP bridge (search_agp_bridge() in the kernel's
# aperture_64.c), which took more than half of its boot.
_GUEST_KERNEL = ('console=ttyS0 quiet tsc=reliable no_timer_check nokaslr '
                 'mitigations=off pci=noearly')


class Cloud:
    """A session with the APIs, as admin."""

    def __init__(self, logs: pathlib.Path) -> None:
        self._logs = logs
        self.connection = openstack.connect(
            compute_default_microversion=control_plane.MICROVERSION,
            **{name.removeprefix('OS_').lower(): value
               for name, value in control_plane.CREDENTIALS.items()})
        self.images: dict[str, str] = {}

    def upload_images(self, kernel: pathlib.Path,
                      initramfs: pathlib.Path) -> None:
        """Upload the guest, once for each machine type that is tested."""
        kernel_id = self._upload('kernel', kernel.read_bytes(), 'aki')
        ramdisk_id = self._upload('ramdisk', initramfs.read_bytes(), 'ari')
        for machine in ('pc', 'q35'):
            self.images[machine] = self._upload(
                machine, b'\0' * (1 << 20), 'raw', kernel_id=kernel_id,
                ramdisk_id=ramdisk_id, hw_machine_type=machine,
                hw_video_model='none', os_command_line=_GUEST_KERNEL,
                # It hears of no power button.
                os_shutdown_timeout='0')

    def _upload(self, name: str, data: bytes, disk_format: str,
                **properties: str) -> str:
        return self.connection.image.create_image(
            name=name, data=data, disk_format=disk_format,
            container_format='bare' if disk_format == 'raw' else disk_format,
            visibility='public', allow_duplicates=True, **properties).id

    def wait_image(self, image: str) -> str:
        """Wait for what becomes of a snapshot's image: its status, or ''."""
        def status() -> str:
            found = self.connection.image.find_image(image)
            return found.status if found else ''

        steps.wait_for(lambda: status() not in ('queued', 'saving'),
                       f'Image {image} is not done', _STATUS_LIMIT,
                       interval=0.5)
        return status()

    def delete_image(self, image: str) -> None:
        """Delete an image, if it is still there."""
        self.connection.image.delete_image(image)

    def create_flavor(self, extra_specs: dict[str, str]) -> str:
        """Create a small flavor; return its id."""
        compute = self.connection.compute
        flavor = compute.create_flavor(
            name=f'lab-{uuid.uuid4()}', ram=256, vcpus=1, disk=0)
        compute.create_flavor_extra_specs(flavor, extra_specs)
        return flavor.id

    def delete_flavor(self, flavor: str) -> None:
        """Delete a flavor."""
        self.connection.compute.delete_flavor(flavor)

    def create_server(self, flavor: str, machine: str = 'pc') -> str:
        """Ask for a server without ports; return its id."""
        return self.connection.compute.create_server(
            name=f'lab-{machine}', flavor_id=flavor, networks='none',
            image_id=self.images[machine]).id

    def server(self, server: str) -> typing.Any:
        """The server as the API shows it."""
        return self.connection.compute.get_server(server)

    def wait_status(self, server: str, *wanted: str) -> str:
        """Wait until a server has one of these states; return it."""
        def check() -> str:
            shown = self.server(server)
            if shown.status in wanted:
                return shown.status
            if shown.status == 'ERROR':
                raise steps.LabError(f'Server {server} has the status ERROR: '
                                     f'{shown.fault}')
            return ''

        return steps.wait_for(
            check, f'Server {server} is not {" or ".join(wanted)}',
            _STATUS_LIMIT, interval=0.5)

    def wait_built(self, server: str) -> str:
        """Wait until a new server is ACTIVE or ERROR; return that."""
        return self.wait_status(server, 'ACTIVE', 'ERROR')

    def act(self, server: str, action: str, wanted: str = 'ACTIVE',
            **arguments: typing.Any) -> None:
        """Do what a user can do with a server, and wait until it is done.

        :param action: a method of openstacksdk's compute proxy
        :param wanted: the status of the server after it
        """
        getattr(self.connection.compute, action)(server, **arguments)
        self.wait_status(server, wanted)
        self.wait_idle(server)

    def wait_idle(self, server: str) -> typing.Any:
        """Wait until Nova does nothing with a server; return the server."""
        def check() -> typing.Any:
            shown = self.server(server)
            return shown if shown.task_state is None else None

        return steps.wait_for(check, f'Nova is not done with {server}',
                              _STATUS_LIMIT, interval=0.5)

    def wait_error(self, server: str) -> str:
        """What the last action with a server says that went wrong.

        Nova writes it down after it has given the server its state back.
        """
        compute = self.connection.compute

        def check() -> str:
            last = max(compute.server_actions(server),
                       key=lambda action: action.start_time)
            shown = compute.get_server_action(last.request_id, server)
            return '\n'.join(event['details'] or '' for event in shown.events)

        return steps.wait_for(check, f'No error of {server}', 60)

    def console(self, server: str) -> str:
        """What the guest has written to its serial console."""
        answer = self.connection.compute.get_server_console_output(server)
        # Nova deletes its own copy with the server.
        self._console_log(server).write_text(answer['output'])
        return answer['output']

    def wait_report(self, server: str) -> pci.Report:
        """Wait until the guest reports anew; return that."""
        before = self.console(server)

        def check() -> pci.Report | None:
            console = self.console(server)
            # It begins anew with each start of the guest's QEMU.
            return pci.parse_guest(console.removeprefix(before))

        return steps.wait_for(
            check, f'Guest {server} has not reported', BOOT_LIMIT,
            self._console_log(server), interval=1)

    def _console_log(self, server: str) -> pathlib.Path:
        return self._logs / f'guest-{server}.log'

    def delete_server(self, server: str) -> None:
        """Delete a server and wait until it is gone."""
        compute = self.connection.compute
        compute.delete_server(server, ignore_missing=True)

        def check() -> bool:
            try:
                shown = compute.get_server(server)
            except exceptions.NotFoundException:
                return True
            # It may have had that status before.
            if shown.status == 'ERROR' and shown.task_state is None:
                raise steps.LabError(f'Deleting {server} ended with ERROR')
            return False

        steps.wait_for(check, f'Server {server} is still there',
                       _DELETE_LIMIT, interval=0.3)

    def delete_all_servers(self) -> None:
        """Delete what tests that were cut short have left."""
        for server in list(self.connection.compute.servers(details=False)):
            self.delete_server(server.id)

    def wait_host(self) -> None:
        """Wait until the scheduler may use nova-compute."""
        def check() -> bool:
            return any(service.state == 'up' for service
                       in self.connection.compute.services(
                           binary='nova-compute'))

        steps.wait_for(check, 'nova-compute is not up', 120)

    def allocated(self, server: str, resource: str) -> int:
        """How much of a resource Placement has allocated to a server."""
        answer = self.connection.placement.get(f'/allocations/{server}')
        return sum(provider['resources'].get(resource, 0)
                   for provider in answer.json()['allocations'].values())

    def placement_free(self) -> int:
        """How many cards Placement would still give: the sum of all pools."""
        placement = self.connection.placement
        free = 0
        for provider in placement.get(
                '/resource_providers').json()['resource_providers']:
            path = f'/resource_providers/{provider["uuid"]}'
            inventory = placement.get(
                f'{path}/inventories').json()['inventories'].get('PGPU')
            if inventory:
                used = placement.get(f'{path}/usages').json()['usages']
                free += (inventory['total'] - inventory['reserved'] -
                         used['PGPU'])
        return free

    def gpu_stats(self) -> dict[str, typing.Any]:
        """What the driver last told the scheduler.

        Read from the cell's database: no API shows a compute node's stats
        since microversion 2.88.
        """
        (stats,), = _query(
            'SELECT stats FROM compute_nodes WHERE deleted = 0')
        return json.loads(json.loads(stats).get('gpu_passthru', '{}'))

    def forget_gpu_stats(self) -> None:
        """Remove what the driver last told the scheduler.

        So that a test can tell a new report from an old one that says the
        same.
        """
        _query("UPDATE compute_nodes SET stats = '{}'")


def _query(statement: str) -> typing.Any:
    database = pymysql.connect(
        host='127.0.0.1', port=13306, user='nova', password='lab',
        database='nova_cell1', autocommit=True)
    with database, database.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()
