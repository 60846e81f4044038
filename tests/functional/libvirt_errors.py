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


"""Errors as libvirt raises them, of the class that Nova's fake has."""

from nova.tests.fixtures import libvirt as fakelibvirt

# What Nova's fake does not name.
VIR_ERR_OPERATION_FAILED = 9
VIR_ERR_DEVICE_MISSING = 99


def error(text: str, code: int) -> fakelibvirt.libvirtError:
    """An error as libvirt raises it."""
    return fakelibvirt.make_libvirtError(
        fakelibvirt.libvirtError, text, error_code=code, error_message=text,
        error_domain=fakelibvirt.VIR_FROM_QEMU)


def invalid(text: str) -> fakelibvirt.libvirtError:
    return error(f'Requested operation is not valid: {text}',
                 fakelibvirt.VIR_ERR_OPERATION_INVALID)
