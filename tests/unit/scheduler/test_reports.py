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

import ddt

from nova_gpu_passthru.host import gpus
from nova_gpu_passthru.scheduler import reports
from tests.unit import base
from tests.unit.scheduler import test_filters


@ddt.ddt
class ReadTest(base.TestCase):
    def test_what_a_host_writes_is_what_the_scheduler_reads(self) -> None:
        usage = gpus.Usage(8, {'10de:2330': 3, '1002:74a1': 0})
        report = reports.read({reports.KEY: usage.to_json()})
        self.assertEqual((3, 8), (report.free_gpus, report.total_gpus))
        self.assertEqual([3, 3, 0, 0], [
            report.free(model) for model in
            (None, '10de:2330', '1002:74a1', '10de:ffff')])

    @ddt.data(None, {}, {'num_instances': '3'}, {'gpu_passthru': None})
    def test_host_without_gpus_has_none(self, stats: dict[str, str] | None
                                        ) -> None:
        self.assertEqual(reports.Report(), reports.read(stats))

    @ddt.data(*test_filters.NONSENSE)
    def test_nonsense_is_refused(self, text: str) -> None:
        self.assertRaises(ValueError, reports.read, {reports.KEY: text})

    def test_huge_nonsense_is_refused(self) -> None:
        for text in test_filters.HUGE:
            self.assertRaises(ValueError, reports.read, {reports.KEY: text})
