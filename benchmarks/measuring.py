"""How sections are counted: slice by slice, each contender in turn."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .contenders import Asyncio, Blocking, Contender
from .report import Findings
from .statistics import jain, median
from .workers import Crew, Job, Outcome, Visit


@dataclass(frozen=True)
class Effort:
    """How long to measure: so many rounds of one slice for each contender in turn."""

    rounds: int
    slice: float
    """Seconds in which each contender has the machine for itself."""
    idle: float
    """Seconds for which waiters are watched waiting."""
    fastest: bool = False
    """Whether the fastest slices count, which other work has disturbed least, and not the median."""


Case = Callable[[Effort], Iterator[Findings]]

Rates = dict[Contender, list[float]]
"""Sections per second of each contender, slice by slice."""


def paired(ours: list[float], theirs: list[float]) -> float:
    """The median over the rounds: each round's slices were measured one right after the other."""
    return median(our / max(their, 1e-6) for our, their in zip(ours, theirs, strict=True))


def blocking_rates(compared: Sequence[Blocking], directory: Path, effort: Effort) -> Rates:
    """One thread, and nobody else who wants the key."""
    sections = {contender: contender.open(directory) for contender in compared}
    rates: Rates = {contender: [] for contender in compared}
    for _ in range(effort.rounds):
        for contender, section in sections.items():
            counter, done, start = 0, 0, time.monotonic()
            while time.monotonic() - start < effort.slice:
                for _ in range(20):
                    with section():
                        counter += 1
                    done += 1
            check(contender, counter, done)
            rates[contender].append(done / (time.monotonic() - start))
    return rates


async def asyncio_rates(compared: Sequence[Asyncio], directory: Path, effort: Effort) -> Rates:
    """One task, and nobody else who wants the key."""
    sections = {contender: contender.open(directory) for contender in compared}
    rates: Rates = {contender: [] for contender in compared}
    for _ in range(effort.rounds):
        for contender, section in sections.items():
            counter, done, start = 0, 0, time.monotonic()
            while time.monotonic() - start < effort.slice:
                for _ in range(20):
                    async with section():
                        counter += 1
                    done += 1
            check(contender, counter, done)
            rates[contender].append(done / (time.monotonic() - start))
    return rates


def check(contender: Contender, counted: int, done: int) -> None:
    """Raises if two sections that added one to a counter have overlapped."""
    if counted != done:
        raise RuntimeError(f"{contender.name} lost updates: {counted} counted of {done}")


@dataclass(frozen=True)
class Slice:
    """What one contender did with the hot key in one slice."""

    rate: float
    passed_on: float
    """Sections a second that went to another waiter than the one before."""
    gaps: list[float]
    """Seconds from the end of a section to the start of another waiter's."""
    jain: float
    longest_wait: float
    """Seconds."""

    @classmethod
    def of(cls, outcomes: list[Outcome], start: float, end: float) -> Slice:
        """What the visits of all waiters come to."""
        waiters = [each for outcome in outcomes for each in outcome.visits]
        counts = [sum(visit.left <= end for visit in visits) for visits in waiters]
        turns = sorted(
            (visit, waiter)
            for waiter, visits in enumerate(waiters)
            for visit in visits
            if visit.left <= end
        )
        gaps = [
            later.entered - earlier.left
            for (earlier, one), (later, another) in itertools.pairwise(turns)
            if one != another
        ]
        waits = [wait for visits in waiters for wait in _waits(visits, start)]
        seconds = end - start
        rate, passed_on = sum(counts) / seconds, len(gaps) / seconds
        return cls(rate, passed_on, gaps, jain(counts), max(waits, default=0.0))


def _waits(visits: list[Visit], start: float) -> Iterator[float]:
    for visit in visits:
        yield visit.entered - start
        start = visit.left


def compete(
    crew: Crew,
    waiters: int,
    work: float,
    seconds: float,
    *,
    one_key: bool = True,
    at_once: int = 1,
) -> Slice:
    """One slice of a crew whose waiters all want the same key, or each a key of its own.

    Raises if more than ``at_once`` of them were inside at the same time.
    """
    start = time.monotonic() + 0.1
    end = start + seconds
    jobs = [Job(share, start, end, work) for share in shares(waiters, crew.size)]
    return Slice.of(crew.run(jobs, one_key=one_key, at_once=at_once), start, end)


def shares(waiters: int, processes: int) -> list[int]:
    """How many waiters each process has."""
    return [(waiters + number) // processes for number in range(processes)]
