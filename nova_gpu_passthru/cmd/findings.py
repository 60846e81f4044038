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

"""What can stand in the way of GPU passthrough, and the cures."""

from collections.abc import Iterator
import importlib.metadata
from typing import NamedTuple

from oslo_upgradecheck import upgradecheck

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import releases

WARNING = upgradecheck.Code.WARNING
FAILURE = upgradecheck.Code.FAILURE

COLUMNS = ('result', 'subject', 'problem', 'cure')


class Finding(NamedTuple):
    """A problem and what to do about it.

    :ivar code: WARNING where the rest works all the same
    """

    subject: str
    problem: str
    cure: str
    code: upgradecheck.Code = FAILURE

    def row(self) -> tuple[str, ...]:
        """What is shown, in the order of COLUMNS."""
        return (self.code.name.lower(), self.subject, self.problem, self.cure)


def of_nova() -> Iterator[Finding]:
    """Looks whether there is a Nova that the driver works with."""
    try:
        releases.check(importlib.metadata.version('nova'))
    except importlib.metadata.PackageNotFoundError:
        yield Finding('Nova', 'nova is not installed beside this package',
                      "install nova-gpu-passthru into nova-compute's Python "
                      'environment')
    except exceptions.UnsupportedNova as error:
        yield Finding('Nova', str(error), 'install a matching release')
