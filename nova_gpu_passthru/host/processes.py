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

"""Which processes have a card's device files open.

A driver does not let go of a device while a process uses it, so they are
named to whoever has to stop them.
"""

from collections.abc import Iterable, Iterator
import dataclasses
import os
import pathlib
import re

from nova_gpu_passthru.host import pci

_DEVICE_FILE = re.compile(r'^DEVNAME=(.+)$', re.MULTILINE)
_ADDRESS = re.compile('[0-9a-f]{4,8}:[0-9a-f]{2}:')

# NVIDIA's driver makes its files without telling sysfs; proc(5) has no page
# for it, its README has one ("The /proc interface").
_NVIDIA_MINOR = re.compile(r'^Device Minor:\s*(\d+)\s*$', re.MULTILINE)

# The parent of the kernel's threads (rest_init in init/main.c): root's, and
# in no PID namespace of a container.
_KTHREADD = 2


@dataclasses.dataclass(frozen=True)
class Users:
    """Who uses a card.

    :ivar processes: name and number of each, such as "Xorg (pid 812)"
    :ivar files: the device files of the card, below /dev
    :ivar unseen: how many processes could not be looked into
    :ivar hidden: whether there are processes that are not even listed
    """

    processes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    unseen: int = 0
    hidden: bool = False

    def __str__(self) -> str:
        """Says what a person needs to know; empty if nobody uses it."""
        if self.processes:
            return f'{", ".join(self.processes)} uses it'
        what = ('processes of other users are not shown here (/proc is '
                'mounted with hidepid, or of a container)' if self.hidden else
                f'{self.unseen} processes of other users cannot be looked '
                f'into' if self.unseen else '')
        if what and self.files:
            return (f'{what}; as root of the host, '
                    f'"fuser -v {" ".join(self.files)}" names who uses it')
        return ''


class Processes:
    """The processes of this host.

    :param sysfs: where the device files of a function are named
    :param root: the folder that has proc and dev
    """

    def __init__(self, sysfs: pci.Sysfs,
                 root: str | os.PathLike[str] = '/') -> None:
        self._sysfs = sysfs
        self._root = pathlib.Path(root)

    def users(self, addresses: Iterable[pci.PCIAddress]) -> Users:
        """Finds who has device files of some functions open.

        :param addresses: the functions
        """
        files = {str(self._root / 'dev' / name) for address in addresses
                 for name in (*self._served_files(address),
                              *self._nvidia_files(address))}
        if not files:
            return Users()
        found, unseen = [], 0
        for pid in self._pids():
            opened = self._opened(pid)
            if opened is None:
                unseen += 1
            elif opened & files:
                found.append(f'{self._name(pid)} (pid {pid})')
        return Users(tuple(found), tuple(sorted(files)), unseen,
                     hidden=self._name(_KTHREADD) != 'kthreadd')

    def _served_files(self, address: pci.PCIAddress) -> Iterator[str]:
        """The files that drivers serve, such as dri/card0 and snd/controlC2.

        Each is named in the uevent of a folder below the function's
        (Documentation/ABI/testing/sysfs-uevent).
        """
        for folder, below, files in os.walk(self._sysfs.folder(address)):
            # Of a bridge, what is behind it is not its own.
            below[:] = [name for name in below if not _ADDRESS.match(name)]
            if 'uevent' in files:
                try:
                    text = (pathlib.Path(folder) / 'uevent').read_text()
                except (OSError, ValueError):
                    continue
                yield from _DEVICE_FILE.findall(text)

    def _nvidia_files(self, address: pci.PCIAddress) -> Iterator[str]:
        try:
            text = (self._root / 'proc' / 'driver' / 'nvidia' / 'gpus' /
                    str(address) / 'information').read_text()
        except (OSError, ValueError):
            return
        for minor in _NVIDIA_MINOR.findall(text):
            yield f'nvidia{minor}'

    def _pids(self) -> list[int]:
        try:
            entries = os.listdir(self._root / 'proc')
        except OSError:
            return []
        return sorted(int(entry) for entry in entries if entry.isdecimal())

    def _opened(self, pid: int) -> set[str] | None:
        """What a process has open, None if that may not be seen."""
        folder = self._root / 'proc' / str(pid) / 'fd'
        found = set()
        try:
            for entry in os.listdir(folder):
                try:
                    found.add(os.readlink(folder / entry))
                except FileNotFoundError:
                    continue
        except (FileNotFoundError, ProcessLookupError):
            return set()
        except OSError:
            return None
        return found

    def _name(self, pid: int) -> str:
        try:
            return (self._root / 'proc' / str(pid) / 'comm').read_text(
                errors='replace').strip()
        except OSError:
            return 'a process'
