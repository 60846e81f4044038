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

"""Decides which functions are GPUs and which go along with each.

Class numbers are those of the PCI Code and ID Assignment Specification; they
are compared exactly, for masks confuse a bridge with an NVSwitch.
"""

from collections.abc import Collection, Iterable, Mapping

from nova_gpu_passthru.host import pci
from nova_gpu_passthru.host import policy as host_policy

AMD, AMD_CPU, INTEL, NVIDIA = 0x1002, 0x1022, 0x8086, 0x10de

DISPLAY, SERIAL_BUS, ACCELERATOR = 0x03, 0x0c, 0x12
CONTROLLER_3D = 0x0302
HOST_BRIDGE, PCI_BRIDGE = 0x0600, 0x0604
AUDIO = frozenset((0x0401, 0x0403))

Functions = Mapping[pci.PCIAddress, pci.PCIFunction]


def is_gpu(function: pci.PCIFunction) -> bool:
    """Whether a function is a display or an accelerator that is a GPU.

    Other makers' accelerators use the class for what is no GPU, so there the
    vendor decides.
    """
    return (function.base_class == DISPLAY or
            function.base_class == ACCELERATOR and
            function.vendor in (AMD, NVIDIA))


def is_included(function: pci.PCIFunction,
                policy: host_policy.Policy) -> bool:
    """Whether the operator asks for a function that can be a card."""
    return (policy.include.names(function) and
            function.base_class in (DISPLAY, ACCELERATOR))


def is_bridge(function: pci.PCIFunction) -> bool:
    """Whether a function is a host bridge or a PCI-to-PCI bridge.

    0x0601 and 0x0680 (an NVSwitch, for one) are endpoints to vfio.
    """
    return function.subclass in (HOST_BRIDGE, PCI_BRIDGE)


def lets_go_of_group(bridge: pci.PCIFunction) -> bool:
    """Whether vfio can have the IOMMU group that a bridge is in.

    Since Linux 5.19 that depends on the bridge's driver, which must be one
    that sets driver_managed_dma (commits c7d469849747 and 70693f470848):
    the port driver and the stub drivers do, shpchp and the performance
    counters of host bridges do not.
    """
    return bridge.driver in (None, 'pcieport') or bridge.on_stub


def is_integrated(gpu: pci.PCIFunction, functions: Functions) -> bool:
    """Whether a GPU is part of the CPU.

    Intel's sits on the root bus, AMD's among the CPU's own functions.
    """
    if gpu.vendor == INTEL:
        return not gpu.bridges
    return gpu.vendor == AMD and any(
        f.vendor == AMD_CPU and f.address.in_slot_of(gpu.address)
        for f in functions.values())


def goes_along(function: pci.PCIFunction) -> bool:
    """Whether a function is of a kind that boards have beside their GPU."""
    return (is_gpu(function) or function.base_class == SERIAL_BUS or
            function.subclass in AUDIO)


def group(functions: Functions, policy: host_policy.Policy
          ) -> Iterable[tuple[pci.PCIFunction, tuple[pci.PCIFunction, ...]]]:
    """Puts the functions of each card together.

    :returns: for each candidate the function that makes it a GPU and all of
        its functions, in the order of addresses
    """
    for slot in _slots(functions):
        gpus = [f for f in slot if is_gpu(f) or is_included(f, policy)]
        # Virtual functions are candidates on their own: they may stand in
        # the slot of the function that serves them.
        for vf in (f for f in gpus if f.physfn is not None):
            yield vf, (vf,)
        main = next((f for f in gpus if f.physfn is None), None)
        if main is None:
            continue
        own = [f for f in slot if f.physfn is None]
        if is_integrated(main, functions):
            # The rest of the slot is the machine's USB and security.
            own = [f for f in own if f == main or f.vendor == main.vendor and
                   (f.base_class == DISPLAY or f.subclass in AUDIO)]
        own += _audio_on_board(main, functions)
        yield main, tuple(sorted(own, key=lambda f: f.address))


def _slots(functions: Functions) -> Collection[list[pci.PCIFunction]]:
    slots: dict[tuple[int, int, int], list[pci.PCIFunction]] = {}
    for address, function in functions.items():
        slots.setdefault((address.domain, address.bus, address.slot),
                         []).append(function)
    return slots.values()


def _audio_on_board(main: pci.PCIFunction,
                    functions: Functions) -> list[pci.PCIFunction]:
    """Finds audio that hangs beside a GPU off the board's own PCIe switch.

    Intel's Arc boards have display and audio below two ports of one switch.
    The switch is the board's own, not the machine's, where it has the GPU's
    maker and nothing else hangs off it.
    """
    if len(main.bridges) < 2:
        return []
    upstream_port = functions.get(main.bridges[-2])
    if upstream_port is None or upstream_port.vendor != main.vendor:
        return []
    beside = [f for f in functions.values()
              if upstream_port.address in f.bridges and not is_bridge(f) and
              not f.address.in_slot_of(main.address)]
    if all(f.subclass in AUDIO and f.vendor == main.vendor for f in beside):
        return beside
    return []
