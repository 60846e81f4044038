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

"""Brings up the whole lab, for the tests to use."""

import pathlib

from lab import checkout
from lab import cloud
from lab import control_plane
from lab import domains
from lab import host_image
from lab import initramfs
from lab import nova_compute
from lab import paths
from lab import pci
from lab import python_packages
from lab import steps
from lab import virtual_host


class Session:
    """A cloud with one virtual GPU host."""

    host: virtual_host.VirtualHost
    plane: control_plane.ControlPlane
    compute: nova_compute.NovaCompute
    cloud: cloud.Cloud

    functions_before: list[pci.Function]
    """The host's PCI functions before nova-compute ran for the first time."""

    first_bindings: list[tuple[str, str]]
    """What that first start changed; see nova_compute.watch_bindings."""

    def __init__(self, logs: pathlib.Path) -> None:
        self.logs = logs

    def start(self) -> None:
        """Bring everything up, up to a nova-compute that has reported."""
        checkout.install(self.logs / 'pip.log')
        image = host_image.build(self.logs)
        self.host = virtual_host.VirtualHost(
            image, python_packages.disk(self.logs / 'venv-disk.log'),
            self.logs)
        steps.watch(self.host.check_alive)
        self.plane = control_plane.ControlPlane(self.logs)
        self.plane.check_ports()
        # It boots while the services outside start.
        self.host.power_on()
        self.plane.start()
        self.cloud = cloud.Cloud(self.logs)
        with steps.step('Upload the images of the guests'):
            self.cloud.upload_images(image / 'vmlinuz',
                                     initramfs.for_guest(paths.RUN))
        with steps.step('Wait for the virtual host to have booted'):
            self.host.wait_ready()
        self.functions_before = self.functions()
        self.compute = nova_compute.NovaCompute(self.host, self.logs)
        with steps.step('Start nova-compute in it'):
            with nova_compute.watch_bindings(self.host) as bindings:
                self.compute.start()
            self.first_bindings = bindings
        with steps.step('Add the virtual host to the cell'):
            self.plane.nova_manage('cell_v2', 'discover_hosts')
            self.cloud.wait_host()

    def recover(self) -> None:
        """Begin with a new virtual host after one that ended by itself.

        It is the same host to Nova, which has meanwhile lost all guests.
        """
        with steps.step('Boot a new virtual host'):
            self.host.renew_disk()
            self.host.power_on()
            self.host.wait_ready()
        self.cloud.forget_gpu_stats()
        with steps.step('Start nova-compute in it'):
            self.compute.start()
            self.cloud.wait_host()
        with steps.step('Delete the servers that are left'):
            self.cloud.delete_all_servers()

    def functions(self) -> list[pci.Function]:
        """The virtual host's PCI functions as its kernel sees them now."""
        return pci.parse_host(self.host.run(pci.LIST_SCRIPT))

    def restart_libvirtd(self) -> None:
        """End libvirtd, start it again and wait until it answers."""
        self.host.run(
            'pid=$(cat /run/libvirtd.pid); kill $pid; '
            'while kill -0 $pid 2> /dev/null; do sleep 0.1; done; '
            'libvirtd --daemon; until virsh -q list > /dev/null 2>&1; '
            'do sleep 0.2; done')

    def running_id(self, server: str) -> str:
        """The number that libvirt gives a guest each time that it starts."""
        return self.host.run(f'virsh domid {server}').strip()

    def passed_functions(self, server: str) -> list[str]:
        """Addresses of the host's PCI functions in a domain's XML.

        Of the domain as it runs, or as it is defined if it does not run.
        """
        return domains.passed_functions(
            self.host.run(f'virsh dumpxml {server}'))
