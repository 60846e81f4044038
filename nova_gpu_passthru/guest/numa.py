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

"""Reads where a guest's NUMA nodes are on the host.

libvirt calls the nodes of a guest cells.
"""

from collections.abc import Iterator

from lxml import etree


def cells_by_host_node(root: etree._Element) -> dict[int | None, int]:
    """Finds the guest's NUMA node that is on each NUMA node of the host.

    :param root: the domain, in which Nova binds the memory of each cell to a
        node of the host where the guest has a NUMA topology
    :returns: the cell by the host's node; a node that no cell is on, or more
        than one, is left out
    """
    found: dict[int | None, list[int]] = {}
    for memory in root.iterfind('numatune/memnode'):
        for node in _nodes(memory.get('nodeset', '')):
            found.setdefault(node, []).append(int(memory.get('cellid')))
    return {node: cells[0] for node, cells in found.items()
            if len(cells) == 1}


def _nodes(nodeset: str) -> Iterator[int]:
    """Reads a set of nodes as Nova writes it, such as 0-1,3."""
    for part in filter(None, nodeset.split(',')):
        first, _, last = part.partition('-')
        yield from range(int(first), int(last or first) + 1)
