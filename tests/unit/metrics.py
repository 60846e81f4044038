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

"""Reads metrics as Prometheus does."""

import prometheus_client
from prometheus_client import parser

PREFIX = 'nova_gpu_passthru_'


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Reads what a scrape returns.

    :returns: values by the name, without our prefix, and the labels
    """
    return {(sample.name.removeprefix(PREFIX),
             frozenset(sample.labels.items())): sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples}


def scrape(registry: prometheus_client.CollectorRegistry
           ) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Reads what a registry has."""
    return samples(prometheus_client.generate_latest(registry).decode())


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """The key of one value in what samples() returns."""
    return name, frozenset(labels.items())


def named(found: dict[tuple[str, frozenset[tuple[str, str]]], float],
          name: str) -> list[dict[str, str]]:
    """The labels of every value of one name."""
    return [dict(labels) for one, labels in found if one == name]
