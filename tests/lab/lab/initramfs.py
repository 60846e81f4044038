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

"""Makes the initramfs of the virtual host and that of the guests."""

import pathlib
import shutil
import subprocess

from lab import paths
from lab import processes


def for_host(image: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Make the initramfs of the virtual host, whose /init finds its disk."""
    tree = folder / 'initramfs'
    shutil.copytree(image / 'modules', tree / 'modules')
    shutil.copy(paths.LAB / 'host/initramfs-init', tree / 'init')
    shutil.copy(paths.LAB / 'host/init', tree / 'host-init')
    return _pack(tree, folder / 'initramfs.gz')


def for_guest(folder: pathlib.Path) -> pathlib.Path:
    """Make the initramfs of the guests, whose /init is all that they run."""
    tree = folder / 'guest-initramfs'
    tree.mkdir()
    shutil.copy(paths.LAB / 'guest/init', tree / 'init')
    return _pack(tree, folder / 'guest-initramfs.gz')


def _pack(tree: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Add busybox to a folder and make an initramfs of it."""
    (tree / 'bin').mkdir()
    shutil.copy('/usr/bin/busybox', tree / 'bin/busybox')
    for script in tree.glob('*init'):
        script.chmod(0o755)
    with target.open('wb') as output:
        subprocess.run('find . | cpio --quiet -o -H newc | gzip -1',
                       shell=True, cwd=tree, stdout=output, check=True,
                       env=processes.environment())
    shutil.rmtree(tree)
    return target
