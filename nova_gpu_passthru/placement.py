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

"""Pools of cards as resource providers.

All cards of one model on one host are one provider below the host's own, with
an inventory of PGPU and the model as a trait: a request for several GPUs then
has one allocation candidate a host. With a provider for each card, half of
eight cards would make 70, and four request groups 1680.
"""

import collections
from collections.abc import Collection, Iterable, Mapping
import dataclasses
from typing import Any
import urllib.parse

from keystoneauth1 import exceptions as keystone_exceptions
from nova.compute import provider_tree
from nova import context as nova_context
from nova import exception
from nova import objects
import os_resource_classes as resource_classes
from oslo_log import log as logging

from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.host import pools as host_pools
from nova_gpu_passthru.scheduler import reports

LOG = logging.getLogger(__name__)

PGPU = resource_classes.PGPU


def trait_of(model: str) -> str:
    """The trait that a flavor can require to get a model.

    :param model: vendor and device id, such as 10de:2330
    """
    return f'CUSTOM_GPU_{model.replace(":", "_").upper()}'


class Pools:
    """The pools of this host in Placement.

    :param virtapi: Nova's, whose reportclient asks Placement
    """

    def __init__(self, virtapi: Any) -> None:
        self._virtapi = virtapi

    def update(self, tree: provider_tree.ProviderTree, nodename: str,
               pools: Iterable[host_pools.Pool]) -> None:
        """Writes the pools into the tree that Nova is about to send.

        While Placement does not tell what is allocated from a pool, that pool
        is left as it is: nothing here keeps Nova from reporting the host's
        other resources.

        :param tree: of the compute node
        :param nodename: the compute node's name
        :param pools: all pools of this host
        """
        by_name = {_name(nodename, pool.model): pool for pool in pools}
        known = {tree.data(uuid).name
                 for uuid in tree.get_provider_uuids_in_tree(nodename)}
        for name in sorted(known | by_name.keys()):
            model = _model(nodename, name)
            if model is None:
                continue
            pool = by_name.get(name, host_pools.Pool(model))
            try:
                self._update_pool(tree, nodename, name, pool)
            except (keystone_exceptions.ClientException,
                    exception.NovaException) as error:
                LOG.warning('Placement does not tell what is allocated from '
                            '%(name)s, so that pool stays as it is: %(error)s',
                            {'name': name, 'error': error})

    def allocated_to(self, consumer: str, request: flavor.GPURequest,
                     nodename: str, models: Collection[str],
                     had: Mapping[str, int]) -> flavor.GPURequest:
        """Adds to a request from which pools Placement gave the cards.

        :param consumer: the instance's uuid
        :param request: what it asks for
        :param nodename: the compute node's name
        :param models: of which models this host has cards for guests
        :param had: how many cards of each model the instance has here
            already, which will do without an answer
        :raises NotEnoughGPUs: if Placement does not tell, and the host has
            cards of several models
        """
        by_model: Mapping[str, int] = {}
        try:
            by_model = self._allocated_models(consumer, nodename)
        except (keystone_exceptions.ClientException,
                exception.NovaException) as error:
            answer = str(error)
        else:
            answer = 'it allocated another number'
        if sum(by_model.values()) != request.count:
            if not had and len(models) > 1:
                raise exceptions.NotEnoughGPUs(
                    f'Placement does not tell which GPUs instance {consumer} '
                    f'was given, and this host has several models: {answer}.')
            by_model = {} if request.model else had
        return dataclasses.replace(request, allocated=by_model)

    def _allocated_models(self, consumer: str,
                          nodename: str) -> dict[str, int]:
        """Reads what is allocated to an instance on this host, by model."""
        context = nova_context.get_admin_context()
        reportclient = self._virtapi.reportclient
        allocations = reportclient.get_allocs_for_consumer(
            context, consumer)['allocations']
        found = {}
        for provider, allocation in allocations.items():
            if PGPU in allocation['resources']:
                # By its name, which Nova has at hand or asks for: guests are
                # started before Nova lets the pools be updated, and a pool
                # may be of a model whose last card was replaced.
                model = _model(nodename, reportclient
                               .get_resource_provider_name(context, provider))
                if model is not None:
                    found[model] = allocation['resources'][PGPU]
        return found

    def _update_pool(self, tree: provider_tree.ProviderTree, nodename: str,
                     name: str, pool: host_pools.Pool) -> None:
        allocated: Mapping[str, int] = {}
        if tree.exists(name):
            uuid = tree.data(name).uuid
            allocated = self._allocated(uuid)
        used = sum(allocated.values())
        total = max(pool.total, used)
        if total == 0:
            # Placement refuses an inventory with nothing in it.
            if tree.exists(name):
                tree.remove(name)
            return
        if not tree.exists(name):
            if self._is_taken(name):
                return
            tree.new_child(name, nodename, uuid=reports.pool_uuid(
                tree.data(nodename).uuid, pool.model))
        tree.update_inventory(name, {PGPU: {
            'total': total, 'reserved': min(total, _reserved(pool, allocated)),
            'min_unit': 1, 'max_unit': total, 'step_size': 1,
            'allocation_ratio': 1.0}})
        tree.add_traits(name, trait_of(pool.model))

    def _is_taken(self, name: str) -> bool:
        """Whether a provider of this name belongs to somebody else.

        Names are unique in all of Placement. With one that is taken, Nova
        could not report anything of this host any more.

        :raises NovaException: if Placement does not tell, and so does
            keystoneauth1's ClientException
        """
        response = self._virtapi.reportclient.get(
            f'/resource_providers?name={urllib.parse.quote(name)}')
        if not response:
            raise exception.ResourceProviderRetrievalFailed(uuid=name)
        found = response.json()['resource_providers']
        for provider in found:
            LOG.error('The pool %(name)s is not reported: Placement has a '
                      'provider of that name that is not of this host. Delete '
                      'it: openstack resource provider delete %(uuid)s',
                      {'name': name, 'uuid': provider['uuid']})
        return bool(found)

    def _allocated(self, provider: str) -> dict[str, int]:
        """Reads what is allocated from a provider, by instance.

        :returns: numbers by the uuid of the instance; what a migration has
            counts for its instance
        :raises NovaException: if Placement does not tell, and so does
            keystoneauth1's ClientException
        """
        context = nova_context.get_admin_context()
        allocations = self._virtapi.reportclient \
            .get_allocations_for_resource_provider(context, provider) \
            .allocations
        by_instance: collections.Counter[str] = collections.Counter()
        for consumer, allocation in allocations.items():
            by_instance[_instance_of(context, consumer)] += (
                allocation['resources'].get(PGPU, 0))
        return by_instance


def _name(nodename: str, model: str) -> str:
    return f'{nodename}_gpu_{model.replace(":", "_")}'


def _model(nodename: str, name: str) -> str | None:
    """The model of the pool of that name, None for one that is no pool."""
    prefix = _name(nodename, '')
    if not name.startswith(prefix):
        return None
    return name.removeprefix(prefix).replace('_', ':')


def _instance_of(context: nova_context.RequestContext, consumer: str) -> str:
    """The instance behind a consumer.

    While an instance is resized, the source's allocation is its migration's.
    """
    try:
        migration = objects.Migration.get_by_uuid(context, consumer)
    except exception.MigrationNotFound:
        return consumer
    instance: str = migration.instance_uuid
    return instance


def _reserved(pool: host_pools.Pool, allocated: Mapping[str, int]) -> int:
    """How many cards of a pool Placement must not give, and does not know.

    Those of guests that did not ask Placement, and those that nobody can
    have now.
    """
    unasked = sum(max(0, number - allocated.get(instance, 0))
                  for instance, number in pool.held.items())
    return unasked + pool.blocked
