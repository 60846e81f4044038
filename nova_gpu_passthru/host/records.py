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


"""What is remembered of cards, beyond the life of nova-compute.

One small file a card in a folder that nova-compute and the command share,
named by the card's address. A file is replaced as a whole and synced, so that
a crash leaves the old one or the new one.

A card has nothing better than its address and model to be known by: the PCIe
serial number stands behind the first 64 bytes of the configuration space,
which is all that a process without CAP_SYS_ADMIN may read (pci_read_config in
the kernel's drivers/pci/pci-sysfs.c). A record is therefore for the model that
it was written for, and means nothing for another device at that address.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import tempfile
import threading
from typing import Any

from oslo_concurrency import lockutils

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import cards as host_cards
from nova_gpu_passthru.host import pci

_LOCK = 'lock'
_SUFFIX = '.json'
# A change takes milliseconds; a command that was stopped never gives it back.
_LOCK_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Record:
    """What is remembered of one card; empty texts mean nothing.

    :ivar model: vendor and device id of the card that it was written for
    :ivar withheld: why an operator withholds the card
    :ivar given_to: uuid of who was given the card, which has to be released
        before another one may have it
    :ivar failed_release: why its release failed
    :ivar kept_back: whether it waits for an operator since its release
    :ivar failed_start: what libvirt said when a guest did not start because
        of it; not beyond a restart of nova-compute
    :ivar retry: whether nova-compute shall try again what it gave up, such
        as detaching the card
    :ivar fault: why the record cannot be read; not in the file
    """

    model: str
    withheld: str = ''
    given_to: str = ''
    failed_release: str = ''
    kept_back: bool = False
    failed_start: str = ''
    retry: bool = False
    fault: str = ''

    @property
    def empty(self) -> bool:
        return self == Record(self.model)

    def of(self, card: host_cards.Card) -> bool:
        """Whether it is about this card, not about one that was there.

        What cannot be read may be about any.
        """
        return bool(self.fault) or self.model == card.model

    def but(self, **changes: Any) -> 'Record':
        """The same with some values changed."""
        return dataclasses.replace(self, **changes)


class Records:
    """The records of a host's cards.

    :param folder: where they are; made when the first is written
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)

    def read(self) -> dict[pci.PCIAddress, Record]:
        """Reads all records.

        :returns: by the card's address; one that cannot be read is there
            with its fault
        :raises RecordsUnavailable: if the folder cannot be read
        """
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unavailable('read', error) from error
        found = {}
        for name in sorted(names):
            try:
                if name.endswith(_SUFFIX):
                    address = pci.PCIAddress.parse(name.removesuffix(_SUFFIX))
                    found[address] = self._read_one(address)
            except (exceptions.InvalidPCIAddress, FileNotFoundError):
                continue
        return found

    def change(self, card: host_cards.Card,
               change: Callable[[Record], Record],
               also_unreadable: bool = False) -> Record:
        """Changes the record of a card, durably.

        A record of another model at the card's address is overwritten.

        :param change: takes what is recorded, or an empty record
        :param also_unreadable: whether to overwrite a record that cannot be
            read too, which may have withheld the card
        :returns: what is recorded now
        :raises RecordsUnavailable: if that fails
        """
        with self._locked():
            old = self._of(card)
            new = change(old)
            if old.fault and not also_unreadable:
                return old
            if new != old:
                new = new.but(model=card.model, fault='')
                self._write(card.address, new)
            return new

    def forget(self, address: pci.PCIAddress) -> bool:
        """Deletes what is recorded for an address.

        :returns: whether there was anything
        :raises RecordsUnavailable: if that fails
        """
        if not self._file(address).exists():
            return False
        with self._locked():
            self._write(address, Record(''))
            return True

    def end_of_service(self) -> None:
        """Drops what does not outlive nova-compute.

        :raises RecordsUnavailable: if that fails
        """
        for address, record in self.read().items():
            if record.failed_start or record.retry:
                with self._locked(), contextlib.suppress(FileNotFoundError):
                    now = self._read_one(address)
                    if not now.fault:
                        self._write(address, now.but(failed_start='',
                                                     retry=False))

    def _of(self, card: host_cards.Card) -> Record:
        try:
            record = self._read_one(card.address)
        except FileNotFoundError:
            return Record(card.model)
        return record if record.of(card) else Record(card.model)

    def _file(self, address: pci.PCIAddress) -> pathlib.Path:
        return self.folder / f'{address}{_SUFFIX}'

    def _read_one(self, address: pci.PCIAddress) -> Record:
        """Reads a record.

        :raises FileNotFoundError: if there is none
        """
        file = self._file(address)
        try:
            values = json.loads(file.read_text())
            return Record(model=_typed(values, 'model', str), **{
                field.name: _typed(values, field.name, type(field.default))
                for field in dataclasses.fields(Record)
                if field.name in values and
                field.name not in ('model', 'fault')})
        except FileNotFoundError:
            raise
        except (OSError, ValueError, TypeError, KeyError,
                RecursionError) as error:
            return Record('', fault=(
                f'its record {file} cannot be read: {error!r}; '
                f'nova-gpu-passthru offer {address} deletes it'))

    def _write(self, address: pci.PCIAddress, record: Record) -> None:
        if record.empty:
            self._file(address).unlink(missing_ok=True)
        else:
            values = dataclasses.asdict(record)
            del values['fault']
            self._replace(self._file(address), json.dumps(values, indent=2))
        folder = os.open(self.folder, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _replace(self, path: pathlib.Path, text: str) -> None:
        """Puts a new file in the place of another one."""
        with contextlib.ExitStack() as undo:
            with tempfile.NamedTemporaryFile(
                    'w', dir=self.folder, prefix='.', delete=False) as file:
                undo.callback(os.unlink, file.name)
                file.write(text + '\n')
                self._share(file.fileno())
                file.flush()
                os.fsync(file.fileno())
            os.rename(file.name, path)
            undo.pop_all()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other processes and threads from changing a record."""
        try:
            self._make_folder()
            with lockutils.lock(f'{self.folder}/{_LOCK}', do_log=False):
                # Not lockutils' own: an operator's root must not leave a
                # lock that nova-compute's user cannot open.
                with open(self.folder / _LOCK, 'a') as file:
                    self._share(file.fileno())
                    lock = lockutils.external_lock(
                        _LOCK, lock_path=str(self.folder))
                    try:
                        if not lock.acquire(timeout=_LOCK_SECONDS):
                            raise OSError('another process has their lock')
                    except threading.ThreadError as error:
                        raise OSError(f'no lock: {error}') from error
                    try:
                        yield
                    finally:
                        lock.release()
        except OSError as error:
            raise self._unavailable('changed', error) from error

    def _make_folder(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o750, exist_ok=True)
            if os.geteuid() == 0:
                parent = self.folder.parent.stat()
                os.chown(self.folder, parent.st_uid, parent.st_gid)

    def _share(self, descriptor: int) -> None:
        """Lets a file belong to the folder's owner, whoever writes it."""
        os.fchmod(descriptor, 0o640)
        if os.geteuid() == 0:
            folder = self.folder.stat()
            os.fchown(descriptor, folder.st_uid, folder.st_gid)

    def _unavailable(self, what: str, error: OSError
                     ) -> exceptions.RecordsUnavailable:
        cure = ('make room on its file system'
                if error.errno in (errno.ENOSPC, errno.EDQUOT) else
                "[gpu_passthru] state_dir has to name a folder of "
                "nova-compute's user, and commands to run as that user or as "
                "root")
        return exceptions.RecordsUnavailable(
            f'the records of cards in {self.folder} cannot be {what}: '
            f'{error}; {cure}')


def _typed(values: dict[str, Any], name: str, kind: type) -> Any:
    value = values[name]
    if not isinstance(value, kind):
        raise ValueError(f'{name} is {value!r}')
    return value
