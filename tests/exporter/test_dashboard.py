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

"""Every query of the dashboard, run by a real Prometheus."""

from collections.abc import Iterator
import json
import math
import pathlib
import re
import socket
import subprocess
import time
from typing import Any
import urllib.request

import fixtures
import prometheus_client
import testtools

from nova_gpu_passthru.cmd import exporter
from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru import exceptions
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import cards
from nova_gpu_passthru.host import metrics
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy
from nova_gpu_passthru.host import pools
from nova_gpu_passthru import telemetry
from tests.exporter import prometheus
from tests import sysfs_tree

DASHBOARD = (pathlib.Path(__file__).parents[2] / 'etc' / 'grafana' /
             'nova-gpu-passthru.json')
UUID = '6f70b1a2-9d2c-4c1e-9a0e-0d5f0c6d3d01'

# Claimed, stranded by that, free, on its host driver, in SR-IOV mode, and the
# display of a management controller.
HOST = """
0000:17:00.0 030000 10de:2204 driver=vfio-pci group=1 numa=0
0000:18:00.0 030000 10de:2204 driver=vfio-pci group=1 numa=0
0000:19:00.0 030200 10de:2330 driver=vfio-pci group=3 numa=1
0000:65:00.0 030200 10de:2330 driver=nvidia group=4 numa=1
0000:66:00.0 120000 1002:74a1 driver=gim group=5 numvfs=8
0000:03:00.0 030000 1a03:2000 driver=ast group=7 boot_vga=1
"""


def panels() -> Iterator[dict[str, Any]]:
    yield from json.loads(DASHBOARD.read_text())['panels']


def queries(panel: dict[str, Any]) -> Iterator[str]:
    """What Grafana would send of a panel, for all hosts."""
    for target in panel['targets']:
        query = target['expr'].replace('$host', '.*').replace(
            '$__rate_interval', '1m')
        assert '$' not in query, query
        yield query


class DashboardTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        file = pathlib.Path(self.useFixture(fixtures.TempDir()).path,
                            'nova.prom')
        sysfs = pci.Sysfs(self.useFixture(sysfs_tree.SysfsTree(HOST)).root)
        policy = host_policy.Policy()
        guest = domain.DomainDevices(
            UUID, 'gpu1', frozenset([pci.PCIAddress.parse('0000:17:00.0')]))
        registry = exporter.make_registry(
            host_view.Host(sysfs, policy, lambda: [guest]), file,
            libvirt_timeout=30)
        server, thread = prometheus_client.start_http_server(
            0, '127.0.0.1', registry)
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = f'http://127.0.0.1:{server.server_port}/metrics'
        self.telemetry = telemetry.Telemetry()
        metrics.Report(self.telemetry.registry).update(
            cards.find(sysfs, policy), [pools.Pool('10de:2330', 1)])
        self.act()
        self.telemetry.write(str(file))
        # A second host, on which nothing listens.
        with socket.create_server(('127.0.0.1', 0)) as free:
            dead = free.getsockname()[1]
        self.prometheus = self.useFixture(prometheus.Prometheus(
            [f'127.0.0.1:{server.server_port}', f'127.0.0.1:{dead}']))
        # Rates want a change between two scrapes.
        self.wait_for_scrapes(2)
        self.act()
        self.telemetry.write(str(file))
        seen = int(self.scrapes())
        self.wait_for_scrapes(seen + 2)

    def act(self) -> None:
        for action in ('claim', 'detach', 'release'):
            with self.telemetry.timed(action):
                pass
        try:
            with self.telemetry.timed('claim'):
                raise exceptions.NotEnoughGPUs('none is free')
        except exceptions.NotEnoughGPUs:
            self.telemetry.failed('detach', 'timeout')

    def scrapes(self) -> float:
        return sum(self.prometheus.values(
            'count_over_time(nova_gpu_passthru_libvirt_up[5m])'))

    def wait_for_scrapes(self, count: int) -> None:
        self.prometheus.wait_for(
            lambda: self.scrapes() >= count,
            lambda: self.prometheus.get('targets')['activeTargets'])

    def test_every_query_has_an_answer(self) -> None:
        for panel in panels():
            for query in queries(panel):
                values = self.prometheus.values(query)
                self.assertNotEqual([], values, panel['title'])
                self.assertFalse(any(map(math.isnan, values)),
                                 f'{panel["title"]}: {values}')
                if panel['type'] == 'timeseries':
                    now = time.time()
                    shown = self.prometheus.get(
                        'query_range', query=query, start=str(now - 60),
                        end=str(now), step='1')
                    self.assertNotEqual([], shown['result'], panel['title'])

    def test_numbers_are_those_of_the_hosts(self) -> None:
        shown = {panel['title']: self.prometheus.values(query)
                 for panel in panels() if panel['type'] == 'stat'
                 for query in queries(panel)}
        self.assertEqual({
            'Free': [1], 'Claimed': [1], 'Stranded': [1],
            'Withheld or on a host driver': [2], 'Hosts without libvirt': [0],
            'Exporters down': [1]}, shown)
        failures, = (query for panel in panels()
                     if panel['title'] == 'Failures'
                     for query in queries(panel))
        self.assertEqual([True, True], [
            value > 0 for value in self.prometheus.values(failures)])

    def test_choice_of_hosts_has_the_exporters(self) -> None:
        choice, = (variable for variable in
                   json.loads(DASHBOARD.read_text())['templating']['list']
                   if variable['name'] == 'host')
        match = re.fullmatch(r'label_values\((\w+), (\w+)\)',
                             choice['query']['query'])
        assert match
        hosts = self.prometheus.get(f'label/{match[2]}/values',
                                    **{'match[]': match[1]})
        self.assertEqual(self.url, f'http://{hosts[0]}/metrics')

    def test_names_and_types_are_what_prometheus_recommends(self) -> None:
        with urllib.request.urlopen(self.url) as answer:
            done = subprocess.run(
                [prometheus.program('promtool'), 'check', 'metrics'],
                input=answer.read(), capture_output=True)
        self.assertEqual((0, b''), (done.returncode, done.stderr))
