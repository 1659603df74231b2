"""When each worker was inside its critical section, for the time line."""

from __future__ import annotations

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
    """One pass through the critical section, by the machine's clock; ``leave`` is None inside."""

    worker: int
    enter: float
    leave: float | None


@contextmanager
def section() -> Iterator[None]:
    """Notes when the block is entered and left."""
    name = os.urandom(8).hex()
    _append(name, "enter")
    try:
        yield
    finally:
        _append(name, "leave")


def read(path: Path) -> list[Section]:
    """All sections so far, in the order in which they were entered."""
    sections: dict[str, Section] = {}
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            continue  # It is being written at this moment.
        name, event, worker, at = json.loads(line)
        if event == "enter":
            sections[name] = Section(worker, at, None)
        else:
            sections[name] = sections[name]._replace(leave=at)
    return sorted(sections.values(), key=lambda each: each.enter)


def most_at_once(sections: Sequence[Section]) -> int:
    """How many sections overlapped, at most."""
    steps = [(each.enter, 1) for each in sections]
    steps += [(each.leave, -1) for each in sections if each.leave is not None]
    inside = most = 0
    for _, step in sorted(steps):
        inside += step
        most = max(most, inside)
    return most


def overlaps_of(sections: Sequence[Section]) -> int:
    """How many pairs of sections were running at the same time."""
    spans = [(each.enter, each.leave or float("inf")) for each in sections]
    return sum(
        later[0] < earlier[1]
        for number, earlier in enumerate(spans)
        for later in spans[number + 1 :]
    )


def _append(name: str, event: str) -> None:
    if path := os.environ.get(TRACE):
        line = json.dumps([name, event, os.getpid(), time.monotonic()]) + "\n"
        with Path(path).open("a") as trace:
            trace.write(line)
