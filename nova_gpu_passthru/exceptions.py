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

"""What this package raises.

Below the driver nothing raises Nova's exceptions: host/ and guest/ are used
without Nova too, by the command. The driver turns them into Nova's.
"""


class GPUPassthruError(Exception):
    """Base of all errors of this package; str() is a full sentence."""


class InvalidPCIAddress(GPUPassthruError, ValueError):
    """A text that should name a PCI function does not."""


class InvalidOption(GPUPassthruError, ValueError):
    """An option has a value that it cannot have."""


class InvalidDeviceEntry(GPUPassthruError, ValueError):
    """An entry of [gpu_passthru] include or exclude cannot be understood."""


class Unreadable(GPUPassthruError):
    """Something of the host that decides about a card cannot be read."""


class InvalidFlavor(GPUPassthruError, ValueError):
    """What a flavor asks for cannot be understood, or contradicts itself."""


class DetachFailed(GPUPassthruError):
    """A card could not be taken from its host driver."""


class UnknownCard(GPUPassthruError):
    """An address that should name a card of this host does not."""


class NotOffered(GPUPassthruError):
    """A card cannot be given back by the operator's command."""


class RecordsUnavailable(GPUPassthruError):
    """What is remembered of cards cannot be read or changed."""


class InvalidReleaseHook(GPUPassthruError, ValueError):
    """What [gpu_passthru] release_hook names cannot be run."""


class ReleaseFailed(GPUPassthruError):
    """A card was not cleaned after its guest went."""


class HotplugFailed(GPUPassthruError):
    """A card could not be taken out of a running guest."""


class NotEnoughGPUs(GPUPassthruError):
    """This host cannot give an instance the cards that it asks for."""


class CannotListen(GPUPassthruError):
    """The exporter's address or port cannot be had."""


class UnsupportedGuest(GPUPassthruError):
    """A guest is described so that it cannot have its cards."""


class UnsupportedNova(GPUPassthruError):
    """The installed Nova is older or newer than the driver knows."""
