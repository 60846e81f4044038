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

import pathlib
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import fixtures

from tests.unit import base
from tests.unit.cmd import command
from tests.unit import metrics

CARD = '0000:65:00.0 030200 10de:2330 driver=vfio-pci group=34 numa=1'
COMMAND = ('import sys; from nova_gpu_passthru.cmd import main; '
           'sys.exit(main.main())')


class ExporterTest(base.TestCase):
    def start(self, *argv: str) -> str:
        """Starts it on any free port.

        :returns: the address to scrape
        """
        self.process = subprocess.Popen(
            [sys.executable, '-c', COMMAND, *argv, 'exporter', '--port', '0',
             '--sysfs', str(self.tree(CARD).root)],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        assert self.process.stdout is not None
        self.addCleanup(self.process.stdout.close)
        said = self.process.stdout.readline()
        match = re.fullmatch(r'Listening on (\S+) port (\d+)\n', said)
        assert match, said
        self.assertEqual('127.0.0.1', match[1])
        return f'http://127.0.0.1:{match[2]}/metrics'

    def scrape(self, url: str) -> None:
        with urllib.request.urlopen(url) as answer:
            self.found = metrics.samples(answer.read().decode())

    def test_it_serves_until_it_is_told_to_stop(self) -> None:
        self.scrape(self.start())
        self.assertEqual(1, self.found[metrics.key(
            'cards', verdict='offered', state='free', model='10de:2330',
            numa_node='1')])
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(0, self.process.wait())

    def test_file_of_nova_compute_is_where_its_configuration_says(
            self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (folder / 'nova-gpu-passthru.prom').write_text(
            'nova_gpu_passthru_action_failures_total{action="detach",'
            'reason="timeout"} 2\n')
        (folder / 'nova.conf').write_text(f'[DEFAULT]\nstate_path={folder}\n')
        self.scrape(self.start('--config-file', str(folder / 'nova.conf')))
        self.assertEqual(2, self.found[metrics.key(
            'action_failures_total', action='detach', reason='timeout')])

    def test_port_that_is_taken_is_an_error_with_the_cure(self) -> None:
        taken = socket.create_server(('127.0.0.1', 0))
        self.addCleanup(taken.close)
        port = taken.getsockname()[1]
        one = self.useFixture(command.Command())
        one.run('exporter', '--port', str(port), '--sysfs',
                self.tree(CARD).root)
        self.assertEqual(1, one.status)
        self.assertIn(f'127.0.0.1 port {port}: ', one.stderr)
        self.assertIn('--port', one.stderr)
