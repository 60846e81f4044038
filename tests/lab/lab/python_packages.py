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

"""The virtual environment of Nova, the other services and the lab."""

import os
import pathlib
import platform
import sys

from lab import cache
from lab import paths
from lab import processes

_REQUIREMENTS = paths.LAB / 'requirements.txt'


def virtual_environment(log: pathlib.Path) -> pathlib.Path:
    """The folder of the virtual environment, made if there is none yet."""
    def build(folder: pathlib.Path) -> None:
        processes.run([sys.executable, '-m', 'venv', folder], log)
        # Building simplegeneric, which has no wheel, needs these two there.
        pip(folder, log, 'setuptools', 'wheel')
        pip(folder, log, '-r', _REQUIREMENTS)

    return cache.cached(
        'python', [_REQUIREMENTS, platform.python_version(),
                   pathlib.Path(__file__)], build)


def disk(log: pathlib.Path) -> pathlib.Path:
    """The virtual environment as a disk for the virtual host.

    nova-compute's modules load there in half the time that they need from a
    shared folder: 60 s and 128 s on a busy machine.
    """
    def build(folder: pathlib.Path) -> None:
        processes.run(
            ['mke2fs', '-q', '-t', 'ext4', '-O', '^has_journal', '-m', '0',
             '-i', '8192', '-d', paths.VENV, folder / 'venv.raw', '2G'], log)

    return cache.cached('venv-disk', [str(paths.VENV), pathlib.Path(__file__)],
                        build) / 'venv.raw'


def pip(folder: pathlib.Path, log: pathlib.Path,
        *words: str | os.PathLike[str], **env: str) -> None:
    """Run pip install in a virtual environment."""
    processes.run(
        [folder / 'bin/pip', 'install', '-q', '--no-input', *words], log,
        limit=1200, env={'PIP_DISABLE_PIP_VERSION_CHECK': '1', **env})
