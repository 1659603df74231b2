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
from .swarm import Swarm
from .world import Violation

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 50
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


@dataclass(frozen=True)
class Campaign:
    """Schedules of one kind: how one is made from its seed, and the rare states that all meet."""

    name: str
    schedule: Callable[[int], Schedule]
    sometimes: Sequence[str]

    def hold_to_it(self, schedules: int) -> None:
        """Fails if one of the first ``schedules`` seeds violates a property, or a rare state is never met.

        They are as many as meet each rare state several times. With ``WEBLOCK_LONG=1`` it takes thirty
        times as many; a quick run takes a sixth of them, which do not meet every rare state.
        """
        if "WEBLOCK_QUICK" in os.environ:
            self.check(self.run_here(range(schedules // 6)), rare=False)
        else:
            self.check(self.run(range(schedules * (30 if "WEBLOCK_LONG" in os.environ else 1))))

    def run(self, seeds: Sequence[int], on_chunk: Callable[[Tally], None] | None = None) -> Tally:
        """Runs the schedules of these seeds, on all processors."""
        chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
        tally = Tally()
        for done in on_all_processors(self.run_here, chunks):
            tally.add(done)
            if on_chunk is not None:
                on_chunk(tally)
        return tally

    def run_here(self, seeds: Sequence[int]) -> Tally:
        """Runs the schedules of some seeds, in this process."""
        tally = Tally()
        with _collecting_afterwards():
            for seed in seeds:
                schedule, failure = self.run_seed(seed)
                tally.schedules += 1
                tally.events += schedule.world.events
                tally.counts.update(schedule.truth.counts)
                if failure is not None:
                    tally.failures.append(failure)
        return tally

    def run_seed(self, seed: int) -> tuple[Schedule, Failure | None]:
        """Runs the schedule of one seed, in this process."""
        schedule = self.schedule(seed)
        try:
            schedule.run()
        except Violation as violation:
            story = (
                f"{violation}\n{told(schedule, SHOWN)}\n{schedule.swarm}\n"
                f"seed {seed}; replay it with: scripts/simulate --of {self.name} --replay {seed}"
            )
            return schedule, Failure(seed, violation.name, story)
        return schedule, None

    def check(self, tally: Tally, *, rare: bool = True) -> None:
        """Fails if a property was violated or, with ``rare``, a state never met."""
        failures = tally.failures
        seeds = [failure.seed for failure in failures]
        assert not failures, f"seeds {seeds} failed:\n\n{failures[0].story}"
        never = [what for what in self.sometimes if rare and not tally.counts[what]]
        assert not never, "the schedules never met these states, so they prove nothing of them"


def told(schedule: Schedule, last: int | None = None) -> str:
    """The last events of a schedule, for a reader."""
    trace = schedule.world.trace[-last if last else 0 :]
    return "\n".join(
        f"{now:9.4f}  {' '.join(str(fact) for fact in facts)}" for now, *facts in trace
    )


def _core_schedule(seed: int) -> Schedule:
    random = Random(seed)
    return Schedule(random, Swarm.drawn(random).mixed(Random(f"limits {seed}")))


CORE = Campaign("core", _core_schedule, SOMETIMES)
"""The protocol, on an engine that is made of its pure functions."""


def noticed(
    schedule: Callable[[int], Schedule], seeds: Iterable[int], killers: Sequence[str]
) -> str:
    """The property, one of ``killers``, that the first of the schedules violates which violates any of them.

    Nothing if none does. Violations of other properties do not count, though one mistake often leads to another.
    """
    for seed in seeds:
        try:
            schedule(seed).run()
        except Violation as violation:
            if violation.name.split()[0] in killers:
                return f"{violation.name}, seed={seed}"
    return ""


def on_all_processors(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The results of ``work`` for each item, in the order in which they come.

    Where tests run in several processes, the other processors are busy, and this one does it all: a
    process that is started for it would first have to import everything.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        yield from map(work, items)
        return
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
