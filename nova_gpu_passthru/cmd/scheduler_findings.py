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

"""What can stand between a scheduler and GPU hosts, and the cures.

Nova's own loaders say which filters and weighers there are.
"""

from collections.abc import Iterable, Iterator, Sequence
import re

from nova.conf import scheduler as scheduler_options
from nova import exception
from nova.scheduler import filters
from nova.scheduler import weights
from oslo_config import cfg

from nova_gpu_passthru.cmd import cloud
from nova_gpu_passthru.cmd import findings
from nova_gpu_passthru import conf
from nova_gpu_passthru import exceptions
from nova_gpu_passthru import flavor
from nova_gpu_passthru.scheduler import reports

FILTER = 'nova_gpu_passthru.scheduler.filters.FreeGPUsFilter'
WEIGHERS = 'nova_gpu_passthru.scheduler.weights.all_weighers'
_WEIGHT_CLASSES = ('weight_classes = nova.scheduler.weights.all_weighers,' +
                   WEIGHERS)
_NAME = 'FreeGPUsFilter'
_OUR_WEIGHERS = frozenset(('GPUHostAvoidanceWeigher', 'GPUPackingWeigher'))
_AGGREGATES = 'AggregateInstanceExtraSpecsFilter'
# These look at every device or NUMA cell of a host.
_SLOW = ('NUMATopologyFilter', 'PciPassthroughFilter')

_OURS = re.compile(r'gpu_passthru:')
_TRAIT = re.compile(
    r'trait[a-zA-Z0-9_-]{0,64}:CUSTOM_GPU_([0-9A-F]{4})_([0-9A-F]{4})')


def register_opts(config: cfg.ConfigOpts) -> None:
    """Makes Nova's options of a scheduler known, with its defaults."""
    scheduler_options.register_opts(config)
    conf.register_scheduler_opts(config)


def of_filters(config: cfg.ConfigOpts) -> Iterator[findings.Finding]:
    """Looks at available_filters and enabled_filters.

    :param config: a scheduler's
    """
    options = config.filter_scheduler
    available: set[str] = set()
    for name in options.available_filters:
        try:
            available |= {found.__name__ for found in filters
                          .HostFilterHandler().get_matching_classes([name])}
        except (ImportError, exception.ClassNotFound) as error:
            yield _not_loaded('available_filters', name, error)
    enabled = options.enabled_filters
    for name in enabled:
        if name not in available:
            yield findings.Finding(
                'available_filters',
                f'they do not have {name}, which enabled_filters names, so '
                f'nova-scheduler does not start',
                f'add the line available_filters = '
                f'{FILTER if name == _NAME else "<its full name>"}, and one '
                f'with nova.scheduler.filters.all_filters: one line replaces '
                f'the default')
    if _NAME not in enabled:
        yield findings.Finding(
            'enabled_filters',
            f'{_NAME} is not among them, so guests with GPUs are sent to any '
            f'host', f'add {_NAME} to [filter_scheduler] enabled_filters, and '
                     f'the line available_filters = {FILTER}')
        return
    before = [name for name in enabled[:enabled.index(_NAME)]
              if name in _SLOW]
    if before:
        yield findings.Finding(
            'enabled_filters',
            f'{" and ".join(before)} stand before {_NAME} and look at each '
            f'host for longer', f'put {_NAME} before them', findings.WARNING)


def of_weighers(config: cfg.ConfigOpts) -> Iterator[findings.Finding]:
    """Looks at weight_classes and the multipliers.

    :param config: a scheduler's
    """
    try:
        conf.check(config, conf.SCHEDULER_OPTS)
    except exceptions.InvalidOption as error:
        what, _, cure = str(error).rpartition('; ')
        yield findings.Finding('nova.conf', what, cure)
    enabled: set[str] = set()
    modules: set[str] = set()
    for name in config.filter_scheduler.weight_classes:
        try:
            found = weights.HostWeightHandler().get_matching_classes([name])
            enabled |= {one.__name__ for one in found}
            modules |= {one.__module__ for one in found}
        except (ImportError, exception.ClassNotFound) as error:
            yield _not_loaded('weight_classes', name, error)
    missing = _OUR_WEIGHERS - enabled
    if missing:
        yield findings.Finding(
            'weight_classes',
            f'{" and ".join(sorted(missing))} are not among them, so guests '
            f'without GPUs may fill GPU hosts, and guests with GPUs are not '
            f'packed', f'set {_WEIGHT_CLASSES}', findings.WARNING)
    if not any(name.startswith('nova.scheduler.weights.')
               for name in modules):
        yield findings.Finding(
            'weight_classes',
            "none of Nova's own weighers is among them: of several lines "
            "only the last one counts",
            f'set, in one line, {_WEIGHT_CLASSES}', findings.WARNING)


def _not_loaded(option: str, name: str,
                error: Exception) -> findings.Finding:
    return findings.Finding(
        option, f'nova-scheduler cannot load {name}: {error}',
        "install nova-gpu-passthru into nova-scheduler's Python environment, "
        'or correct the line')


def of_flavor(one: cloud.NamedFlavor,
              config: cfg.ConfigOpts) -> Iterator[findings.Finding]:
    """Looks for what keeps a flavor from ever finding a host.

    :param one: the flavor
    :param config: a scheduler's
    """
    subject = f'flavor {one.name}'
    specs = one.extra_specs
    for key in specs:
        if _OURS.match(key) and key not in (flavor.SCOPED_FREE_GPUS,
                                            flavor.MODEL):
            yield findings.Finding(
                subject, f'nobody reads {key}',
                f'there are {flavor.SCOPED_FREE_GPUS} and {flavor.MODEL}',
                findings.WARNING)
    try:
        request = flavor.parse(specs)
    except exceptions.InvalidFlavor as error:
        problem, _, cure = str(error).rpartition(': ')
        yield findings.Finding(subject, problem, cure.rstrip('.'))
        return
    traits = {f'{match[1]}:{match[2]}'.lower() for key, value in specs.items()
              if (match := _TRAIT.fullmatch(key)) and value == 'required'}
    if traits and not (request and request.asks_placement):
        yield findings.Finding(
            subject, 'it wants the trait of a GPU but no PGPU, which no host '
                     'can give',
            f'set resources:PGPU, or {flavor.MODEL} instead of the trait')
    if request and request.model and traits - {request.model}:
        yield findings.Finding(
            subject, f'its trait asks for {" and ".join(sorted(traits))}, '
                     f'and {flavor.MODEL} for {request.model}',
            'make them agree, or keep one')
    if (flavor.FREE_GPUS in specs and
            _AGGREGATES in config.filter_scheduler.enabled_filters):
        yield findings.Finding(
            subject, f'{_AGGREGATES} refuses every host for the key '
                     f'{flavor.FREE_GPUS}, which has no namespace',
            f'rename the key to {flavor.SCOPED_FREE_GPUS}')


def of_hosts(flavors: Iterable[cloud.NamedFlavor],
             told: Sequence[reports.Report]) -> Iterator[findings.Finding]:
    """Looks for flavors that ask for more than any host has.

    :param flavors: all of the cloud
    :param told: what each GPU host reports
    """
    if not told:
        yield findings.Finding(
            'hosts', 'none reports GPUs',
            'run "nova-gpu-passthru check" on the GPU hosts',
            findings.WARNING)
        return
    largest = max(one.total_gpus for one in told)
    models = {model for one in told for model in one.free_by_model}
    for name, specs in flavors:
        try:
            request = flavor.parse(specs)
        except exceptions.InvalidFlavor:
            continue  # of_flavor() has told
        if request is None:
            continue
        if request.count > largest:
            yield findings.Finding(
                f'flavor {name}', f'it asks for {request}, and the largest '
                                  f'host has {largest}',
                'ask for fewer, or look why hosts withhold theirs',
                findings.WARNING)
        if request.model is not None and request.model not in models:
            yield findings.Finding(
                f'flavor {name}', f'no host has GPUs of model '
                                  f'{request.model}',
                f'correct {flavor.MODEL}; hosts have '
                f'{", ".join(sorted(models)) or "none"}', findings.WARNING)
