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

"""What the log asks of an operator is in the documentation."""

import ast
from collections.abc import Iterator
import pathlib
import re

import testtools

ROOT = pathlib.Path(__file__).parents[3]
LEVELS = ('warning', 'error', 'exception')


def _modules() -> Iterator[ast.Module]:
    for path in sorted((ROOT / 'nova_gpu_passthru').rglob('*.py')):
        yield ast.parse(path.read_text())


def logged() -> list[str]:
    """The messages that are logged as a warning or worse."""
    found = []
    for module in _modules():
        for node in ast.walk(module):
            if (isinstance(node, ast.Call) and
                    isinstance(node.func, ast.Attribute) and
                    node.func.attr in LEVELS and
                    isinstance(node.func.value, ast.Name) and
                    node.func.value.id == 'LOG'):
                found.append(ast.literal_eval(node.args[0]))
    return found


def texts() -> str:
    """All texts of the package."""
    return '\n'.join(node.value for module in _modules()
                     for node in ast.walk(module)
                     if isinstance(node, ast.Constant) and
                     isinstance(node.value, str))


def documented() -> list[list[str]]:
    """The messages that doc/source/operating.rst explains.

    :returns: the parts of each, between which something else may stand
    """
    page = (ROOT / 'doc/source/operating.rst').read_text()
    section = page.partition('Messages that ask for action')[2]
    return [message.split(' ... ') for line in section.splitlines()
            if line.startswith('``')
            for message in re.findall('``(.*?)``', line)]


class MessagesTest(testtools.TestCase):
    def test_every_warning_says_what_to_do(self) -> None:
        messages = documented()
        self.assertEqual([], [
            text for text in logged()
            # What is only handed on is an error that has its own text.
            if text != '%s' and not any(all(part in text for part in parts)
                                        for parts in messages)])

    def test_every_message_that_is_explained_exists(self) -> None:
        found = texts()
        self.assertEqual([], [part for parts in documented()
                              for part in parts if part not in found])

    def test_design_names_every_method_of_nova_that_is_overridden(
            self) -> None:
        page = (ROOT / 'doc/source/design.rst').read_text()
        hooks = re.findall(r'@nova_host.hook\n    def (\w+)', (
            ROOT / 'nova_gpu_passthru/driver.py').read_text())
        self.assertEqual(hooks, re.findall(r'   \* - ``(\w+)``\n', page))
