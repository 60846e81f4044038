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

"""The documentation shows configurations that do what it says."""

import pathlib

import ddt
import fixtures
from oslo_config import cfg

from nova_gpu_passthru.cmd import host_findings
from nova_gpu_passthru.cmd import main
from nova_gpu_passthru.cmd import scheduler_findings
from tests.unit import base
from tests.unit.doc import configurations


@ddt.ddt
class ConfigurationsTest(base.TestCase):
    def read(self, text: str) -> cfg.ConfigOpts:
        file = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'conf')
        file.write_text(text)
        config = cfg.ConfigOpts()
        main.register_opts(config)
        scheduler_findings.register_opts(config)
        config([], default_config_files=[str(file)], default_config_dirs=[])
        return config

    @ddt.data('README.rst', 'doc/source/install.rst')
    def test_scheduler_gets_novas_filters_and_ours(self, name: str) -> None:
        text, = (text for text in configurations.in_text(name)
                 if '[filter_scheduler]' in text)
        config = self.read(text)
        self.assertEqual([], list(scheduler_findings.of_filters(config)))
        self.assertEqual([], list(scheduler_findings.of_weighers(config)))

    @ddt.data('README.rst', 'doc/source/install.rst')
    def test_host_gets_our_driver(self, name: str) -> None:
        texts = [text for text in configurations.in_text(name)
                 if 'compute_driver' in text]
        self.assertNotEqual([], texts)
        for text in texts:
            self.assertEqual([], list(host_findings.of_configuration(
                self.read(text))))
