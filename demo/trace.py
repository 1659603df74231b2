"""When each worker was inside its critical section, for the timelines."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

TRACE = "DEMO_TRACE"
"""The environment variable that names the file which all workers append to, if they are to."""


class Section(NamedTuple):
    """One pass through the critical section, by the machine's clock."""

    worker: int
    enter: float
    leave: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.leave - self.enter


@contextmanager
def section() -> Iterator[None]:
    """Notes when the block is entered and left."""
    name = os.urandom(8).hex()
    _append(name, "enter")
    try:
        yield
    finally:
        _append(name, "leave")


def read(path: Path, *, until: float | None = None) -> list[Section]:
    """All sections, in the order in which they were entered.

    Those that have not been left last until now, or ``until`` then.
    """
    until = until or time.monotonic()
    sections: dict[str, Section] = {}
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            continue  # It is being written at this moment.
        name, event, worker, at = json.loads(line)
        if event == "enter":
            sections[name] = Section(worker, at, until)
        else:
            sections[name] = sections[name]._replace(leave=at)
    return sorted(sections.values(), key=lambda each: each.enter)


def most_at_once(sections: Sequence[Section]) -> int:
    """How many sections overlapped, at most."""
    steps = [(each.enter, 1) for each in sections] + [(each.leave, -1) for each in sections]
    return max(itertools.accumulate(step for _, step in sorted(steps)), default=0)


def overlaps_of(sections: Sequence[Section]) -> int:
    """How many pairs of sections were running at the same time."""
    return sum(later.enter < one.leave for one, later in itertools.combinations(sections, 2))


def _append(name: str, event: str) -> None:
    if path := os.environ.get(TRACE):
        line = json.dumps([name, event, os.getpid(), time.monotonic()]) + "\n"
        with Path(path).open("a") as trace:
            trace.write(line)
