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

"""The command nova-gpu-passthru."""

import argparse
from collections.abc import Sequence
import importlib.metadata
import importlib.util
import logging
import os
import pathlib
import sys
import warnings

from cliff import app
from cliff import commandmanager
from oslo_config import cfg

from nova_gpu_passthru import conf


_DISTRIBUTION = '/usr/share/nova/nova-dist.conf'


class Command(app.App):
    """Shows what nova_gpu_passthru makes of a host, and sets cards apart."""

    def __init__(self) -> None:
        super().__init__(
            description='Shows what the GPU passthrough driver makes of this '
                        'host.',
            version=importlib.metadata.version('nova-gpu-passthru'),
            command_manager=commandmanager.CommandManager(
                'nova_gpu_passthru.commands'),
            deferred_help=True)

    def build_option_parser(
            self, description: str | None, version: str | None,
            argparse_kwargs: dict[str, object] | None = None
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().build_option_parser(
            description, version, argparse_kwargs)
        parser.add_argument(
            '--config-file', action='append', metavar='FILE',
            help="the service's configuration, by default what nova-compute "
                 "(check --scheduler: nova-scheduler) finds in /etc/nova; may "
                 "be given several times")
        return parser

    def configure_logging(self) -> None:
        super().configure_logging()
        # What importing Nova makes its libraries say, each time.
        logging.getLogger('oslo_service').setLevel(logging.WARNING)
        warnings.filterwarnings('ignore', r'\s*Eventlet is deprecated')

    def config_files(self, program: str) -> list[str]:
        """Names the configuration files of one of Nova's programs."""
        if self.options.config_file is not None:
            return list(self.options.config_file)
        # As the program does. Some distributions add the third, and Red Hat's
        # units name the first.
        return [*filter(os.path.exists, [_DISTRIBUTION]),
                *cfg.find_config_files('nova', program),
                *cfg.find_config_files('nova', program,
                                       extension=f'/{program}.conf')]

    def read_config(self, program: str = 'nova-compute') -> cfg.ConfigOpts:
        """Reads the configuration that one of Nova's programs would have."""
        folders = []
        if self.options.config_file is None:
            folders = cfg.find_config_dirs('nova', program)
        config = cfg.ConfigOpts()
        register_opts(config)
        config([], project='nova',
               default_config_files=self.config_files(program),
               default_config_dirs=folders)
        return config


def register_opts(config: cfg.ConfigOpts) -> None:
    """Makes the options of a compute host known that the commands read."""
    # These are Nova's own.
    config.register_opt(cfg.StrOpt('compute_driver'))
    config.register_opt(cfg.StrOpt('pybasedir', default=_nova_folder()))
    config.register_opt(cfg.StrOpt('state_path', default='$pybasedir'))
    config.register_opt(cfg.StrOpt('connection_uri'), group='libvirt')
    config.register_opt(cfg.StrOpt('virt_type', default='kvm'),
                        group='libvirt')
    config.register_opt(cfg.MultiStrOpt('device_spec', default=[]),
                        group='pci')
    conf.register_opts(config)


def _nova_folder() -> str:
    """Where Nova is installed (nova.conf.paths), which is not imported."""
    spec = importlib.util.find_spec('nova')
    if spec is None or spec.origin is None:
        return '/var/lib/nova'
    return str(pathlib.Path(spec.origin).parents[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    :param argv: the arguments, those of the process by default
    :returns: the exit status
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    # Without any, cliff would open a shell of its own.
    status: int = Command().run(arguments or ['--help'])
    return status
