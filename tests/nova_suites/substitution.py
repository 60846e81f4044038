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

"""Puts GPUPassthruDriver in the place of Nova's LibvirtDriver."""

import pathlib
from typing import Any

import nova.virt.libvirt
import nova.virt.libvirt.driver

from nova_gpu_passthru import driver
from tests.nova_suites import journal


def substitute(folder: pathlib.Path) -> None:
    """Makes every name that Nova has for its class mean ours.

    Before the tests are imported: their decorators patch the class.

    :param folder: where the drivers that are made are counted
    """
    sysfs_root = folder / 'sys'
    sysfs_root.mkdir(exist_ok=True)
    count_one = journal.writer(folder)

    stock = nova.virt.libvirt.driver.LibvirtDriver

    class Counted(driver.GPUPassthruDriver):
        _begun = False

        def __init__(self, virtapi: Any, read_only: bool = False) -> None:
            if self._begun:
                # Nova 31 and 32 call super(LibvirtDriver, self).__init__(),
                # and that name means Driver, whose super this is.
                super(stock, self).__init__(virtapi)
                return
            self._begun = True
            count_one()
            super().__init__(virtapi, read_only)

    class Driver(Counted):
        pass

    # fixtures.MonkeyPatch takes a static method that the class inherits for
    # an ordinary one, and calls what replaces it with self.
    for name, value in vars(stock).items():
        if (isinstance(value, (classmethod, staticmethod)) and
                name not in vars(driver.GPUPassthruDriver)):
            setattr(Driver, name, value)
    # A host without GPUs, whatever machine this is.
    Driver.sysfs_root = str(sysfs_root)
    Driver.host_root = str(folder)
    # test_load_new_drivers asks for it.
    Driver.__name__ = 'LibvirtDriver'
    nova.virt.libvirt.driver.LibvirtDriver = Driver
    # compute_driver = libvirt.LibvirtDriver finds this one.
    nova.virt.libvirt.LibvirtDriver = Driver
