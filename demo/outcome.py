"""What came of it, and whether that is what was to be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from demo.engine import Engine
from demo.load import Answer
from demo.shop import BOUND
from demo.trace import Section, most_at_once, overlaps_of

IN_TIME: Final = 2.0
"""Seconds. It is some hundredths where the machine has time."""


@dataclass(frozen=True)
class Run:
    """What became of many requests at once."""

    answers: Sequence[Answer]
    items: int
    sections: list[Section]
    workers: list[int]

    @property
    def told(self) -> Counter[int]:
        """How often each status was answered."""
        return Counter(answer.status for answer in self.answers)

    @property
    def at_once(self) -> int:
        """How many were in the critical section at the same moment, at most."""
        return most_at_once(self.sections)

    @property
    def overlaps(self) -> int:
        """How many pairs of sections were running at the same time."""
        return overlaps_of(self.sections)

    @property
    def took_part(self) -> int:
        """How many workers were in the critical section at some time."""
        return len({each.worker for each in self.sections})

    @property
    def raced(self) -> bool:
        """Whether two were inside at once, and the bound was broken, in several workers."""
        return self.items > BOUND and self.at_once > 1 and self.took_part > 1

    @property
    def held(self) -> bool:
        """Whether just as many as may be were made, one by one, and all others told that not."""
        refused = self.told[422] + sum(each.code == "lock_timeout" for each in self.answers)
        return (
            self.items == self.told[201] == BOUND
            and self.at_once == 1
            and self.told[201] + refused == len(self.answers)
        )

    @property
    def lost(self) -> bool:
        """Whether any holder learned that its lease was lost."""
        return any(answer.code == "lease_lost" for answer in self.answers)


@dataclass(frozen=True)
class Takeover:
    """What became of requests that waited for a worker that was killed inside the lock."""

    run: Run
    engine: Engine
    died: float
    """When, by the clock of the sections; the section of the first worker ends there."""

    @property
    def next(self) -> Section | None:
        """The first section after the death."""
        return next((each for each in self.run.sections if each.enter > self.died), None)

    @property
    def first(self) -> Answer | None:
        """What the one was told that made the first item."""
        return min((each for each in self.run.answers if each.status == 201), default=None)

    @property
    def after(self) -> float:
        """Seconds from the death to the next section."""
        return self.next.enter - self.died if self.next else float("inf")

    @property
    def succeeded(self) -> bool:
        """Whether a request went on in time, but not before, and the bound was kept."""
        limit = IN_TIME if self.engine.sees_deaths else self.engine.ttl + IN_TIME
        run = self.run
        return self.after < limit and run.at_once == 1 and bool(self.first) and run.items <= BOUND
