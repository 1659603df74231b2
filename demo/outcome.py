"""What came of it, and whether that is what was to be shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from demo.engine import Engine
from demo.load import Answer
from demo.timeline import Death
from demo.trace import Section, most_at_once, overlaps_of

BOUND: Final = 3

WORK: Final = 0.15
"""Seconds that a request works before it adds an item; the application's default."""

AT_ONCE: Final = 2.0
"""Seconds. It is some hundredths where the machine has time."""


@dataclass(frozen=True)
class Run:
    """What became of many requests at once."""

    answers: list[Answer]
    items: int
    sections: list[Section]
    workers: list[int]

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
    def across(self) -> bool:
        """Whether it says anything about more than one process."""
        return self.took_part > 1

    @property
    def raced(self) -> bool:
        """Whether the bound was broken, with several workers taking part."""
        return self.items > BOUND and self.at_once > 1 and self.across

    @property
    def held(self) -> bool:
        """Whether just as many as may be were made, one by one, and all others told that not."""
        told = Counter(answer.status for answer in self.answers)
        refused = told[422] + sum(answer.code == "lock_timeout" for answer in self.answers)
        return (
            self.items == told[201] == BOUND
            and self.at_once == 1
            and told[201] + refused == len(self.answers)
        )


@dataclass(frozen=True)
class Takeover:
    """What became of requests that waited for a worker that was killed inside the lock."""

    death: Death
    answers: list[Answer]
    items: int
    sections: list[Section]
    workers: list[int]
    engine: Engine

    @property
    def next(self) -> Section | None:
        """The first section after the death."""
        return next((each for each in self.sections if each.enter > self.death.at), None)

    @property
    def after(self) -> float:
        """Seconds from the death to the next section."""
        return self.next.enter - self.death.at if self.next else float("inf")

    @property
    def first(self) -> Answer | None:
        """What the one was told that made the first item."""
        return min((each for each in self.answers if each.status == 201), default=None)

    @property
    def succeeded(self) -> bool:
        """Whether a request went on in time, but not before, and the bound was kept."""
        limit = AT_ONCE if self.engine.sees_deaths else self.engine.ttl + AT_ONCE
        inside = most_at_once([self.death.cut(each) for each in self.sections])
        return self.after < limit and inside == 1 and bool(self.first) and self.items <= BOUND
