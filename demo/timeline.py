"""A picture of critical sections: one row for each worker, time from left to right."""

from __future__ import annotations

from rich.text import Text

from demo.trace import Section, most_at_once


def draw(sections: list[Section], width: int) -> Text:
    """Each cell shows how many sections the worker was in at once: a block for one, else a number.

    The last row counts over all workers: more than one at once is the race.
    """
    ended = [each for each in sections if each.leave is not None]
    if not ended:
        return Text("no critical section was entered")
    start = min(each.enter for each in ended)
    end = max(each.leave or start for each in ended)
    cells = max(10, width - 16)
    rows = {
        f"worker {number}": [each for each in ended if each.worker == worker]
        for number, worker in enumerate(sorted({each.worker for each in ended}), 1)
    }
    picture = Text()
    for name, passes in [*rows.items(), ("at once", ended)]:
        picture.append(f"{name:>10} ", style="bold" if name == "at once" else "dim")
        for count in _counts(passes, start, end, cells):
            picture.append(*_cell(count, total=name == "at once"))
        picture.append("\n")
    scale = f"{end - start:.2f} s"
    picture.append(f"{'':>11}0 s{scale:>{cells - 3}}", style="dim")
    return picture


def _counts(sections: list[Section], start: float, end: float, cells: int) -> list[int]:
    """For each cell, how many sections it saw at once."""
    step = (end - start) / cells or 1.0
    edges = [start + cell * step for cell in range(cells)]
    return [
        most_at_once(
            [each for each in sections if each.enter < edge + step and (each.leave or end) > edge]
        )
        for edge in edges
    ]


def _cell(count: int, *, total: bool) -> tuple[str, str]:
    if count == 0:
        return "·", "dim"
    if count == 1:
        return "█", "green"
    return (str(count) if count < 10 else "+"), ("bold red" if total else "red")
