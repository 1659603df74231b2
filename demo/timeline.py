"""A picture of critical sections: one row for each worker, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from demo.trace import Section, most_at_once

TOGETHER = "together"


class Death(NamedTuple):
    """The end of a worker, by the clock of its sections."""

    worker: int
    at: float

    def cut(self, section: Section) -> Section:
        """The section, ended by the death of the worker that never left it."""
        if section.worker == self.worker and section.leave is None:
            return section._replace(leave=self.at)
        return section


class Marks(NamedTuple):
    """The characters that the picture is made of."""

    nobody: str
    one: str
    death: str


UNICODE = Marks("·", "█", "✗")
ASCII = Marks(".", "#", "x")


def draw(
    sections: Sequence[Section],
    workers: Sequence[int],
    width: int,
    *,
    death: Death | None = None,
    marks: Marks = UNICODE,
) -> Text:
    """Each cell shows how many sections the worker was in: a block for one, else a number.

    The last row counts those of all workers together: more than one is the race.
    """
    if not sections:
        return Text("no critical section was entered")
    start = min(each.enter for each in sections)
    end = max(each.leave or each.enter for each in sections)
    labels = {worker: f"worker {worker}" for worker in workers}
    margin = max(map(len, [*labels.values(), TOGETHER])) + 2
    axis = _Axis(start, end, cells=max(20, width - margin - 2))

    picture = Text()
    for worker, label in labels.items():
        row = _row(axis, [each for each in sections if each.worker == worker], marks)
        if death and death.worker == worker:
            row[axis.cell(death.at)] = marks.death, "bold red"
        picture.append(f"{label:>{margin}} ", "dim").append_tokens(row).append("\n")
    picture.append(f"{TOGETHER:>{margin}} ", "bold")
    picture.append_tokens(_row(axis, sections, marks)).append("\n")
    picture.append(f"{'':{margin}} 0 s{f'{end - start:.2f} s':>{axis.cells - 3}}", "dim")
    return picture


def legend(marks: Marks) -> Text:
    """What the characters mean, which fits into 80 columns."""
    return Text.assemble(
        (marks.one, "green"), " one request is inside   ",
        ("2", "red"), " to ", ("9", "red"), " that many at once, ", ("+", "red"), " more   ",
        (marks.nobody, "dim"), " none",
    )  # fmt: skip


class _Axis(NamedTuple):
    """The time from left to right; the last cell begins when the last section ends."""

    start: float
    end: float
    cells: int

    @property
    def step(self) -> float:
        return (self.end - self.start) / (self.cells - 1) or 1.0

    def cell(self, at: float) -> int:
        return min(self.cells - 1, max(0, int((at - self.start) / self.step)))

    def counts(self, sections: Sequence[Section]) -> list[int]:
        """For each cell, how many sections it saw at once, at most."""
        seen: list[list[Section]] = [[] for _ in range(self.cells)]
        for each in sections:
            last = self.cell(self.end if each.leave is None else each.leave)
            for cell in seen[self.cell(each.enter) : last + 1]:
                cell.append(each)
        return [most_at_once(cell) for cell in seen]


def _row(axis: _Axis, sections: Sequence[Section], marks: Marks) -> list[tuple[str, str]]:
    return [_cell(count, marks) for count in axis.counts(sections)]


def _cell(count: int, marks: Marks) -> tuple[str, str]:
    if count == 0:
        return marks.nobody, "dim"
    if count == 1:
        return marks.one, "green"
    return (str(count) if count < 10 else "+"), "bold red"
