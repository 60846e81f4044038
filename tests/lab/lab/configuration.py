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

"""Writes the configuration files of the services."""

import pathlib
import string

from lab import paths
from lab import topology
from lab import virtual_host

_TEMPLATES = paths.LAB / 'config'

OUTSIDE_FILES = (
    'glance-api.conf', 'gunicorn.conf.py', 'keystone.conf', 'mariadb.cnf',
    'neutron.conf', 'nova.conf', 'nova-control.conf', 'placement.conf',
    'rabbitmq.conf')

COMPUTE_FILES = ('nova.conf', 'nova-compute.conf')


def templates() -> list[pathlib.Path]:
    """All that the configuration is made from."""
    return sorted(_TEMPLATES.iterdir())


def config_file_options(target: pathlib.Path, *names: str) -> list[str]:
    """The command line options that make oslo.config read these files."""
    return [word for name in names
            for word in ('--config-file', str(target / name))]


def write_outside(target: pathlib.Path, logs: pathlib.Path,
                  folder: pathlib.Path) -> None:
    """Write the files of all services outside of the virtual host.

    :param folder: where these services keep what they write.
    """
    _write(target, OUTSIDE_FILES, '127.0.0.1', logs, folder=folder,
           state=folder / 'state',
           database='mysql+pymysql://nova:lab@127.0.0.1:13306')


def write_compute(target: pathlib.Path, logs: pathlib.Path) -> None:
    """Write the files of nova-compute, /etc/nova in the virtual host."""
    _write(target, COMPUTE_FILES, virtual_host.OUTSIDE, logs,
           include=','.join(topology.INCLUDE))


def _write(target: pathlib.Path, names: tuple[str, ...], address: str,
           logs: pathlib.Path, **values: str | pathlib.Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    values.update(address=address, logs=logs, venv=paths.VENV,
                  rabbit=f'rabbit://nova:lab@{address}:15672/')
    for part in ('authentication', 'keystone_authtoken'):
        values[part] = _fill(f'{part}.part', values)
    for name in names:
        (target / name).write_text(_fill(name, values))


def _fill(name: str, values: dict[str, str | pathlib.Path]) -> str:
    text = (_TEMPLATES / name).read_text()
    return string.Template(text).substitute(values)
