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

"""What stestr's processes load: Nova's tests, with the chosen driver class.

Alone in its folder, because stestr looks for tests in a folder. Run it with
python -m tests.nova_suites.
"""

from collections.abc import Iterator
import importlib
import os
import pathlib
import pkgutil
import sys
from typing import Any
import unittest

from tests.nova_suites import suites


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite,
               pattern: Any) -> unittest.TestSuite:
    suite = suites.SUITES[os.environ[suites.SUITE_VARIABLE]]
    # As Nova does, and in its order: one of them patches the standard library
    # for eventlet or forbids eventlet, depending on the release.
    importlib.import_module(suite.package)
    importlib.import_module('nova.test')
    _use_installed_paste_file()
    if suites.Driver(os.environ[suites.DRIVER_VARIABLE]) is suites.Driver.OURS:
        # Imports Nova's driver, so not earlier.
        from tests.nova_suites import substitution
        substitution.substitute(
            pathlib.Path(os.environ[suites.FOLDER_VARIABLE]))
    # Its own: the one that is given is in the middle of its discovery.
    loader = unittest.TestLoader()
    for name in suite.tests:
        for module in sorted(set(_modules(name)) - set(suite.without)):
            tests.addTests(loader.loadTestsFromModule(
                importlib.import_module(module)))
    return tests


def _use_installed_paste_file() -> None:
    """Tells the API's tests where a wheel puts the file.

    They take it from beside the package, where Nova's source tree has it.
    """
    from nova.tests import fixtures

    class ConfFixture(fixtures.ConfFixture):
        def setUp(self) -> None:
            super().setUp()
            self.conf.set_default(
                'api_paste_config',
                os.path.join(sys.prefix, 'etc', 'nova', 'api-paste.ini'),
                group='wsgi')

    fixtures.ConfFixture = ConfFixture


def _modules(name: str) -> Iterator[str]:
    path = getattr(importlib.import_module(name), '__path__', None)
    if path is None:
        yield name
        return
    for module in pkgutil.iter_modules(path, name + '.'):
        if module.name.rpartition('.')[2].startswith('test_'):
            yield module.name
