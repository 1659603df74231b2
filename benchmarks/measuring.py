"""How sections are counted: slice by slice, each contender in turn."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .report import Findings
from .workers import Crew, Job, Visit, Visits


@dataclass(frozen=True)
class Effort:
    """How long to measure: so many rounds of one slice for each contender in turn."""

    rounds: int
    slice: float
    """Seconds in which each contender has the machine for itself."""
    fastest: bool = False
    """Whether the fastest slices count, which other work has disturbed least, and not the median."""
    before: Path | None = None
    """The sources of an earlier weblock, which has slices of its own."""

    def ratio(self, ours: Sequence[float], theirs: Sequence[float]) -> float:
        """Return our rate over theirs: of the fastest slices, or the median of the rounds.

        The slices of a round were measured one right after the other.
        """
        if self.fastest:
            return max(ours) / max(1e-6, *theirs)
        pairs = zip(ours, theirs, strict=True)
        return median(our / max(their, 1e-6) for our, their in pairs)


Case = Callable[[Effort], Iterator[Findings]]


@dataclass(frozen=True)
class Slice:
    """What one contender did in one slice."""

    rate: float
    jain: float
    longest_wait: float
    """Seconds."""

    @classmethod
    def of(cls, waiters: Visits, start: float, end: float) -> Slice:
        """What the visits of all waiters come to."""
        counts = [sum(visit.left <= end for visit in visits) for visits in waiters]
        waits = [
            visit.entered - before.left
            for visits in waiters
            for before, visit in itertools.pairwise([Visit(start, start), *visits])
        ]
        return cls(sum(counts) / (end - start), jain(counts), max(waits, default=0.0))


def compete(
    crew: Crew, waiters: int, work: float, seconds: float, *, one_key: bool = True
) -> Slice:
    """One slice of a crew whose waiters all want ``one_key``, or others.

    Raises if sections of one key overlapped.
    """
    start = time.monotonic() + 0.1
    end = start + seconds
    jobs = [Job(share, start, end, work) for share in shares(waiters, crew.size)]
    return Slice.of(crew.run(jobs, one_key=one_key), start, end)


def shares(waiters: int, processes: int) -> list[int]:
    """How many waiters each process has."""
    return [(waiters + number) // processes for number in range(processes)]


def jain(counts: Sequence[int]) -> float:
    """Jain's index of fairness: 1 if all got the same, 1/n if one of n got everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0
