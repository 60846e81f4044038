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

"""Counts the drivers of our class that the tests make, in all processes."""

from collections.abc import Callable
import io
import pathlib


def start(folder: pathlib.Path) -> None:
    """Starts to count at nothing."""
    _path(folder).unlink(missing_ok=True)


def writer(folder: pathlib.Path) -> Callable[[], None]:
    """Opens the count of a folder.

    :returns: what counts one more
    """
    # Not os.write(): eventlet replaces it by one that calls os.stat(), which
    # some tests replace.
    journal = io.FileIO(_path(folder), 'ab')

    def count_one() -> None:
        journal.write(b'.')

    return count_one


def count(folder: pathlib.Path) -> int:
    path = _path(folder)
    return path.stat().st_size if path.exists() else 0


def _path(folder: pathlib.Path) -> pathlib.Path:
    return folder / 'drivers-made'
