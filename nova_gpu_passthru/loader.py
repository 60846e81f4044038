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

"""Lets nova-compute load this package as its compute driver.

Nova imports nova.virt.<compute_driver> and nothing else
(nova.virt.driver.load_compute_driver), and since Nova 31.0 no other folder
can extend the package nova.virt. Before that nova-compute calls
os_vif.initialize() (nova.cmd.compute.main), which loads every entry point of
the group os_vif: this module. On import it installs a finder under which
nova.virt.nova_gpu_passthru *is* nova_gpu_passthru: the same module objects.

Other services load os-vif too, so nothing of Nova is imported here. Checked
with Nova 31 to 34.
"""

from collections.abc import Sequence
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

from os_vif import objects
from os_vif import plugin

_NOVA_VIRT = 'nova.virt.'
_PACKAGE = __name__.partition('.')[0]
_ALIAS = _NOVA_VIRT + _PACKAGE


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds nova.virt.nova_gpu_passthru and all that is below it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: types.ModuleType | None = None
                  ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _ALIAS and not fullname.startswith(_ALIAS + '.'):
            return None
        name = fullname.removeprefix(_NOVA_VIRT)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name == name:
                return None
            raise
        return importlib.machinery.ModuleSpec(
            fullname, self, is_package=hasattr(module, '__path__'))

    def create_module(self,
                      spec: importlib.machinery.ModuleSpec) -> None:
        """Leaves it to Python to make a module, which nobody will see."""

    def exec_module(self, module: types.ModuleType) -> None:
        # Python hands out what sys.modules has after this.
        name = module.__name__
        sys.modules[name] = sys.modules[name.removeprefix(_NOVA_VIRT)]


def install() -> None:
    """Installs the finder; may be called again.

    It has to be the first: the alias has the package's own __path__, from
    which Python's finder would load a second copy of every module.
    """
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())


install()


class NoVIFs(plugin.PluginBase):
    """An os-vif plugin that handles no VIF; os-vif never calls it for one."""

    def describe(self) -> 'objects.host_info.HostPluginInfo':
        return objects.host_info.HostPluginInfo(plugin_name=_PACKAGE,
                                                vif_info=[])

    def plug(self, vif: 'objects.vif.VIFBase',
             instance_info: 'objects.instance_info.InstanceInfo') -> None:
        raise NotImplementedError()

    def unplug(self, vif: 'objects.vif.VIFBase',
               instance_info: 'objects.instance_info.InstanceInfo') -> None:
        raise NotImplementedError()
