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
from nova import test

from nova_gpu_passthru.host import pools
from nova_gpu_passthru.scheduler import reports
from tests.unit.scheduler import hosts
from tests.unit.scheduler import test_filters


@ddt.ddt
class ReadTest(test.NoDBTestCase):
    def read(self, text: str) -> reports.Report:
        return reports.read(hosts.host('one', gpu_passthru=text))

    def test_what_a_host_writes_is_what_the_scheduler_reads(self) -> None:
        report = self.read(pools.Usage([
            pools.Pool('1002:74a1', total=2, held={'a': 2}),
            pools.Pool('10de:2330', total=6, held={'b': 2}, blocked=1),
        ]).to_json())
        self.assertEqual((3, 8), (report.free_gpus, report.total_gpus))
        self.assertEqual([3, 3, 0, 0], [
            report.free(model) for model in
            (None, '10de:2330', '1002:74a1', '10de:ffff')])

    def test_host_without_gpus_has_none(self) -> None:
        for host in (hosts.host('plain'), hosts.unreported('new'),
                     hosts.host('other', num_instances='3'),
                     hosts.host('old', gpu_passthru=None)):
            self.assertEqual(reports.Report(), reports.read(host))

    @ddt.data(*test_filters.NONSENSE)
    def test_nonsense_is_refused(self, text: str) -> None:
        self.assertRaises(ValueError, self.read, text)

    def test_huge_nonsense_is_refused(self) -> None:
        for text in test_filters.HUGE:
            self.assertRaises(ValueError, self.read, text)
