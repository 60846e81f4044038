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

"""What differs between the distributions that the lab runs on.

The virtual host runs the distribution and release of the machine, because
both use one virtual environment, so one /usr/bin/python3. Debian 12 is what
the lab was written on; the entry for Ubuntu 24.04 comes from its package
lists and has not been tried.
"""

import dataclasses
import pathlib
import platform
import re
import subprocess

from lab import processes
from lab import steps

_MACHINE = (
    'busybox-static', 'cpio', 'e2fsprogs', 'mariadb-client-core',
    'mariadb-server-core', 'mmdebstrap', 'python3-venv', 'qemu-system-x86',
    'qemu-utils', 'rabbitmq-server', 'zstd')

_HOST = (
    'busybox-static', 'ca-certificates', 'dbus', 'iproute2', 'kmod',
    'libvirt-clients', 'libvirt-daemon', 'libvirt-daemon-driver-qemu',
    'libvirt-daemon-system', 'pciutils', 'procps', 'python3',
    'python3-libvirt', 'qemu-guest-agent', 'qemu-system-x86', 'qemu-utils',
    'udev')


@dataclasses.dataclass(frozen=True)
class Distribution:
    """A distribution's names for what the lab needs."""

    codename: str
    origin: str
    """The Origin of its own archives, to tell them from others."""
    kernel: str
    """The package that depends on the current kernel."""
    kernel_parts: str
    """A pattern for the packages below it that hold kernel and modules."""
    machine_packages: tuple[str, ...] = _MACHINE
    host_packages: tuple[str, ...] = _HOST


_KNOWN = {
    'debian': ('Debian', 'linux-image-amd64', r'linux-image-\d\S*'),
    'ubuntu': ('Ubuntu', 'linux-image-generic',
               r'linux-(image|modules|modules-extra)-\d\S*'),
}


def current() -> Distribution:
    """The distribution of this machine."""
    release = platform.freedesktop_os_release()
    if release['ID'] not in _KNOWN:
        raise steps.LabError(
            'The lab runs on Debian and Ubuntu, not on '
            f'{release["PRETTY_NAME"]}')
    origin, kernel, kernel_parts = _KNOWN[release['ID']]
    return Distribution(release['VERSION_CODENAME'], origin, kernel,
                        kernel_parts)


def _query(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise steps.LabError(f'{" ".join(command)}: {done.stderr}')
    return done.stdout


def _missing(packages: tuple[str, ...]) -> list[str]:
    done = subprocess.run(
        ['dpkg-query', '-W', '-f', '${Package} ${db:Status-Status}\n',
         *packages], capture_output=True, text=True)
    installed = {line.split()[0] for line in done.stdout.splitlines()
                 if line.endswith(' installed')}
    return sorted(set(packages) - installed)


def install_machine_packages(log: pathlib.Path) -> None:
    """Install the Debian packages that the lab uses on this machine."""
    missing = _missing(current().machine_packages)
    if not missing:
        return
    with steps.step(f'Install {len(missing)} packages with apt'):
        # Found and run by invoke-rc.d and deb-systemd-invoke: the lab starts
        # its own RabbitMQ, the machine shall not get one of its own.
        policy = pathlib.Path('/usr/sbin/policy-rc.d')
        ours = not policy.exists()
        if ours:
            policy.write_text('#!/bin/sh\nexit 101\n')
            policy.chmod(0o755)
        try:
            processes.run(['apt-get', '-q', 'update'], log)
            processes.run(
                ['apt-get', '-q', '-y', '--no-install-recommends', 'install',
                 *missing], log, limit=1200,
                env={'DEBIAN_FRONTEND': 'noninteractive'})
        finally:
            if ours:
                policy.unlink()


def package_sources() -> str:
    """The distribution's own archives, as lines of a sources.list.

    From this machine's configuration, so with its mirror, and without what
    others have added to it.
    """
    here = current()
    listed = _query(
        'apt-get', 'indextargets', '--format',
        '$(ORIGIN) $(CODENAME) deb $(REPO_URI) $(RELEASE) $(COMPONENT)',
        'Created-By: Packages')
    lines = []
    for line in listed.splitlines():
        origin, codename, entry = line.split(' ', 2)
        if origin == here.origin and re.match(
                rf'{here.codename}(-updates|-security)?$', codename):
            lines.append(entry)
    if not lines:
        raise steps.LabError(
            f'apt knows no archive of {here.origin} {here.codename}')
    return '\n'.join(sorted(set(lines))) + '\n'


def kernel_packages() -> list[str]:
    """The packages of the current kernel of the distribution."""
    here = current()
    found: list[str] = []
    pending = [here.kernel]
    while pending:
        depends = _query('apt-cache', 'depends', '--important',
                         pending.pop())
        for name in re.findall(r'Depends: (\S+)', depends):
            if re.fullmatch(here.kernel_parts, name) and name not in found:
                found.append(name)
                pending.append(name)
    if not found:
        raise steps.LabError(f'apt knows no kernel below {here.kernel}')
    return sorted(found)


def download(packages: list[str], folder: pathlib.Path,
             log: pathlib.Path) -> list[pathlib.Path]:
    """Fetch packages into a folder without installing them."""
    processes.run(
        ['apt-get', '-q', '-o', 'APT::Sandbox::User=root', 'download',
         *packages], log, cwd=folder)
    return sorted(folder.glob('*.deb'))
