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

"""The virtual GPU host: a QEMU machine with an IOMMU and no hardware."""

from collections.abc import Callable
import pathlib
import subprocess
import sys
import threading
import typing

from lab import initramfs
from lab import panic
from lab import paths
from lab import processes
from lab import qmp
from lab import steps
from lab import topology

NAME = 'gpu-host'

ADDRESS = '10.0.2.15'

OUTSIDE = '10.0.2.2'
"""Where the virtual host sees this machine's loopback interface."""

_BOOT_LIMIT = 400

# From the kernel's last word to the end of QEMU's process.
_END_LIMIT = 10

T = typing.TypeVar('T')

# All of the memory lies below 4 GiB, as q35 has it up to 2816 MiB: QEMU 7.2
# before 7.2.10 cuts the physical addresses of a guest's guest to 32 bits
# (QEMU's commit b1661801c184). A socket per NUMA node, or the kernel warns of
# a cache that two nodes share.
# "max" emulates AMD's SVM, so that the guests' KVM works in there. QEMU is
# given no KVM of its own even where there is one: the same run everywhere.
_MACHINE = """
-name gpu-host -machine q35 -accel tcg,thread=multi,tb-size=512 -cpu max
-smp 2,sockets=2 -m 2800
-object memory-backend-ram,id=memory0,size=1400M
-object memory-backend-ram,id=memory1,size=1400M
-numa node,nodeid=0,memdev=memory0,cpus=0
-numa node,nodeid=1,memdev=memory1,cpus=1
-nodefaults -display none -vga none -no-reboot
-device intel-iommu,intremap=on,caching-mode=on
-device virtio-blk-pci,drive=disk,serial=disk,bus=pcie.0,addr=0x2
-device virtio-blk-pci,drive=venv,serial=venv,bus=pcie.0,addr=0x7
-device virtio-serial-pci,bus=pcie.0,addr=0x3
-device virtserialport,chardev=agent,name=agent
-device virtserialport,chardev=second-agent,name=second-agent
-netdev user,id=outside
-device virtio-net-pci,netdev=outside,mac=52:54:00:00:00:01,bus=pcie.0,\
addr=0x4,romfile=
-device virtio-9p-pci,fsdev=work,mount_tag=work,bus=pcie.0,addr=0x5
-device virtio-9p-pci,fsdev=logs,mount_tag=logs,bus=pcie.0,addr=0x6
"""

# With a framebuffer console on it, the driver radeon divides by zero on
# QEMU's card. amdgpu takes 4 s to find that no card is for it. On a busy
# machine the kernel's check of its timer fails, which is a panic.
# Warnings are shown: they may tell what led to a panic.
_KERNEL = ('console=ttyS0 loglevel=5 panic=-1 no_timer_check intel_iommu=on '
           'drm_kms_helper.fbdev_emulation=0 modprobe.blacklist=amdgpu')


class HostEnded(steps.LabError):
    """The virtual host has ended, and nobody had asked it to."""


class VirtualHost:
    """One virtual host: its disk outlives its power cycles."""

    def __init__(self, image: pathlib.Path, venv: pathlib.Path,
                 logs: pathlib.Path) -> None:
        self._image = image
        self._venv = venv
        self._logs = logs
        self._folder = paths.RUN / 'host'
        self._folder.mkdir()
        self._initramfs = initramfs.for_host(image, self._folder)
        self._console = logs / 'host-console.log'
        self._agent = qmp.Agent(self._folder / 'agent')
        self._process: processes.Service
        self._disk = self._folder / 'disk.qcow2'
        self._is_on = False
        self.renew_disk()

    def renew_disk(self) -> None:
        """Begin with the disk of the image again, while it is off."""
        subprocess.run(
            ['qemu-img', 'create', '-q', '-f', 'qcow2', '-F', 'raw', '-b',
             self._image / 'disk.raw', self._disk], check=True)

    def power_on(self) -> None:
        """Start to boot; wait_ready waits for the end of that."""
        self._booted_at = (self._console.stat().st_size
                           if self._console.exists() else 0)
        self._process = processes.Service(
            'The virtual host', self._command(), self._logs / 'host-qemu.log')
        self._is_on = True
        threading.Thread(target=self._tell_of_end, args=(self._process,),
                         daemon=True).start()

    def _tell_of_end(self, process: processes.Service) -> None:
        # At once, whatever the test waits for meanwhile.
        process.wait()
        if (self._is_on and self._process is process and
                not processes.is_stopping()):
            steps.say(f'THE VIRTUAL HOST HAS ENDED BY ITSELF.\n'
                      f'{steps.tail(self._console, 60)}\n'
                      f'{steps.tail(process.log, 5)}')

    def has_ended(self, limit: float = 0) -> bool:
        """Whether it ended without power_off, or does within limit seconds."""
        return self._is_on and self._process.has_ended(limit)

    def check_alive(self) -> None:
        """Raise HostEnded if it has ended without power_off."""
        if self.has_ended():
            raise HostEnded('The virtual host has ended by itself; its last '
                            'words are above')

    def has_panicked_in_kvm(self) -> bool:
        """Whether an error of the emulation has ended it; see panic.py."""
        with self._console.open('rb') as text:
            text.seek(self._booted_at)
            return panic.is_in_kvm(text.read().decode(errors='replace'))

    def _command(self) -> list[str]:
        unmapped = 'security_model=none'
        kernel = (f'{_KERNEL} lab.work={paths.WORK} lab.logs={self._logs} '
                  f'lab.venv={paths.VENV} lab.package={paths.PACKAGE}')
        return [
            'qemu-system-x86_64', *_MACHINE.split(),
            '-kernel', str(self._image / 'vmlinuz'),
            '-initrd', str(self._initramfs), '-append', kernel,
            '-drive', f'if=none,id=disk,format=qcow2,file={self._disk},'
            'cache=unsafe,discard=unmap',
            '-drive', f'if=none,id=venv,format=raw,file={self._venv},'
            'read-only=on',
            # An agent has one client at a time: the second one is for people.
            *self._socket('agent'), *self._socket('second-agent'),
            '-qmp', f'unix:{self._folder}/qmp,server=on,wait=off',
            # Without remap, inodes of different file systems coincide.
            '-fsdev', f'local,id=work,path={paths.WORK},{unmapped},'
            'readonly=on,multidevs=remap',
            '-fsdev', f'local,id=logs,path={self._logs},{unmapped}',
            # Appended to, so that it also shows the boots before.
            '-chardev', f'file,id=console,path={self._console},append=on',
            '-serial', 'chardev:console',
            *topology.arguments()]

    def _socket(self, name: str) -> tuple[str, str]:
        return ('-chardev', f'socket,id={name},path={self._folder}/{name},'
                'server=on,wait=off')

    def wait_ready(self) -> None:
        """Wait until libvirt answers and commands can be run."""
        def ready() -> bool:
            self.check_alive()
            return self._agent.answers()

        steps.wait_for(ready, 'The virtual host is not ready', _BOOT_LIMIT,
                       self._console)

    def run(self, script: str, limit: float = 120) -> str:
        """Run a shell script in the virtual host; return what it printed.

        :raises LabError: when it fails.
        """
        result = self.try_run(script, limit)
        if result.status:
            raise steps.LabError(
                f'In the virtual host, exit status {result.status}: {script}'
                f'\n{result.stdout}{result.stderr}')
        return result.stdout

    def try_run(self, script: str, limit: float = 120) -> qmp.Result:
        """Run a shell script that may fail."""
        return self._call(lambda: self._agent.run(
            f'. /run/lab-environment; {script}', limit))

    def _call(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except qmp.CommandError:
            raise
        except (OSError, steps.LabError):
            if self.has_ended(_END_LIMIT):
                self.check_alive()
            raise

    def spawn(self, script: str) -> int:
        """Start a shell script that goes on; return its process id there."""
        return self._call(lambda: self._agent.spawn(
            f'. /run/lab-environment; {script}'))

    def is_running(self, pid: int) -> bool:
        """Whether what spawn has started still runs."""
        return self._call(lambda: self._agent.is_running(pid))

    def qmp(self, command: str, **arguments: typing.Any) -> typing.Any:
        """Call QEMU: device_del and device_add change the hardware."""
        return self._call(lambda: qmp.qmp(self._folder / 'qmp', command,
                                          **arguments))

    def power_off(self) -> None:
        """End the virtual host, guests and all; its disk is written.

        power_on and wait_ready bring it back with that disk.
        """
        self._is_on = False
        self._agent.spawn('sync; busybox poweroff -f')
        self._process.wait(120)


def execute(script: str) -> int:
    """Run a command in the virtual host that another process has started."""
    agent = qmp.Agent(paths.RUN / 'host/second-agent')
    if not agent.answers():
        raise SystemExit('There is no virtual host that answers')
    result = agent.run(f'. /run/lab-environment; {script}', 600)
    print(result.stdout, end='')
    print(result.stderr, end='', file=sys.stderr)
    return result.status
