#!/bin/bash
#
# DevStack plugin: installs nova_gpu_passthru and configures Nova for it.
#
# stack.sh sources this file in each of its phases, with the phase as its
# arguments. nova-compute's own file, nova-cpu.conf, is made from nova.conf
# when nova-compute is started, after the phase post-config.
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

# What stack.sh and its functions define.
# shellcheck disable=SC2154
NOVA_GPU_PASSTHRU_DIR=${NOVA_GPU_PASSTHRU_DIR:-$DEST/nova-gpu-passthru}

function install_nova_gpu_passthru {
    setup_develop "$NOVA_GPU_PASSTHRU_DIR"
}

# Adds a value to a list, if it is not in it.
function nova_gpu_passthru_add_to_list {
    local option=$1 default=$2 value=$3
    local list
    list=$(iniget "$NOVA_CONF" filter_scheduler "$option")
    list=${list:-$default}
    case ,${list// /}, in
        *,"$value",*) ;;
        *) iniset "$NOVA_CONF" filter_scheduler "$option" "$list,$value" ;;
    esac
}

function configure_nova_gpu_passthru_scheduler {
    local all=nova.scheduler.filters.all_filters
    local ours=nova_gpu_passthru.scheduler.filters.FreeGPUsFilter
    local available
    available=$(iniget_multiline "$NOVA_CONF" filter_scheduler \
        available_filters)
    if [[ " ${available:=$all} " != *" $ours "* ]]; then
        # Each word is a line.
        # shellcheck disable=SC2086
        iniset_multiline "$NOVA_CONF" filter_scheduler available_filters \
            $available $ours
    fi
    nova_gpu_passthru_add_to_list enabled_filters \
        "${NOVA_FILTERS:-ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter}" \
        FreeGPUsFilter
    nova_gpu_passthru_add_to_list weight_classes \
        nova.scheduler.weights.all_weighers \
        nova_gpu_passthru.scheduler.weights.all_weighers
}

function configure_nova_gpu_passthru_compute {
    iniset "$NOVA_CONF" DEFAULT compute_driver \
        nova_gpu_passthru.driver.GPUPassthruDriver
    iniset "$NOVA_CONF" gpu_passthru boot_vga "$NOVA_GPU_PASSTHRU_BOOT_VGA"
    # An option that was set by an earlier run has to go as well.
    iniset "$NOVA_CONF" gpu_passthru include "$NOVA_GPU_PASSTHRU_INCLUDE"
    iniset "$NOVA_CONF" gpu_passthru exclude "$NOVA_GPU_PASSTHRU_EXCLUDE"
}

function create_nova_gpu_passthru_flavor {
    local name=$NOVA_GPU_PASSTHRU_FLAVOR
    local properties=(--property 'free_gpus=>=1')
    if [[ "$NOVA_GPU_PASSTHRU_PLACEMENT" == True ]]; then
        properties+=(--property resources:PGPU=1)
    fi
    if ! openstack --os-cloud devstack-admin flavor show "$name" \
            > /dev/null 2>&1; then
        openstack --os-cloud devstack-admin flavor create --ram 512 --disk 1 \
            --vcpus 1 "$name"
    fi
    openstack --os-cloud devstack-admin flavor set "${properties[@]}" "$name"
}

if [[ "$1" == stack && "$2" == install ]]; then
    echo_summary 'Installing nova_gpu_passthru'
    install_nova_gpu_passthru

elif [[ "$1" == stack && "$2" == post-config ]]; then
    echo_summary 'Configuring nova_gpu_passthru'
    if is_service_enabled n-sch; then
        configure_nova_gpu_passthru_scheduler
    fi
    if is_service_enabled n-cpu; then
        configure_nova_gpu_passthru_compute
    fi

elif [[ "$1" == stack && "$2" == extra ]]; then
    if is_service_enabled n-api && [[ -n "$NOVA_GPU_PASSTHRU_FLAVOR" ]]; then
        echo_summary "Creating flavor $NOVA_GPU_PASSTHRU_FLAVOR"
        create_nova_gpu_passthru_flavor
    fi

# The cards stay on vfio-pci, as they do when nova-compute is stopped.
elif [[ "$1" == unstack ]]; then
    :
elif [[ "$1" == clean ]]; then
    pip_uninstall nova-gpu-passthru
fi
