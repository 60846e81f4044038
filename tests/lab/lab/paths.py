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

"""Where the lab finds its own files and where it writes."""

import os
import pathlib
import sys

LAB = pathlib.Path(__file__).resolve().parent.parent
CHECKOUT = LAB.parent.parent

WORK = pathlib.Path(
    os.environ.get('NOVA_GPU_LAB')
    or pathlib.Path.home() / '.cache/nova-gpu-passthru-lab').resolve()

CACHE = WORK / 'cache'
"""What is built once, a folder per result (see cache.py)."""

RUN = WORK / 'run'
"""The state of the current run: databases, disk of the virtual host."""

PACKAGE = RUN / 'package'
"""The package under test, installed apart from the cached environment."""

LOGS = WORK / 'logs'
"""A folder of logs per run."""

VENV = pathlib.Path(sys.prefix)
"""Nova's virtual environment, once the lab runs in it (__main__.py)."""

LOCK = WORK / 'lock'
