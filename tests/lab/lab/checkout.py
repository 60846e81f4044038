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

"""Installs the package under test."""

import pathlib
import shutil

from lab import paths
from lab import python_packages
from lab import steps

_NOT_BUILT_FROM = shutil.ignore_patterns(
    '.*', 'tests', 'build', 'dist', '*.egg-info', '__pycache__')


def install(log: pathlib.Path) -> None:
    """Install the package under test, as a wheel, into paths.PACKAGE."""
    with steps.step('Install this checkout'):
        # pip and pbr write beside what they build, so they get a copy.
        source = paths.RUN / 'checkout'
        shutil.copytree(paths.CHECKOUT, source, ignore=_NOT_BUILT_FROM)
        python_packages.pip(
            paths.VENV, log, '--no-deps', '--no-build-isolation',
            '--target', paths.PACKAGE, source, PBR_VERSION='0.0.1')
