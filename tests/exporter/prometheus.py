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

"""A real Prometheus that scrapes what it is told to."""

from collections.abc import Callable, Mapping, Sequence
import json
import pathlib
import shutil
import socket
import subprocess
import time
from typing import Any
import urllib.parse
import urllib.request

import fixtures

# Seconds: what takes longer has gone wrong.
DEADLINE = 120

_CONFIG = """
global:
  scrape_interval: 1s
scrape_configs:
- job_name: nova-gpu-passthru
  static_configs:
  - targets: {targets}
"""


def program(name: str) -> str:
    """Finds a program of Debian's package prometheus.

    :raises RuntimeError: if it is missing
    """
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(
            f'{name} is not on the PATH. "tests/run exporter" fetches it; '
            f'for tox by itself install the package prometheus.')
    return path


class Prometheus(fixtures.Fixture):
    """Runs Prometheus on loopback, for as long as the test takes.

    :param targets: what it scrapes each second, as address:port
    """

    def __init__(self, targets: Sequence[str]) -> None:
        super().__init__()
        self._targets = targets

    def _setUp(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (folder / 'prometheus.yml').write_text(
            _CONFIG.format(targets=json.dumps(list(self._targets))))
        with socket.create_server(('127.0.0.1', 0)) as free:
            port = free.getsockname()[1]
        self._url = f'http://127.0.0.1:{port}'
        log = (folder / 'log').open('w')
        self.addCleanup(log.close)
        self._process = subprocess.Popen(
            [program('prometheus'),
             f'--config.file={folder}/prometheus.yml',
             f'--storage.tsdb.path={folder}/data',
             f'--web.listen-address=127.0.0.1:{port}'],
            stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(self._process.wait)
        self.addCleanup(self._process.terminate)
        self.wait_for(self._is_ready,
                      lambda: (folder / 'log').read_text())

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            return True  # the first query fails then, and says so
        try:
            with urllib.request.urlopen(f'{self._url}/-/ready'):
                return True
        except OSError:
            return False

    def wait_for(self, condition: Callable[[], bool],
                 explain: Callable[[], object]) -> None:
        """Waits until something holds.

        :param explain: says how things stand, if it never does
        """
        end = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f'not within {DEADLINE} s: {explain()}')
            time.sleep(.2)

    def get(self, path: str, **parameters: str) -> Any:
        """Calls the API of Prometheus.

        :returns: the data of its answer
        :raises AssertionError: if Prometheus refuses it
        """
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(
                    f'{self._url}/api/v1/{path}?{query}') as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f'{parameters}: {error.read()!r}') from None
        assert said['status'] == 'success', said
        return said['data']

    def values(self, expression: str) -> list[float]:
        """Evaluates an expression now."""
        result: Sequence[Mapping[str, Any]] = self.get(
            'query', query=expression)['result']
        return [float(one['value'][1]) for one in result]
