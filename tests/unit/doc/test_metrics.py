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

"""The documentation names each metric with its labels."""

import pathlib
import re

import fixtures
import prometheus_client
from prometheus_client import parser

from nova_gpu_passthru.cmd import exporter
from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import metrics as host_metrics
from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import pools
from nova_gpu_passthru import telemetry
from tests.unit import base
from tests.unit import metrics

PAGE = pathlib.Path(__file__).parents[3] / 'doc' / 'source' / 'metrics.rst'
HOST = """
0000:17:00.0 030000 10de:2204 driver=vfio-pci group=1
0000:18:00.0 030000 10de:2204 driver=vfio-pci
"""


class MetricsTest(base.TestCase):
    def exported(self) -> set[tuple[str, frozenset[str]]]:
        file = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'prom')
        written = telemetry.Telemetry()
        with written.timed('claim'):
            written.failed('claim', 'timeout')
        host_metrics.Report(written.registry).update(
            self.cards(HOST), [pools.Pool('10de:2204')])
        written.write(str(file))
        guest = domain.DomainDevices(
            'a', 'a', frozenset([pci.PCIAddress.parse('0000:17:00.0')]))
        registry = exporter.make_registry(
            host_view.Host(pci.Sysfs(self.tree(HOST).root), base.policy(),
                           lambda: [guest]), file, 30)
        text = prometheus_client.generate_latest(registry).decode()
        found = set()
        for family in parser.text_string_to_metric_families(text):
            name = family.name.removeprefix(metrics.PREFIX)
            labels = {label for sample in family.samples
                      for label in sample.labels} - {'le'}
            found.add((name + '_total' * (family.type == 'counter'),
                       frozenset(labels)))
        return found

    def test_page_has_those_that_are_exported_and_no_others(self) -> None:
        told = {(name, frozenset(re.findall(r'\w+', labels)))
                for name, labels in re.findall(
                    r'^``(\w+)(?:\{(.*)\})?``$', PAGE.read_text(), re.M)}
        self.assertEqual(self.exported(), told)
