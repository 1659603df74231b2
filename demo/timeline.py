"""A picture of critical sections: one row for each worker, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.outcome import Run
from demo.trace import Section, most_at_once


def draw(console: Console, run: Run, *, died: float | None = None) -> Table | str:
    """Each cell shows how many sections the worker was in: a block for one, else a number.

    The last row counts those of all workers together: more than one is the race. The first worker
    may have ``died``.
    """
    if not run.sections:
        return "no critical section was entered"
    one, nobody, death = _marks(console)
    start, end = run.sections[0].enter, max(each.leave for each in run.sections)
    cells = max(20, console.width - 19)
    step = (end - start) / cells or 1.0

    def row(sections: Sequence[Section]) -> Text:
        text = Text()
        for number in range(cells):
            since = start + number * step
            until = since + step
            here = [each for each in sections if each.enter < until and since <= each.leave]
            count = most_at_once(here)
            if died and since <= died < until and sections is first:
                text.append(death, "bold red")
            elif count > 1:
                text.append(str(count) if count < 10 else "+", "bold red")
            else:
                text.append(*((one, "green") if count else (nobody, "dim")))
        return text

    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", width=16)
    of_workers = [[each for each in run.sections if each.worker == pid] for pid in run.workers]
    first = of_workers[0]
    for pid, sections in zip(run.workers, of_workers, strict=True):
        table.add_row(Text(f"worker {pid}", "dim"), row(sections))
    table.add_row(Text("together", "bold"), row(run.sections))
    table.add_row("", Text(f"0 s{f'{end - start:.2f} s':>{cells - 3}}", "dim"))
    return table


def legend(console: Console) -> Text:
    """What the characters mean, which fits into 80 columns."""
    one, nobody, _ = _marks(console)
    return Text.assemble(
        "  ", (one, "green"), " one request is inside   ",
        ("2", "red"), " to ", ("9", "red"), " that many at once, ", ("+", "red"), " more   ",
        (nobody, "dim"), " none",
    )  # fmt: skip


def _marks(console: Console) -> tuple[str, str, str]:
    return ("█", "·", "✗") if console.encoding.startswith("utf") else ("#", ".", "x")
