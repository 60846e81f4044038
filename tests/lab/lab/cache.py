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

"""Keeps what takes long to make for as long as its inputs do not change."""

from collections.abc import Callable
from collections.abc import Iterable
import hashlib
import pathlib
import shutil

from lab import paths
from lab import steps

_COMPLETE = '.complete'


def digest(inputs: Iterable[str | pathlib.Path]) -> str:
    """A short hash of texts and of the contents of files."""
    total = hashlib.sha256()
    for item in inputs:
        data = (item.read_bytes() if isinstance(item, pathlib.Path)
                else item.encode())
        total.update(hashlib.sha256(data).digest())
    return total.hexdigest()[:12]


def cached(name: str, inputs: Iterable[str | pathlib.Path],
           build: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """The folder that build fills, from the cache if nothing changed.

    A folder counts only once build has returned: what an interrupted run
    left is thrown away, as is what was built from other inputs.
    """
    folder = paths.CACHE / f'{name}-{digest(inputs)}'
    if (folder / _COMPLETE).exists():
        return folder
    with steps.step(f'Build {name} (kept for the next run)'):
        for old in paths.CACHE.glob(f'{name}-*'):
            shutil.rmtree(old)
        folder.mkdir(parents=True)
        build(folder)
        (folder / _COMPLETE).touch()
    return folder
