"""What a holder did that had slept through its lease."""

from __future__ import annotations

from dataclasses import dataclass

from demo.load import Answer
from demo.outcome import BOUND
from demo.trace import Section


@dataclass(frozen=True)
class Sleep:
    """What became of two requests: one whose worker was stopped inside, and the next holder."""

    worker: int
    stopped: float
    woken: float
    slept: Answer
    following: Answer
    items: int
    sections: list[Section]
    workers: list[int]

    @property
    def taken_over(self) -> bool:
        """Whether another worker began and committed while the first one was stopped inside."""
        inside = any(
            each.worker == self.worker and each.enter < self.stopped and _end(each) > self.woken
            for each in self.sections
        )
        followed = any(
            each.worker != self.worker and self.stopped < each.enter and _end(each) < self.woken
            for each in self.sections
        )
        return inside and followed and self.following.status == 201

    @property
    def stale(self) -> bool:
        """Whether the one that slept committed what it had counted before."""
        return self.taken_over and self.items > BOUND

    @property
    def refused(self) -> bool:
        """Whether its commit was refused, and it was told so."""
        return self.taken_over and self.items == BOUND and self.slept.code == "lease_lost"


def _end(section: Section) -> float:
    return float("inf") if section.leave is None else section.leave
