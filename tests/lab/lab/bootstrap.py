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

"""Makes the databases of the control plane, for the cache.

What a cloud has before its first host: schemas, cells, users, endpoints.
"""

import concurrent.futures
import pathlib
import shutil

import openstack

from lab import configuration
from lab import control_plane
from lab import paths

_DATABASES = ('keystone', 'placement', 'glance', 'neutron', 'nova_api',
              'nova_cell0', 'nova_cell1')

_URL = 'mysql+pymysql://nova:lab@127.0.0.1:13306'

# name: (type, URL)
_CATALOG = {
    'nova': ('compute', 'http://127.0.0.1:18774/v2.1'),
    'neutron': ('network', 'http://127.0.0.1:19696'),
    'placement': ('placement', 'http://127.0.0.1:18778'),
    'glance': ('image', 'http://127.0.0.1:19292'),
}


def inputs() -> list[str | pathlib.Path]:
    """What the databases depend on."""
    return [str(paths.VENV), pathlib.Path(__file__),
            *(path for path in configuration.templates()
              if path.name not in configuration.COMPUTE_FILES)]


def build(plane: control_plane.ControlPlane, folder: pathlib.Path) -> None:
    """Fill folder/state with MariaDB's files and Keystone's keys."""
    plane.run('mariadb-install-db',
              f'--defaults-file={plane.etc}/mariadb.cnf',
              '--auth-root-authentication-method=normal', '--skip-test-db')
    plane.launch_mariadb()
    plane.wait_mariadb()
    plane.run('mariadb', f'--socket={plane.folder}/mysql.sock', '-uroot',
              stdin='\n'.join(
                  f"CREATE DATABASE {name} CHARACTER SET utf8mb3; "
                  f"GRANT ALL ON {name}.* TO 'nova'@'%' IDENTIFIED BY 'lab';"
                  for name in _DATABASES))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for done in [pool.submit(_fill_nova, plane),
                     pool.submit(_fill_others, plane)]:
            done.result()
    plane.launch_api('keystone')
    plane.wait_api('keystone')
    _fill_catalog()
    plane.services.pop('keystone').stop()
    plane.services.pop('mariadb').stop()
    shutil.copytree(plane.folder / 'state', folder / 'state')


def _fill_nova(plane: control_plane.ControlPlane) -> None:
    plane.nova_manage('api_db', 'sync')
    plane.nova_manage('cell_v2', 'map_cell0', '--database_connection',
                      f'{_URL}/nova_cell0?charset=utf8mb3')
    plane.nova_manage('cell_v2', 'create_cell', '--name', 'cell1')
    plane.nova_manage('db', 'sync')


def _fill_others(plane: control_plane.ControlPlane) -> None:
    keystone = ('keystone-manage', '--config-file',
                f'{plane.etc}/keystone.conf')
    for name in ('fernet', 'credential'):
        (plane.folder / 'state' / name).mkdir(mode=0o700)
    plane.run(*keystone, 'db_sync')
    for setup in ('fernet_setup', 'credential_setup'):
        plane.run(*keystone, setup, '--keystone-user', 'root',
                  '--keystone-group', 'root')
    url = control_plane.CREDENTIALS['OS_AUTH_URL']
    plane.run(*keystone, 'bootstrap', '--bootstrap-password', 'lab',
              '--bootstrap-region-id', 'RegionOne',
              '--bootstrap-admin-url', url, '--bootstrap-internal-url', url,
              '--bootstrap-public-url', url)
    plane.run('placement-manage', '--config-file',
              f'{plane.etc}/placement.conf', 'db', 'sync')
    plane.run('glance-manage', '--config-file',
              f'{plane.etc}/glance-api.conf', 'db_sync')
    plane.run('neutron-db-manage', '--config-file',
              f'{plane.etc}/neutron.conf', 'upgrade', 'heads')


def _fill_catalog() -> None:
    identity = openstack.connect(
        **{name.removeprefix('OS_').lower(): value
           for name, value in control_plane.CREDENTIALS.items()}).identity
    project = identity.create_project(name='service', domain_id='default')
    user = identity.create_user(
        name='nova', password='lab', default_project_id=project.id,
        domain_id='default')
    for role in ('admin', 'service'):
        identity.assign_project_role_to_user(
            project, user, identity.find_role(role))
    for name, (service_type, url) in _CATALOG.items():
        service = identity.create_service(name=name, type=service_type)
        for interface in ('public', 'internal', 'admin'):
            identity.create_endpoint(
                service_id=service.id, interface=interface, url=url,
                region_id='RegionOne')
