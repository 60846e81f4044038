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

"""Runs nova-gpu-passthru in this process."""

import io
import json
import logging
import os

import fixtures

from nova_gpu_passthru.cmd import main


class Command(fixtures.Fixture):
    """Runs the command; .status, .stdout and .stderr are of the last run."""

    def _setUp(self) -> None:
        root = logging.getLogger()
        self.addCleanup(setattr, root, 'handlers', list(root.handlers))
        self.addCleanup(root.setLevel, root.level)

    def run(self, *argv: str | os.PathLike[str]) -> str:
        """Runs the command to its end.

        :returns: what it printed
        """
        out, err = io.StringIO(), io.StringIO()
        with (fixtures.MonkeyPatch('sys.stdout', out),
              fixtures.MonkeyPatch('sys.stderr', err)):
            self.status = main.main([str(word) for word in argv])
        self.stdout, self.stderr = out.getvalue(), err.getvalue()
        return self.stdout

    def rows(self, *argv: str | os.PathLike[str]) -> list[dict[str, object]]:
        """What "list" says of each card."""
        rows: list[dict[str, object]] = json.loads(
            self.run(*argv, '--format', 'json'))
        return rows
