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

"""Builds the disk and the kernel of the virtual host."""

import pathlib
import shutil
import subprocess

from lab import cache
from lab import distribution
from lab import paths
from lab import processes
from lab import steps

DISK_SIZE = '8G'

_INITRAMFS_MODULES = ('virtio_pci', 'virtio_blk', 'ext4')

_UNUSED = ('/usr/share/doc/*', '/usr/share/man/*', '/usr/share/locale/*')


def build(logs: pathlib.Path) -> pathlib.Path:
    """A folder with disk.raw, vmlinuz and the folder modules.

    modules holds what the initramfs loads, in that order.
    """
    packages = distribution.current().host_packages
    kernel = distribution.kernel_packages()
    sources = distribution.package_sources()
    return cache.cached(
        'host-image',
        [*packages, *kernel, sources, pathlib.Path(__file__)],
        lambda folder: _build(folder, kernel, sources,
                              logs / 'host-image.log'))


def _build(folder: pathlib.Path, kernel: list[str], sources: str,
           log: pathlib.Path) -> None:
    root = folder / 'root'
    _make_root(root, sources, log)
    version = _add_kernel(root, folder, kernel, log)
    _copy_initramfs_modules(root, version, folder / 'modules')
    disk = folder / 'disk.raw'
    processes.run(['mke2fs', '-q', '-t', 'ext4', '-m', '0', '-d', root, disk,
                   DISK_SIZE], log)
    shutil.rmtree(root)


def _make_root(root: pathlib.Path, sources: str, log: pathlib.Path) -> None:
    here = distribution.current()
    processes.run(
        ['mmdebstrap', '--variant=minbase', '--mode=root',
         f'--include={",".join(here.host_packages)}',
         '--aptopt=APT::Install-Recommends "false"',
         '--dpkgopt=force-unsafe-io',
         *(f'--dpkgopt=path-exclude={path}' for path in _UNUSED),
         here.codename, root, '-'],
        log, stdin=sources, limit=900,
        # mmdebstrap unpacks there too, and a small tmpfs would not do.
        env={'TMPDIR': str(paths.CACHE)})


def _add_kernel(root: pathlib.Path, folder: pathlib.Path, packages: list[str],
                log: pathlib.Path) -> str:
    downloads = folder / 'kernel'
    downloads.mkdir()
    unpacked = downloads / 'unpacked'
    for package in distribution.download(packages, downloads, log):
        processes.run(['dpkg-deb', '-x', package, unpacked], log)
    vmlinuz, = (unpacked / 'boot').glob('vmlinuz-*')
    shutil.copy(vmlinuz, folder / 'vmlinuz')
    version = vmlinuz.name.removeprefix('vmlinuz-')
    modules = root / 'usr/lib/modules' / version
    found, = (path for path in (unpacked / 'lib/modules' / version,
                                unpacked / 'usr/lib/modules' / version)
              if path.exists())
    shutil.move(found, modules)
    shutil.rmtree(downloads)
    # The machine itself may have no kmod.
    processes.run(['chroot', root, 'depmod', version], log)
    return version


def _copy_initramfs_modules(root: pathlib.Path, version: str,
                            folder: pathlib.Path) -> None:
    folder.mkdir()
    seen: list[str] = []
    for module in _INITRAMFS_MODULES:
        done = subprocess.run(
            ['chroot', root, 'modprobe', '-S', version, '--show-depends',
             module], capture_output=True, text=True)
        if done.returncode:
            raise steps.LabError(f'modprobe {module}: {done.stderr}')
        # 'insmod FILE' for a module, 'builtin NAME' otherwise.
        for line in done.stdout.splitlines():
            action, path = line.split()[:2]
            if action == 'insmod' and path not in seen:
                seen.append(path)
    for number, path in enumerate(seen):
        source = root / path.lstrip('/')
        target = folder / f'{number:02}-{source.name}'
        shutil.copy(source, target)
        if target.suffix == '.zst':
            # busybox cannot decompress it.
            subprocess.run(['zstd', '-q', '-d', '--rm', target], check=True)
