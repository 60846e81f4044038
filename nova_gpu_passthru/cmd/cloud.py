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

"""The flavors of a cloud and what its hosts report, for the command."""

from collections.abc import Mapping, Sequence
import json
import pathlib
import types
from typing import Any, NamedTuple

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.scheduler import reports


class NamedFlavor(NamedTuple):
    """A flavor's name and its extra specs."""

    name: str
    extra_specs: Mapping[str, str]


class Cloud(NamedTuple):
    """What can be read of a cloud.

    :ivar told: what each GPU host reports; None where that is not known
    """

    flavors: Sequence[NamedFlavor]
    told: Sequence[reports.Report] | None = None


def read_file(file: pathlib.Path) -> Cloud:
    """Reads what "openstack flavor list --all --long -f json" printed.

    :raises Unreadable: if that cannot be found in the file
    """
    try:
        return Cloud([NamedFlavor(str(row['Name']), _specs(row['Properties']))
                      for row in json.loads(file.read_text())])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise exceptions.Unreadable(
            f'{file} is not what "openstack flavor list --all --long -f json" '
            f'prints: {type(error).__name__} {error}.') from error


def _specs(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in (value or {}).items()}


def read_database(config_files: Sequence[str]) -> Cloud:
    """Reads what a scheduler reads, from the databases of Nova.

    :param config_files: of a scheduler, with [api_database] connection
    :raises Unreadable: if the databases cannot be reached
    """
    from nova import config
    from nova import context as nova_context
    from nova.db.api import api as api_database
    from nova.db.main import api as main_database
    from nova import objects
    from oslo_db import exception as db_exception
    from sqlalchemy import exc as sqlalchemy_exc

    arguments = [word for file in config_files
                 for word in ('--config-file', file)]
    config.parse_args(['nova-scheduler', *arguments], configure_db=False)
    for group, database in (('api_database', api_database),
                            ('database', main_database)):
        # A service waits for its database, a person wants to know.
        config.CONF.set_override('max_retries', 1, group=group)
        database.configure(config.CONF)
    objects.register_all()
    context = nova_context.get_admin_context()
    try:
        flavors = [NamedFlavor(flavor.name, flavor.extra_specs) for flavor in
                   objects.FlavorList.get_all(context)]
        told = []
        for cell in objects.CellMappingList.get_all(context):
            if cell.is_cell0():
                continue
            with nova_context.target_cell(context, cell) as in_cell:
                told += [node.stats or {} for node in
                         objects.ComputeNodeList.get_all(in_cell)]
    except (db_exception.DBError, db_exception.CantStartEngineError,
            sqlalchemy_exc.SQLAlchemyError) as error:
        raise exceptions.Unreadable(
            f"Nova's databases cannot be read: {error}") from error
    return Cloud(flavors, [_report(stats) for stats in told
                           if reports.KEY in stats])


def _report(stats: Mapping[str, str]) -> reports.Report:
    try:
        return reports.read(types.SimpleNamespace(stats=stats))
    except ValueError:
        return reports.Report()
