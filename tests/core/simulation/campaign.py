"""Many schedules, on all processors."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from random import Random
from typing import TypeVar

from .schedule import Schedule
from .sometimes import SOMETIMES
from .world import Violation

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 250
"""Schedules that one worker runs at a stretch."""

SHOWN = 40
"""Events of the trace that a failure shows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that violated a property."""

    seed: int
    property: str
    story: str


@dataclass(slots=True)
class Tally:
    """What a number of schedules came to."""

    schedules: int = 0
    events: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.counts.update(other.counts)
        self.failures += other.failures

    @property
    def never(self) -> list[str]:
        """The states that should have been met, and were not."""
        return [what for what in SOMETIMES if not self.counts[what]]


def told(schedule: Schedule, last: int | None = None) -> str:
    """The last events of a schedule, for a reader."""
    trace = schedule.world.trace[-last if last else 0 :]
    return "\n".join(
        f"{now:9.4f}  {' '.join(str(fact) for fact in facts)}" for now, *facts in trace
    )


def run_seed(seed: int) -> tuple[Schedule, Failure | None]:
    """Runs the schedule of one seed, in this process."""
    schedule = Schedule(Random(seed))
    try:
        schedule.run()
    except Violation as violation:
        story = (
            f"{violation}\n{told(schedule, SHOWN)}\n"
            f"{schedule.swarm}\nseed {seed}; replay it with: scripts/simulate --replay {seed}"
        )
        return schedule, Failure(seed, violation.name, story)
    return schedule, None


def run_seeds(seeds: Iterable[int]) -> Tally:
    """Runs the schedules of some seeds, in this process."""
    tally = Tally()
    with _collecting_afterwards():
        for seed in seeds:
            schedule, failure = run_seed(seed)
            tally.schedules += 1
            tally.events += schedule.world.events
            tally.counts.update(schedule.truth.counts)
            if failure is not None:
                tally.failures.append(failure)
    return tally


def run_campaign(start: int, count: int, on_chunk: Callable[[Tally], None] | None = None) -> Tally:
    """Runs ``count`` schedules from seed ``start`` on."""
    seeds = range(start, start + count)
    chunks = [seeds[first : first + CHUNK] for first in range(0, count, CHUNK)]
    tally = Tally()
    for done in on_all_processors(run_seeds, chunks):
        tally.add(done)
        if on_chunk is not None:
            on_chunk(tally)
    return tally


def on_all_processors(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The results of ``work`` for each item, in the order in which they come."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for future in as_completed([pool.submit(work, item) for item in items]):
            yield future.result()


class _collecting_afterwards:  # noqa: N801 - it is used like a function
    """Leaves the cycles of many small worlds to one collection at the end."""

    def __enter__(self) -> None:
        gc.disable()

    def __exit__(self, *exc_info: object) -> None:
        gc.enable()
        gc.collect()
