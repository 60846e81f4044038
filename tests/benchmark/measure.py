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

"""How long something takes, and what it is set beside."""

from collections.abc import Callable
import dataclasses
import gc
import multiprocessing
import time


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One measurement of ours beside one of Nova's, of the same run.

    :ivar what: what is measured, for a person
    :ivar unit: of both numbers
    :ivar goal: how many times less than Nova's ours should be; None where
        only ours counts
    :ivar limit: what ours should stay below, in the same unit
    :ivar at_least: whether Nova's was given up at that number
    """

    what: str
    unit: str
    ours: float
    novas: float | None = None
    goal: float | None = None
    limit: float | None = None
    at_least: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times less than Nova's ours is."""
        return None if self.novas is None else self.novas / self.ours

    @property
    def reached(self) -> bool:
        """Whether ours is what it should be."""
        return ((self.goal is None or
                 self.ratio is not None and self.ratio >= self.goal) and
                (self.limit is None or self.ours < self.limit))


def best(work: Callable[[], object], times: int = 5) -> float:
    """The shortest of several runs, in seconds.

    What else the machine does can make a run longer, never shorter.
    """
    return min(once(work) for _ in range(times))


def once(work: Callable[[], object]) -> float:
    """How long one run takes, in seconds."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def within(prepare: Callable[[], Callable[[], object]], seconds: float
           ) -> tuple[float, bool]:
    """How long one run takes in a process of its own, in seconds.

    :param prepare: makes what is to be measured, in that process
    :param seconds: when to give up
    :returns: the time, and whether it was given up
    """
    context = multiprocessing.get_context('fork')
    ready, took = context.Event(), context.SimpleQueue()

    def child() -> None:
        try:
            work = prepare()
        finally:
            ready.set()
        took.put(once(work))

    process = context.Process(target=child)
    process.start()
    ready.wait()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return seconds, True
    if process.exitcode:
        raise ChildProcessError(f'it ended with status {process.exitcode}')
    return took.get(), False
