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

"""Nova's virtual environment, and in it the package under test."""

import os
import pathlib
import platform
import shutil
import sys

from lab import cache
from lab import paths
from lab import processes
from lab import steps

_REQUIREMENTS = paths.LAB / 'requirements.txt'

_NOT_BUILT_FROM = shutil.ignore_patterns(
    '.*', 'tests', 'build', 'dist', '*.egg-info', '__pycache__')


def virtual_environment(log: pathlib.Path) -> pathlib.Path:
    """The folder of the virtual environment, made if there is none yet."""
    def build(folder: pathlib.Path) -> None:
        processes.run([sys.executable, '-m', 'venv', folder], log)
        # Building simplegeneric, which has no wheel, needs these two there.
        _pip(folder, log, 'setuptools', 'wheel')
        _pip(folder, log, '-r', _REQUIREMENTS)

    return cache.cached(
        'python', [_REQUIREMENTS, platform.python_version(),
                   pathlib.Path(__file__)], build)


def disk(log: pathlib.Path) -> pathlib.Path:
    """The virtual environment as a disk for the virtual host.

    There the many small files come four times as fast from a disk as from a
    shared folder.
    """
    def build(folder: pathlib.Path) -> None:
        processes.run(
            ['mke2fs', '-q', '-t', 'ext4', '-O', '^has_journal', '-m', '0',
             '-i', '8192', '-d', paths.VENV, folder / 'venv.raw', '2G'], log)

    return cache.cached('venv-disk', [str(paths.VENV), pathlib.Path(__file__)],
                        build) / 'venv.raw'


def install_checkout(log: pathlib.Path) -> None:
    """Install the package under test, as a wheel, into paths.PACKAGE."""
    with steps.step('Install this checkout'):
        # pip and pbr write beside what they build, so they get a copy.
        source = paths.RUN / 'checkout'
        shutil.copytree(paths.CHECKOUT, source, ignore=_NOT_BUILT_FROM)
        _pip(paths.VENV, log, '--no-deps', '--no-build-isolation',
             '--target', paths.PACKAGE, source, PBR_VERSION='0.0.1')


def _pip(folder: pathlib.Path, log: pathlib.Path,
         *words: str | os.PathLike[str], **env: str) -> None:
    processes.run(
        [folder / 'bin/pip', 'install', '-q', '--no-input', *words], log,
        limit=1200, env={'PIP_DISABLE_PIP_VERSION_CHECK': '1', **env})
