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

"""nova-gpu-passthru exporter"""

import argparse
import dataclasses
import pathlib
import signal
import threading

from cliff import command
import prometheus_client

from nova_gpu_passthru.cmd import host_view
from nova_gpu_passthru.cmd import metrics
from nova_gpu_passthru import exceptions

# None of 9100 to 9999 is left in Prometheus' list of default ports.
PORT = 19944


class Exporter(command.Command):
    """Serve metrics of this host to Prometheus, until it is stopped.

    The host is read anew at each scrape, without nova-compute; what happens
    inside nova-compute is read from the file that it writes (metrics_file).
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        host_view.add_arguments(parser)
        parser.add_argument(
            '--address', default='127.0.0.1',
            help='listen on this address, by default only for this host: '
                 'there is no password, and the metrics name guests')
        parser.add_argument('--port', type=int, default=PORT,
                            help=f'listen on this port, by default {PORT}; 0 '
                                 f'for any that is free')
        parser.add_argument(
            '--metrics-file', metavar='FILE', type=pathlib.Path,
            help='what nova-compute writes, by default where its '
                 'configuration says')
        parser.add_argument(
            '--libvirt-timeout', metavar='SECONDS', type=float, default=5,
            help='how long a scrape waits for libvirt, by default 5')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        host = host_view.host_of(self.app, parsed_args.sysfs)
        file = parsed_args.metrics_file
        if file is None:
            written = self.app.read_config().gpu_passthru.metrics_file
            file = pathlib.Path(written) if written else None
        registry = make_registry(host, file, parsed_args.libvirt_timeout)
        try:
            server, _ = prometheus_client.start_http_server(
                parsed_args.port, parsed_args.address, registry)
        except (OSError, OverflowError) as error:
            raise exceptions.CannotListen(
                f'The exporter cannot listen on {parsed_args.address} port '
                f'{parsed_args.port}: {error}. Choose others by --address '
                f'and --port.') from error
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        self.app.stdout.write(f'Listening on {parsed_args.address} port '
                              f'{server.server_port}\n')
        self.app.stdout.flush()
        stop.wait()
        server.shutdown()
        server.server_close()


def make_registry(host: host_view.Host, file: pathlib.Path | None,
                  libvirt_timeout: float
                  ) -> prometheus_client.CollectorRegistry:
    """Makes what a scrape collects.

    :param host: where it is read
    :param file: what nova-compute writes, if anything
    :param libvirt_timeout: seconds that a scrape waits for libvirt
    """
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics.HostCollector(dataclasses.replace(
        host, read_domains=metrics.TimeLimited(host.read_domains,
                                               libvirt_timeout))))
    if file is not None:
        registry.register(metrics.ComputeCollector(file))
    return registry
