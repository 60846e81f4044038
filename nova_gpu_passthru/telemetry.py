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

"""Counts what happens inside nova-compute, for Prometheus.

nova-compute opens no port for this. It writes its numbers into a file, in the
text format of Prometheus, that "nova-gpu-passthru exporter" serves with what
it sees of the host by itself; node_exporter's textfile collector can read it
too. prometheus_client is in every service of Nova already: oslo.messaging
needs it.
"""

from collections.abc import Iterator
import contextlib
import os
import time

from oslo_log import log as logging
import prometheus_client

LOG = logging.getLogger(__name__)

PREFIX = 'nova_gpu_passthru'


class Telemetry:
    """The numbers of one nova-compute.

    :ivar registry: where they are collected
    """

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._duration = prometheus_client.Histogram(
            f'{PREFIX}_action_duration_seconds',
            'How long actions took that nova-compute did to cards; those that '
            'failed are not in it.', ['action'], registry=self.registry,
            # A claim takes milliseconds, a driver may let go of a card in a
            # minute.
            buckets=(.001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60, 120))
        self._failures = prometheus_client.Counter(
            f'{PREFIX}_action_failures',
            'Actions of nova-compute on cards that failed.',
            ['action', 'reason'], registry=self.registry)

    @contextlib.contextmanager
    def timed(self, action: str) -> Iterator[None]:
        """Measures an action on cards, and counts it as failed if it raises.

        :param action: a word such as detach
        """
        started = time.monotonic()
        try:
            yield
        except Exception as error:
            self.failed(action, type(error).__name__)
            raise
        self._duration.labels(action).observe(time.monotonic() - started)

    def failed(self, action: str, reason: str) -> None:
        """Counts an action that failed.

        :param action: a word such as detach
        :param reason: one of few, for each becomes a time series
        """
        self._failures.labels(action, reason).inc()

    def write(self, file: str) -> None:
        """Replaces a file by the numbers as they are now.

        What reads it sees the old numbers or the new ones, never a part. If
        it cannot be written, that is only logged.

        :param file: its path; nothing is written if it is empty
        """
        if not file:
            return
        try:
            prometheus_client.write_to_textfile(file, self.registry)
        except OSError as error:
            LOG.warning('The metrics cannot be written to %(file)s: '
                        '%(error)s. Make its folder writable for '
                        'nova-compute, or set [gpu_passthru] metrics_file to '
                        'another or to nothing.',
                        {'file': os.path.abspath(file), 'error': error})
