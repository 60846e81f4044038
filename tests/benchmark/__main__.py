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

"""Measures this driver beside Nova's own code.

Prints a table and writes it, with a plot, into build/benchmark. The exit
status is 1 if a goal was not reached.
"""

import argparse
from collections.abc import Iterable
import importlib
import pathlib
import sys

import matplotlib
from matplotlib import pyplot
import prettytable

from tests.benchmark import measure

FOLDER = pathlib.Path(__file__).parents[2] / 'build' / 'benchmark'
NAMES = ('filters', 'discovery', 'candidates', 'create', 'detach')


def table(results: Iterable[measure.Comparison]) -> str:
    """Writes the results as text."""
    rows = prettytable.PrettyTable(
        ['what', 'unit', 'ours', "Nova's", 'times less', 'goal', 'reached'])
    rows.align = 'r'
    rows.align['what'] = 'l'
    for one in results:
        more = '> ' if one.at_least else ''
        goals = [f'{one.goal:g} times less'] if one.goal is not None else []
        goals += [f'below {one.limit:g}'] if one.limit is not None else []
        rows.add_row([
            one.what, one.unit, f'{one.ours:.3g}',
            '' if one.novas is None else f'{more}{one.novas:.4g}',
            '' if one.ratio is None else f'{more}{one.ratio:.3g}',
            ', '.join(goals), 'yes' if one.reached else 'NO'])
    return str(rows)


def plot(results: Iterable[measure.Comparison], path: pathlib.Path) -> None:
    """Draws how many times less than Nova's each of ours is."""
    shown = [one for one in results if one.ratio is not None]
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.6 * len(shown)))
    places = range(len(shown))
    axes.barh(places, [one.ratio or 0 for one in shown], color='#4477aa')
    for place, one in zip(places, shown):
        if one.goal is not None:
            axes.plot([one.goal] * 2, [place - 0.4, place + 0.4],
                      color='#cc3311', linewidth=2)
    axes.set_yticks(places, [one.what for one in shown])
    axes.invert_yaxis()
    axes.set_xscale('log')
    axes.set_xlabel("Nova's divided by ours; the red line is the goal")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('names', nargs='*', metavar='NAME',
                        help=f'what to measure, of {", ".join(NAMES)}; all '
                             f'of it by default')
    names = parser.parse_args().names or NAMES
    unknown = set(names) - set(NAMES)
    if unknown:
        parser.error(f'there is no benchmark {", ".join(sorted(unknown))}')
    results: list[measure.Comparison] = []
    for name in names:
        print(f'Measuring {name}', flush=True)
        results += importlib.import_module(f'tests.benchmark.{name}').run()
    matplotlib.use('Agg')
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = table(results)
    (FOLDER / 'table.txt').write_text(f'{text}\n')
    print(text)
    if any(one.ratio is not None for one in results):
        plot(results, FOLDER / 'plot.png')
    print(f'Written to {FOLDER}')
    return 0 if all(one.reached for one in results) else 1


if __name__ == '__main__':
    sys.exit(main())
