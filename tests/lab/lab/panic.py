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

"""Reads the end of a kernel from what it wrote to its console."""

import re

_PANIC = 'Kernel panic - not syncing'

# What comes first where a fault of the kernel's own ends in a panic.
_FAULT = re.compile(
    r'^.*(BUG: |Oops: |general protection fault|Kernel panic - ).*$', re.M)

# "[  298.822056]  kvm_vcpu_reset+0x7a/0x5b0 [kvm]". A "?" before the name
# marks an address that only lay on the stack (the kernel's
# Documentation/x86/kernel-stacks.rst). Lines end as on a serial console.
_KVM_FRAME = re.compile(
    r'^\[[ .\d]+\]  \w\S*\+0x[\da-f]+/0x[\da-f]+ \[kvm(_amd)?\]\r?$',
    re.M)


def trace(console: str) -> str:
    """What a kernel that panicked wrote of it; empty if it did not.

    :param console: what it has written since it was booted
    """
    first = _FAULT.search(console)
    if first is None or _PANIC not in console:
        return ''
    return console[first.start():]


def is_in_kvm(console: str) -> bool:
    """Whether the kernel panicked in its code for guests' virtual CPUs.

    No process of the virtual host can cause that: the emulation of AMD's SVM
    below the kernel has gone wrong.
    """
    return bool(_KVM_FRAME.search(trace(console)))
