"""What a case found out, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markdown import Markdown


class Findings(NamedTuple):
    """One table: the first cell of a row is its name."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        """The table in Markdown, without the columns that are empty."""
        ruler = ["---", *["---:"] * len(self.heads)]
        columns = zip(["", *self.heads], ruler, *self.rows, strict=True)
        filled = [column for column in columns if any(column[2:])]
        lines = [f"| {' | '.join(cells)} |" for cells in zip(*filled, strict=True)]
        return "\n".join([f"**{self.title}**", "", *lines, ""])


def at_least(bound: float, found: float) -> str:
    """A goal, and whether a figure met it."""
    return f"≥ {bound:g}: {'met' if found >= bound else 'not met'}"


def at_most(bound: float, found: float) -> str:
    """A goal, and whether a figure met it."""
    return f"≤ {bound:g}: {'met' if found <= bound else 'not met'}"


def show(text: str) -> None:
    """Prints a text in Markdown, which a terminal lays out."""
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text, flush=True)


def write_between_marks(page: Path, name: str, new: str) -> None:
    """Put a text into a page, between two comments that name it. Raises ``ValueError`` without these."""
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = page.read_text()
    before, found, rest = text.partition(first)
    _old, found_last, after = rest.partition(last)
    if not (found and found_last):
        raise ValueError(f"{page} has no place for {name}: write {first} and {last} into it")
    page.write_text(f"{before}{first}\n\n{new}\n{last}{after}")
