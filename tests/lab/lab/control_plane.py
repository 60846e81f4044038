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

"""The services of OpenStack that run outside of the virtual host."""

import os
import pathlib
import shutil
import socket
import urllib.error
import urllib.request

from lab import cache
from lab import configuration
from lab import paths
from lab import processes
from lab import steps

CREDENTIALS = {
    'OS_AUTH_URL': 'http://127.0.0.1:15000/v3',
    'OS_USERNAME': 'admin',
    'OS_PASSWORD': 'lab',
    'OS_PROJECT_NAME': 'admin',
    'OS_USER_DOMAIN_ID': 'default',
    'OS_PROJECT_DOMAIN_ID': 'default',
    'OS_IDENTITY_API_VERSION': '3',
    'OS_REGION_NAME': 'RegionOne',
}

MICROVERSION = '2.96'

# name: (WSGI module, port)
APIS = {
    'keystone': ('keystone.wsgi.api', 15000),
    'placement': ('placement.wsgi.api', 18778),
    'glance': ('glance.wsgi.api', 19292),
    'neutron': ('neutron.wsgi.api', 19696),
    'nova-api': ('nova.wsgi.osapi_compute', 18774),
}

_RABBIT_PORT = 15672
_EPMD_PORT = 14369
_MARIADB_PORT = 13306
_START_LIMIT = 300


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(('127.0.0.1', port)) == 0


def write_openrc() -> pathlib.Path:
    """Write what lets a shell use the cloud as admin; return the file."""
    file = paths.RUN / 'openrc'
    variables = {
        **CREDENTIALS, 'OS_COMPUTE_API_VERSION': MICROVERSION,
        # As in the virtual host, but for what only that has.
        'PATH': f'{paths.PACKAGE}/bin:{paths.VENV}/bin:$PATH',
        'PYTHONPATH': paths.PACKAGE}
    file.write_text(''.join(f'export {name}={value}\n'
                            for name, value in variables.items()))
    return file


class ControlPlane:
    """MariaDB, RabbitMQ and the services, all below one folder."""

    def __init__(self, logs: pathlib.Path) -> None:
        self.logs = logs
        self.folder = paths.RUN / 'control-plane'
        self.etc = self.folder / 'etc'
        self.services: dict[str, processes.Service] = {}
        for name in ('images', 'staging', 'tasks', 'lock', 'nova', 'neutron',
                     'rabbitmq', 'state'):
            (self.folder / name).mkdir(parents=True)
        configuration.write_outside(self.etc, logs, self.folder)
        shutil.copy(paths.VENV / 'etc/nova/api-paste.ini', self.etc)

    def check_ports(self) -> None:
        """Raise LabError if something else uses the ports of the lab."""
        ports = [_MARIADB_PORT, _RABBIT_PORT, _RABBIT_PORT + 1, _EPMD_PORT,
                 *(port for _, port in APIS.values())]
        taken = [str(port) for port in ports if _listens(port)]
        if taken:
            raise steps.LabError(
                f'The lab needs these ports of 127.0.0.1, but something '
                f'listens there already: {", ".join(taken)}')

    def start(self) -> None:
        """Start all services and wait until they answer."""
        self.restore_state()
        with steps.step('Start MariaDB and RabbitMQ'):
            self.launch_rabbitmq()
            self.launch_mariadb()
            self.wait_mariadb()
            self.wait_port('rabbitmq', _RABBIT_PORT)
        with steps.step('Start Keystone'):
            self.launch_api('keystone')
            self.wait_api('keystone')
        with steps.step('Start Placement, Glance, Neutron and Nova'):
            others = [name for name in APIS if name != 'keystone']
            for name in others:
                self.launch_api(name)
            for name in ('nova-conductor', 'nova-scheduler'):
                self._launch_nova(name)
            for name in others:
                self.wait_api(name)

    def restore_state(self) -> None:
        """Begin with databases that know the services and nothing else."""
        # Here, because that module uses this one.
        from lab import bootstrap
        state = cache.cached(
            'databases', bootstrap.inputs(),
            lambda folder: bootstrap.build(self, folder))
        shutil.rmtree(self.folder / 'state')
        shutil.copytree(state / 'state', self.folder / 'state')

    def launch_mariadb(self) -> None:
        """Start MariaDB; wait_mariadb waits for it."""
        self._launch('mariadb', 'mariadbd',
                     f'--defaults-file={self.etc}/mariadb.cnf')

    def wait_mariadb(self) -> None:
        """Wait until MariaDB answers."""
        self.wait_port('mariadb', _MARIADB_PORT)

    def launch_rabbitmq(self) -> None:
        """Start RabbitMQ with nothing shared with one of the machine."""
        folder = self.folder / 'rabbitmq'
        (folder / 'enabled_plugins').touch()
        self._launch(
            'rabbitmq', '/usr/lib/rabbitmq/bin/rabbitmq-server',
            HOME=str(folder),
            RABBITMQ_NODENAME='lab@localhost',
            RABBITMQ_CONF_ENV_FILE='/dev/null',
            RABBITMQ_CONFIG_FILE=str(self.etc / 'rabbitmq'),
            RABBITMQ_NODE_IP_ADDRESS='127.0.0.1',
            RABBITMQ_NODE_PORT=str(_RABBIT_PORT),
            RABBITMQ_DIST_PORT=str(_RABBIT_PORT + 1),
            RABBITMQ_MNESIA_BASE=str(folder),
            RABBITMQ_LOG_BASE=str(self.logs),
            RABBITMQ_PID_FILE=str(folder / 'pid'),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(folder / 'enabled_plugins'),
            ERL_EPMD_ADDRESS='127.0.0.1',
            ERL_EPMD_PORT=str(_EPMD_PORT),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=(
                '-kernel inet_dist_use_interface {127,0,0,1} '
                '+S 1:1 +sbwt none'))

    def launch_api(self, name: str) -> None:
        """Start the API of a service in gunicorn."""
        module, port = APIS[name]
        self._launch(
            name, str(paths.VENV / 'bin/gunicorn'),
            GUNICORN_CMD_ARGS=f'-c {self.etc}/gunicorn.conf.py',
            LAB_WSGI_APPLICATION=f'{module}:application',
            LAB_PORT=str(port),
            LAB_CONTROL_SOCKET=str(self.folder / f'{name}.control'))

    def _launch_nova(self, name: str) -> None:
        self._launch(
            name, str(paths.VENV / f'bin/{name}'),
            *configuration.config_file_options(
                self.etc, 'nova.conf', 'nova-control.conf'))

    def _launch(self, name: str, *command: str, **env: str) -> None:
        log = self.logs / f'{name}.output.log'
        self.services[name] = processes.Service(
            name, list(command), log, {**self.environment(), **env})

    def environment(self) -> dict[str, str]:
        """What the services and their commands need to find their files."""
        etc = str(self.etc)
        return {
            'PATH': f'{paths.VENV}/bin:/usr/sbin:{os.environ["PATH"]}',
            'PYTHONPATH': str(paths.PACKAGE),
            'PYTHONWARNINGS': 'ignore',
            'OS_KEYSTONE_CONFIG_DIR': etc,
            'OS_PLACEMENT_CONFIG_DIR': etc,
            'OS_GLANCE_CONFIG_DIR': etc,
            'OS_NEUTRON_CONFIG_DIR': etc,
            'OS_NEUTRON_CONFIG_FILES': 'neutron.conf',
            'OS_NOVA_CONFIG_DIR': etc,
            'OS_NOVA_CONFIG_FILES':
                'api-paste.ini;nova.conf;nova-control.conf',
        }

    def wait_port(self, name: str, port: int) -> None:
        """Wait until a service listens."""
        service = self.services[name]

        def check() -> bool:
            service.check_alive()
            return _listens(port)

        steps.wait_for(check, f'{name} does not listen on port {port}',
                       _START_LIMIT, service.log)

    def wait_api(self, name: str) -> None:
        """Wait until the API of a service answers."""
        service = self.services[name]
        url = f'http://127.0.0.1:{APIS[name][1]}/'

        def check() -> bool:
            service.check_alive()
            try:
                urllib.request.urlopen(url, timeout=30).close()
            except urllib.error.HTTPError as error:
                # 300, "multiple choices", is what most say at their root.
                return error.code < 500
            except OSError:
                return False
            return True

        steps.wait_for(check, f'{name} does not answer', _START_LIMIT,
                       service.log)

    def nova_manage(self, *words: str) -> None:
        """Run nova-manage."""
        options = configuration.config_file_options(
            self.etc, 'nova.conf', 'nova-control.conf')
        self.run('nova-manage', *options, *words)

    def run(self, *command: str, stdin: str = '') -> None:
        """Run a command of one of the services to its end."""
        log = self.logs / f'{command[0]}.output.log'
        processes.run(command, log, env=self.environment(), stdin=stdin)
