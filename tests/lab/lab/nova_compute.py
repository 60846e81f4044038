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

"""nova-compute, with the driver under test, in the virtual host."""

from collections.abc import Iterator
import contextlib
import pathlib
import re
import uuid

from lab import configuration
from lab import paths
from lab import steps
from lab import virtual_host

# Before it the service counts as "up" already, but has no compute node.
_READY = 'Final resource view'

_START_LIMIT = 600


class NovaCompute:
    """The service on one virtual host."""

    def __init__(self, host: virtual_host.VirtualHost,
                 logs: pathlib.Path) -> None:
        self._host = host
        self._etc = paths.RUN / 'host/etc'
        self._output = logs / 'nova-compute.output.log'
        self.log = logs / 'nova-compute.log'
        configuration.write_compute(self._etc, logs)
        # With this, a host that begins with a new disk is no other to Nova.
        (self._etc / 'compute_id').write_text(f'{uuid.uuid4()}\n')

    def start(self) -> None:
        """Start it and wait until it has reported its resources."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start it without waiting."""
        self._read_from = self._log_size()
        # A session of its own, so that one signal reaches its children too.
        # It finds its files in /etc/nova, as on any host.
        self._pid = self._host.spawn(
            f'ln -sfn {self._etc} /etc/nova; '
            f'exec setsid nova-compute >> {self._output} 2>&1 < /dev/null')

    def wait_ready(self) -> None:
        """Wait for the first report of resources since the start."""
        def check() -> bool:
            if _READY in self.new_log():
                return True
            if not self.is_running():
                raise steps.LabError(
                    f'nova-compute ended\n{steps.tail(self._output)}\n'
                    f'{steps.tail(self.log)}')
            return False

        steps.wait_for(check, 'nova-compute has reported nothing',
                       _START_LIMIT, self.log, interval=1)

    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._host.is_running(self._pid)

    def kill(self) -> None:
        """End it and its children with SIGKILL, as the OOM killer would."""
        self._host.run(f'kill -KILL -- -{self._pid}')
        steps.wait_for(lambda: not self.is_running(),
                       'nova-compute has not ended', 30)

    def stop(self) -> None:
        """End it in order."""
        self._host.run(f'kill {self._pid}')
        steps.wait_for(lambda: not self.is_running(),
                       'nova-compute has not ended', 120, self.log)

    def new_log(self) -> str:
        """What it has logged since the last start."""
        if not self._log_size():
            return ''
        with self.log.open('rb') as lines:
            lines.seek(self._read_from)
            return lines.read().decode(errors='replace')

    def _log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0


@contextlib.contextmanager
def watch_bindings(
        host: virtual_host.VirtualHost) -> Iterator[list[tuple[str, str]]]:
    """Collect (action, address) of all changes of drivers inside the block.

    The actions are the kernel's own: bind and unbind. The list is filled
    when the block ends.
    """
    seen: list[tuple[str, str]] = []
    host.run('udevadm monitor --kernel --subsystem-match=pci '
             '> /run/bindings 2> /dev/null < /dev/null & '
             'echo $! > /run/bindings.pid; '
             'until grep -q KERNEL /run/bindings; do sleep 0.1; done')
    yield seen
    text = host.run('kill $(cat /run/bindings.pid); cat /run/bindings')
    seen += re.findall(r'\b(bind|unbind) +\S*/(\S+) \(pci\)', text)
