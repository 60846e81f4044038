#!/bin/sh
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

# Writes constraints/nova-NN.txt anew (tox -e constraints).
#
# A Nova series is tested with the libraries of its own time, as OpenStack's
# stable branches are: newer ones were never run with it. libvirt-python is
# built from source for the libvirt that is installed, whatever its version,
# so all have the newest one.

set -eu
cd "$(dirname "$0")/.."

# series, oldest Python, newest date of the libraries, newest date of Nova
update() {
    # The output must not exist: uv would keep the versions that it lists.
    rm -f "constraints/nova-$1.txt"
    uv pip compile --quiet --universal \
        --no-header --no-annotate --python-version "$2" \
        --exclude-newer "$3" --exclude-newer-package "nova=$4" \
        --exclude-newer-package "libvirt-python=$4" \
        --output-file "constraints/nova-$1.txt" \
        "constraints/nova-$1.in" constraints/checkers.in \
        requirements.txt test-requirements.txt doc/requirements.txt
    # The driver runs on Linux only.
    sed -i "/sys_platform == '\(win32\|darwin\)'/d" \
        "constraints/nova-$1.txt"
}

today=$(date +%F)
update 31 3.10 2025-05-15 "$today"
update 32 3.10 2025-11-15 "$today"
update 33 3.10 2026-05-15 "$today"
update 34 3.11 "$today" "$today"
