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

"""nova-gpu-passthru check"""

import argparse
from collections.abc import Iterator
import pathlib

from cliff import lister
from oslo_upgradecheck import upgradecheck

from nova_gpu_passthru.cmd import findings
from nova_gpu_passthru import exceptions

# As of "nova-status upgrade check", where none of the codes means it.
_UNEXPECTED = 255


class Check(lister.Lister):
    """Say what stands between this host and working GPU passthrough.

    Each row is a problem with its cure. The exit status is that of
    "nova-status upgrade check": 0 if there is none, 1 if there are only
    warnings, which cost one card or one flavor, 2 if there is a failure, and
    255 if this could not be found out.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--scheduler', action='store_true',
            help="look at a scheduler's nova.conf, and at the flavors and "
                 "hosts in the database that it names")
        parser.add_argument(
            '--flavors', metavar='FILE', type=pathlib.Path,
            help='with --scheduler: read the flavors from what "openstack '
                 'flavor list --all --long -f json" printed, and ask no '
                 'database')
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        self._found: list[findings.Finding] = []
        try:
            super().run(parsed_args)
        except Exception as error:
            if self.app.options.debug:
                raise
            self.app.stderr.write(f'{error}\n')
            return _UNEXPECTED
        return int(max((finding.code for finding in self._found),
                       default=upgradecheck.Code.SUCCESS))

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        if parsed_args.scheduler:
            found = self._look_at_scheduler(parsed_args.flavors)
        elif parsed_args.flavors is not None:
            raise exceptions.GPUPassthruError(
                '--flavors needs --scheduler: a host does not read flavors.')
        else:
            found = self._look_at_host()
        self._found = list(found)
        if not self._found:
            self.app.stderr.write('Nothing stands in the way.\n')
        return findings.COLUMNS, [finding.row() for finding in self._found]

    def _look_at_host(self) -> Iterator[findings.Finding]:
        # Only here: there may be no libvirt where a scheduler runs.
        from nova_gpu_passthru.cmd import host_findings
        yield from findings.of_nova()
        yield from host_findings.of_host(self.app.read_config())

    def _look_at_scheduler(self, file: pathlib.Path | None
                           ) -> Iterator[findings.Finding]:
        yield from findings.of_nova()
        # Only here, for they import Nova, which takes a while.
        from nova_gpu_passthru.cmd import cloud
        from nova_gpu_passthru.cmd import scheduler_findings
        config = self.app.read_config('nova-scheduler')
        scheduler_findings.register_opts(config)
        yield from scheduler_findings.of_filters(config)
        yield from scheduler_findings.of_weighers(config)
        if file is not None:
            seen = cloud.read_file(file)
        else:
            try:
                seen = cloud.read_database(self.app.config_files(
                    'nova-scheduler'))
            except exceptions.Unreadable as error:
                yield findings.Finding(
                    'flavors', str(error),
                    'give the nova.conf of a scheduler by --config-file, or '
                    'the flavors by --flavors', findings.WARNING)
                return
        for one in seen.flavors:
            yield from scheduler_findings.of_flavor(one, config)
        if seen.told is not None:
            yield from scheduler_findings.of_hosts(seen.flavors, seen.told)
