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

"""The options of [gpu_passthru]."""

from collections.abc import Iterable
from typing import Any

from oslo_config import cfg
from oslo_config import types

from nova_gpu_passthru import exceptions
from nova_gpu_passthru.host import hook
from nova_gpu_passthru.host import policy
from nova_gpu_passthru.host import records
from nova_gpu_passthru.host import terms

# Of [libvirt] virt_type, what gives devices of the host to guests.
VIRT_TYPES = ('kvm', 'qemu')

GROUP = cfg.OptGroup(
    'gpu_passthru', title='GPU passthrough',
    help="""
Which GPUs of the host nova-compute takes from their drivers and gives to
guests. Nothing has to be set: by default that is every GPU except emulated
ones, displays of management controllers, graphics integrated in the CPU, and
the host's only console. ``nova-gpu-passthru list`` shows the result.
""")

OPTS = [
    cfg.ListOpt(
        'include', default=[], item_type=types.String(),
        help="""
Displays and accelerators to offer although they stay with the host by
default.

Each entry is a PCI address (``0000:3b:00.0``) or vendor and device id
(``10de:2330``), in hexadecimal. An entry that is neither stops the service.
What cannot be passed at all, such as a virtual function or a GPU without an
IOMMU group, is not offered even where it is named here.

Related options:

* ``exclude`` wins where both name a card
"""),
    cfg.ListOpt(
        'exclude', default=[], item_type=types.String(),
        help="""
GPUs to leave alone.

Each entry is a PCI address (``0000:3b:00.0``) or vendor and device id
(``10de:2330``), in hexadecimal. An entry that is neither stops the service.
A card stays with the host when an entry names any of its functions. A card
that a guest holds stays with that guest until the guest is gone.
"""),
    cfg.StrOpt(
        'boot_vga', default=policy.BootVGA.AUTO.value,
        choices=[
            (policy.BootVGA.AUTO.value,
             'Offer it only where another display (of a management '
             'controller, integrated, or excluded) stays with the host, or '
             'where no host driver has it any more.'),
            (policy.BootVGA.OFFER.value, 'Offer it like any other GPU.'),
            (policy.BootVGA.WITHHOLD.value, 'Leave it to the host.'),
        ],
        help="""
What to do with the GPU that the firmware shows the console on.
"""),
    cfg.IntOpt(
        'detach_timeout', default=60, min=1,
        help="""
Seconds that a card may take to be detached from its host driver when
nova-compute starts. A driver does not let go while a process uses the card.
A card that takes longer is withheld; the others are offered.
"""),
    cfg.BoolOpt(
        'guest_numa_placement', default=True,
        help="""
Whether a guest that has a NUMA topology sees each card on the NUMA node that
the card is on.

Such a guest of machine type q35 gets a further PCI Express root bus
(pcie-expander-bus) for each of its nodes that has cards. Guests of other
machine types, and cards of a node that the guest is not on, are not
affected. Switch it off for guests whose firmware or system cannot handle
further root buses; a guest's PCI addresses change with that when it is next
started by Nova.
"""),
    cfg.StrOpt(
        'metrics_file', default='$state_path/nova-gpu-passthru.prom',
        help="""
The file into which nova-compute writes its metrics for Prometheus, with each
periodic update of its resources: how long claims and detaching took, how
many failed, and which cards it withholds.

``nova-gpu-passthru exporter`` serves them beside what it sees of the host by
itself. On hosts without GPUs nothing is written. Leave it empty to have
none.
"""),
    cfg.StrOpt(
        'release_hook', default='',
        help="""
An executable that cleans a card after each guest, before another one may
have it: it scrubs the card's memory, say, or checks it with the vendor's
tools.

It runs as the user of nova-compute, once for each card that no guest holds
any more, also where a guest failed to start. Its arguments are the PCI
addresses of the card's functions, the GPU's first; no shell reads them. Its
environment is that of nova-compute with ``GPU_PASSTHRU_ADDRESS``,
``GPU_PASSTHRU_ADDRESSES`` (all, with blanks between), ``GPU_PASSTHRU_MODEL``
(``10de:2330``) and ``GPU_PASSTHRU_INSTANCE`` (the uuid of who had the card).

A card is withheld while its hook runs. If the hook ends with another status
than 0 or not in time, the card stays withheld until an operator gives it
back with ``nova-gpu-passthru offer``; the log and ``nova-gpu-passthru list``
say what the hook printed last. If nova-compute is stopped meanwhile, the
hook runs again when it starts: it has to bear that. It may take the card to
another driver; nova-compute detaches it again.

Related options:

* ``release_hook_timeout``
* ``hold_after_release``
"""),
    cfg.IntOpt(
        'release_hook_timeout', default=600, min=1,
        help="""
Seconds that ``release_hook`` may take for one card. Then it is killed, with
all that it has started in its process group, and the card is withheld.
"""),
    cfg.BoolOpt(
        'hold_after_release', default=False,
        help="""
Keep each card back after its guest, until an operator gives it back with
``nova-gpu-passthru offer``.

As with devices that ``[pci] device_spec`` calls ``one_time_use``, a card is
used up as soon as it was given to a guest, also where that failed to start.
``release_hook`` runs before, if there is one.
"""),
    cfg.StrOpt(
        'state_dir', default='$state_path/gpu_passthru',
        help="""
The folder in which nova-compute and the command ``nova-gpu-passthru``
remember what an operator withholds and which cards have to be released. It
is made when it is needed, has to survive a restart of the host, and belongs
to one host alone.
"""),
]

SCHEDULER_OPTS = [
    cfg.FloatOpt(
        'gpu_host_avoidance_weight_multiplier', default=100.0,
        help="""
How strongly guests without GPUs are kept off hosts with free ones.

This is the multiplier of GPUHostAvoidanceWeigher. The default is large
enough to outdo Nova's own weighers at their defaults. 0 switches it off; an
aggregate's metadata of the same name overrides it for its hosts.
"""),
    cfg.FloatOpt(
        'gpu_packing_weight_multiplier', default=100.0,
        help="""
How strongly guests with GPUs are sent to the host with the fewest free ones.

This is the multiplier of GPUPackingWeigher. A negative value spreads them
out, 0 switches it off; an aggregate's metadata of the same name overrides it
for its hosts.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Makes the options of a compute host known; may be called again."""
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)


def register_scheduler_opts(conf: cfg.ConfigOpts) -> None:
    """Makes the options of a scheduler known; may be called again."""
    conf.register_group(GROUP)
    conf.register_opts(SCHEDULER_OPTS, group=GROUP)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Entry point of the oslo.config generator."""
    return [(GROUP, [*OPTS, *SCHEDULER_OPTS])]


def check(conf: cfg.ConfigOpts, opts: Iterable[cfg.Opt] = OPTS) -> None:
    """Looks whether all options have values that they can have.

    oslo.config itself looks at a value when it is asked for, and some are
    asked for when the first guest comes.

    :param opts: of the group, those of a compute host by default
    :raises InvalidOption: if one does not; it is named, and its value quoted
    """
    for opt in opts:
        _value(conf, opt.dest)


def _value(conf: cfg.ConfigOpts, name: str) -> Any:
    try:
        return conf.gpu_passthru[name]
    except (cfg.Error, ValueError) as error:
        raise exceptions.InvalidOption(
            f'[gpu_passthru] {name} cannot be used: {error}; correct the '
            f'value') from error


def read_policy(conf: cfg.ConfigOpts) -> policy.Policy:
    """Reads the options that decide about cards.

    :raises InvalidDeviceEntry: if an entry of include or exclude is neither
        a PCI address nor vendor:device; the text is quoted
    :raises InvalidOption: if boot_vga is none of its choices
    """
    options = conf.gpu_passthru
    return policy.Policy(
        include=policy.DeviceList.parse(options.include, 'include'),
        exclude=policy.DeviceList.parse(options.exclude, 'exclude'),
        boot_vga=policy.BootVGA(_value(conf, 'boot_vga')))


def read_terms(conf: cfg.ConfigOpts) -> terms.Terms:
    """Reads what has to happen before a card goes to the next guest.

    :raises InvalidReleaseHook: if the hook cannot be run; its path is quoted
    """
    options = conf.gpu_passthru
    hook.check(options.release_hook)
    return terms.Terms(options.release_hook, options.release_hook_timeout,
                       options.hold_after_release)


def records_of(conf: cfg.ConfigOpts) -> records.Records:
    """Gives access to what is remembered of the cards of this host.

    :param conf: with [DEFAULT] state_path as well
    """
    return records.Records(conf.gpu_passthru.state_dir)
