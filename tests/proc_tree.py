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

"""The proc of a host, as real files and links: who has what open."""

import os
import pathlib
import shutil

from tests import sysfs_tree


class ProcTree:
    """The processes of a host and the device files that they use.

    :param root: the folder that gets proc; its dev is only named
    :param sysfs: where the kernel names the device files of a function
    """

    def __init__(self, root: pathlib.Path,
                 sysfs: sysfs_tree.SysfsTree) -> None:
        self.root = root
        self._sysfs = sysfs
        if not (root / 'proc/2').exists():
            self.run(2, 'kthreadd')

    def serve(self, address: str, folder: str, name: str) -> None:
        """Lets a driver serve a file for a function.

        :param folder: of the file's device, below the function's
        :param name: of the file, below dev
        """
        path = self._sysfs.path(address) / folder
        path.mkdir(parents=True)
        (path / 'uevent').write_text(f'MAJOR=226\nMINOR=0\nDEVNAME={name}\n')

    def serve_nvidia(self, address: str, minor: int) -> None:
        """Lets NVIDIA's driver serve a card's file."""
        path = self.root / 'proc/driver/nvidia/gpus' / address
        path.mkdir(parents=True)
        (path / 'information').write_text(
            f'Model: \t\t NVIDIA T1000\nIRQ:   \t\t 16\n'
            f'Device Minor: \t {minor}\nGPU Excluded:\t No\n')

    def run(self, pid: int, name: str, *opened: str) -> pathlib.Path:
        """Starts a process that has some files below dev open.

        :returns: its folder
        """
        folder = self.root / 'proc' / str(pid)
        (folder / 'fd').mkdir(parents=True)
        (folder / 'comm').write_text(f'{name}\n')
        for number, file in enumerate(opened):
            os.symlink(f'{self.root}/dev/{file}', folder / 'fd' / str(number))
        return folder

    def run_unseen(self, pid: int) -> None:
        """Starts a process of a user whose files we may not see."""
        folder = self.run(pid, 'secret') / 'fd'
        folder.rmdir()
        # A link to itself cannot be listed, not even by root.
        folder.symlink_to(folder)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / 'proc' / str(pid), ignore_errors=True)
