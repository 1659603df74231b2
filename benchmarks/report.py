"""What a case found out, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Goal:
    """A bound on a figure, and whether it was kept."""

    text: str
    met: bool

    @classmethod
    def at_least(cls, bound: float, found: float, unit: str = "x") -> Goal:
        """A figure that should be as high as ``bound``."""
        return cls(f"≥ {bound:g} {unit}".strip(), found >= bound)

    @classmethod
    def at_most(cls, bound: float, found: float, unit: str = "") -> Goal:
        """A figure that should be as low as ``bound``."""
        return cls(f"≤ {bound:g} {unit}".strip(), found <= bound)

    def __str__(self) -> str:
        return f"{self.text}: {'met' if self.met else 'not met'}"


@dataclass(frozen=True)
class Line:
    """One contender's figures; ``ratio`` is weblock's rate over this one's, paired."""

    contender: str
    figures: Sequence[str]
    ratio: float | None = None
    goals: Sequence[Goal] = ()


@dataclass(frozen=True)
class Findings:
    """One table."""

    title: str
    figures: Sequence[str]
    lines: Sequence[Line]
    compares: bool = True
    """Whether there is a column of ratios."""

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The heads of the columns, and the cells below them, row by row."""
        heads = ["", *self.figures, *["weblock ÷ this"][: self.compares], "goal"]
        rows = [
            [
                line.contender,
                *line.figures,
                *["" if line.ratio is None else f"{line.ratio:.2f} x"][: self.compares],
                "; ".join(map(str, line.goals)),
            ]
            for line in self.lines
        ]
        return heads, rows


def show(findings: Findings, *, as_markdown: bool) -> None:
    """Prints one table."""
    if as_markdown:
        print(markdown(findings), flush=True)
    else:
        console = Console()
        console = console if console.is_terminal else Console(width=132)
        console.print(_rich(findings))


def write_between_marks(page: Path, name: str, new: str) -> None:
    """Put a text into a page, between two comments that name it. Raises ``ValueError`` without these."""
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = page.read_text()
    before, found, rest = text.partition(first)
    _old, found_last, after = rest.partition(last)
    if not (found and found_last):
        raise ValueError(f"{page} has no place for the tables: write {first} and {last} into it")
    page.write_text(f"{before}{first}\n\n{new}\n{last}{after}")


def markdown(findings: Findings) -> str:
    """Return a table in Markdown."""
    heads, rows = findings.cells()
    ruler = ["---", *["---:"] * (len(heads) - 2), "---"]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ruler, *rows)]
    return "\n".join([f"**{findings.title}**", "", *lines, ""])


def _rich(findings: Findings) -> Table:
    heads, rows = findings.cells()
    table = Table(title=findings.title, title_justify="left")
    for index, head in enumerate(heads):
        inner = 0 < index < len(heads) - 1
        table.add_column(
            head, no_wrap=inner or findings.compares, justify="right" if inner else "left"
        )
    for line, row in zip(findings.lines, rows, strict=True):
        missed = any(not goal.met for goal in line.goals)
        *others, goals = row
        table.add_row(*others, f"[{'red' if missed else 'green'}]{goals}[/]" if goals else "")
    return table
