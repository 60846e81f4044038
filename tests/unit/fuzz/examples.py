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

"""How much is tried, and with which hosts."""

import os

import hypothesis
from hypothesis import strategies

# "tox -e fuzz" tries more, and other ones each time. The gate tries the same
# ones each time.
_EXAMPLES = int(os.environ.get('GPU_PASSTHRU_FUZZ_EXAMPLES', '0'))

SETTINGS = hypothesis.settings(
    deadline=None, database=None,
    derandomize=not _EXAMPLES, max_examples=_EXAMPLES or 100,
    suppress_health_check=list(hypothesis.HealthCheck))

HOST = """
0000:00:00.0 060000 8086:2020 group=0
0000:00:1f.0 060100 8086:a2c6 group=8
0000:64:00.0 060400 8086:2030 driver=pcieport group=1
0000:65:00.0 030000 10de:1ff2 driver=nvidia group=2 numa=0 boot_vga=0 \
memory=8 numvfs=0 below=0000:64:00.0
0000:65:00.1 040300 10de:10fa driver=snd_hda_intel group=2 numa=0 \
below=0000:64:00.0
0000:66:00.0 030200 10de:2330 driver=vfio-pci group=3 numa=1 memory=80
0000:67:00.0 030200 10de:2330 group=4
0000:68:00.0 060400 10b5:8747 driver=pcieport group=5
0000:69:00.0 120000 1002:74a5 driver=amdgpu group=5 below=0000:68:00.0
0000:6a:00.0 120000 1002:74a5 driver=amdgpu group=5 below=0000:68:00.0
0000:6b:00.0 020000 15b3:101b driver=mlx5_core group=6 numvfs=2
0000:6c:00.0 030200 10de:20b5 driver=nvidia group=7 numvfs=1
0000:6c:00.4 030200 10de:20b5 group=9 physfn=0000:6c:00.0
0000:6d:00.0 030000 1a03:2000 driver=ast group=10 boot_vga=1
"""
"""Each kind of function that discovery tells from the others."""

ADDRESSES = tuple(line.split()[0] for line in HOST.splitlines()
                  if line.startswith('0000:'))

NUMBERS = strategies.one_of(
    strategies.integers().map(str), strategies.integers(0).map(hex),
    strategies.integers(0, 0xffffff).map(lambda n: f'{n:#08x}'))
"""Texts that read as numbers, most of them senseless."""
