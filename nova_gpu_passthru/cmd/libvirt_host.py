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

"""Reads the domains of this host for the command."""

import libvirt
from oslo_config import cfg

from nova_gpu_passthru.guest import domain
from nova_gpu_passthru.host import hypervisor


def read_domains(config: cfg.ConfigOpts) -> list[domain.DomainDevices]:
    """Reads what each domain of this host holds.

    :param config: with [libvirt] connection_uri, as Nova has it
    :raises libvirt.libvirtError: if libvirt does not answer
    """
    # libvirt prints errors to stderr unless a handler takes them.
    libvirt.registerErrorHandler(lambda *_: None, None)
    # Not libvirt's own default, which is a session of the user's.
    uri = config.libvirt.connection_uri or 'qemu:///system'
    connection = hypervisor.Connection(libvirt.openReadOnly(uri))
    return list(domain.read_all(connection.domains()).values())
