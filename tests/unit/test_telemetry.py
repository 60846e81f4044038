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

import os
import pathlib

import fixtures

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import telemetry
from tests.unit import base
from tests.unit import metrics


class TelemetryTest(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.telemetry = telemetry.Telemetry()

    def value(self, name: str, **labels: str) -> float:
        return metrics.scrape(self.telemetry.registry).get(
            metrics.key(name, **labels), 0)

    def test_action_that_ends_well_is_measured(self) -> None:
        with self.telemetry.timed('release'):
            pass
        self.assertEqual(1, self.value(
            'action_duration_seconds_count', action='release'))

    def test_action_that_fails_counts_by_its_error_and_is_not_measured(
            self) -> None:
        def fail() -> None:
            with self.telemetry.timed('claim'):
                raise exceptions.NotEnoughGPUs('none is free')

        self.assertRaises(exceptions.NotEnoughGPUs, fail)
        self.assertEqual(1, self.value('action_failures_total',
                                       action='claim',
                                       reason='NotEnoughGPUs'))
        self.assertEqual(0, self.value('action_duration_seconds_count',
                                       action='claim'))


class WriteTest(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.telemetry = telemetry.Telemetry()

    def test_file_has_what_a_scrape_would_have(self) -> None:
        self.telemetry.failed('detach', 'timeout')
        self.telemetry.write(str(self.folder / 'a.prom'))
        self.assertEqual(
            metrics.scrape(self.telemetry.registry),
            metrics.samples((self.folder / 'a.prom').read_text()))
        self.assertEqual(['a.prom'], os.listdir(self.folder))

    def test_folder_that_is_missing_is_logged_with_the_cure(self) -> None:
        self.telemetry.write(str(self.folder / 'none' / 'a.prom'))
        self.assertIn('metrics_file', self.log.output)
        self.assertIn('No such file', self.log.output)

    def test_empty_name_switches_it_off(self) -> None:
        self.telemetry.write('')
        self.assertEqual('', self.log.output)
