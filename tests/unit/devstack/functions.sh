# What stands for DevStack's functions. Each call of a command that would
# change the machine is a line of $CALLS.
#
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

# shellcheck shell=bash
# shellcheck disable=SC2034
DEST=/opt/stack

function iniset { "$PYTHON" "$INI" set "$@"; }
function iniset_multiline { "$PYTHON" "$INI" set "$@"; }
# The last of several values, and all of them in one line.
function iniget { "$PYTHON" "$INI" get "$@" | tail -n 1; }
function iniget_multiline { "$PYTHON" "$INI" get "$@" | xargs; }

function is_service_enabled {
    case " $SERVICES " in *" $1 "*) ;; *) return 1 ;; esac
}
function echo_summary { echo "$@"; }
function setup_develop { echo "setup_develop $*" >> "$CALLS"; }
function pip_uninstall { echo "pip_uninstall $*" >> "$CALLS"; }
function openstack {
    echo "openstack $*" >> "$CALLS"
    case " $* " in *' flavor show '*) return "$FLAVOR_IS_MISSING" ;; esac
}
