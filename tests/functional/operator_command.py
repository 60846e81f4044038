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


"""The command nova-gpu-passthru as an operator runs it on a host."""

import fixtures

from nova_gpu_passthru.cmd import main
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import hypervisor
from nova_gpu_passthru.host import pci
from tests.functional import gpu_libvirt
from tests.unit.cmd import command


class OperatorCommand(fixtures.Fixture):
    """Runs the command on a host of this process.

    :param connection: the host's libvirt
    """

    def __init__(self, connection: gpu_libvirt.Connection) -> None:
        super().__init__()
        self._connection = connection

    def _setUp(self) -> None:
        root = self._connection.sysfs.root
        self._config = root / 'nova.conf'
        self._config.write_text(f'[gpu_passthru]\nstate_dir = {root}/state\n')
        self._command = self.useFixture(command.Command())

    def __call__(self, *argv: str) -> str:
        """Runs it to its end.

        :returns: what it printed
        """
        sysfs = pci.Sysfs(self._connection.sysfs.root)
        domains = hypervisor.Connection(self._connection).domains
        with (fixtures.MonkeyPatch('nova_gpu_passthru.host.pci.Sysfs',
                                   lambda *args: sysfs),
              fixtures.MonkeyPatch(
                  f'{main.__package__}.libvirt_host.read_domains',
                  lambda config: list(domain.read_all(domains()).values()))):
            text = self._command.run('--config-file', self._config, *argv)
        if self._command.status:
            raise AssertionError(self._command.stderr)
        return text
