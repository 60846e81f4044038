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

"""GET /allocation_candidates for 4 of 8 cards: pools beside single cards.

Nova's own PCI in Placement has a provider for each card, and asks for several
by groups of their own that must not meet in one provider.
"""

from collections.abc import Callable, Iterator
import contextlib
import uuid

import os_resource_classes as resource_classes
from placement import context as placement_context
from placement.objects import inventory
from placement.objects import resource_provider
from placement.tests.functional.fixtures import placement
import requests

from tests.benchmark import measure

CARDS, WANTED = 8, 4
# Seconds after which the answer for single cards is not waited for.
_PATIENCE = 60

_POOLS = f'resources=VCPU:1&resources_G={resource_classes.PGPU}:{WANTED}'
_SINGLE = 'resources=VCPU:1&group_policy=isolate' + ''.join(
    f'&resources_G{number}={resource_classes.PGPU}:1'
    for number in range(WANTED))


def run() -> Iterator[measure.Comparison]:
    for hosts in (20, 500):
        with _cloud(hosts, [CARDS]) as get:
            answers = len(get(_POOLS))
            assert answers == hosts, answers
            ours = measure.best(lambda: get(_POOLS), 3)

        def single() -> Callable[[], object]:
            get = stack.enter_context(_cloud(hosts, [1] * CARDS))
            return lambda: get(_SINGLE)

        with contextlib.ExitStack() as stack:
            novas, gave_up = measure.within(single, _PATIENCE)
        yield measure.Comparison(
            f'Ask Placement for {WANTED} of {CARDS} cards, {hosts} hosts',
            'ms', ours=1e3 * ours, novas=1e3 * novas, at_least=gave_up,
            goal=100)


@contextlib.contextmanager
def _cloud(hosts: int, cards: list[int]) -> Iterator['_Get']:
    """A Placement with hosts whose providers have so many cards each."""
    with placement.PlacementFixture() as fixture:
        context = placement_context.RequestContext(
            user_id='user', project_id='project')
        context.config = fixture.conf_fixture.conf
        for host in range(hosts):
            root = _provider(context, f'host{host}', None,
                             resource_classes.VCPU, 64)
            for number, total in enumerate(cards):
                _provider(context, f'host{host}_{number}', root,
                          resource_classes.PGPU, total)
        yield _Get(fixture)


class _Get:
    """Asks for candidates as nova-scheduler does."""

    def __init__(self, fixture: placement.PlacementFixture) -> None:
        self._fixture = fixture

    def __call__(self, query: str) -> list[object]:
        answer = requests.get(
            f'{self._fixture.endpoint}/allocation_candidates'
            f'?limit=1000&{query}',
            headers={'x-auth-token': self._fixture.token,
                     'OpenStack-API-Version': 'placement 1.36'})
        answer.raise_for_status()
        found: list[object] = answer.json()['allocation_requests']
        return found


def _provider(context: placement_context.RequestContext, name: str,
              parent: str | None, resource_class: str, total: int) -> str:
    provider = resource_provider.ResourceProvider(
        context, name=name, uuid=str(uuid.uuid4()),
        parent_provider_uuid=parent)
    provider.create()
    provider.set_inventory([inventory.Inventory(
        resource_provider=provider, resource_class=resource_class,
        total=total, reserved=0, min_unit=1, max_unit=total, step_size=1,
        allocation_ratio=1.0)])
    created: str = provider.uuid
    return created
