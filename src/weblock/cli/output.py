"""Writes tables and small drawings to a terminal, a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    # Rich takes longer to import than most commands do to run.
    from rich.console import Console
    from rich.table import Table

BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "_.,-=+*#"


def say(text: str) -> None:
    """Write a line to standard output; click's own function takes ASCII there for UTF-8."""
    click.echo(text, file=sys.stdout)


def warn(text: str) -> None:
    """Write a line to standard error."""
    click.echo(text, file=sys.stderr)


def console() -> Console:
    """Return a console on standard output. It does not interpret markup in a text."""
    from rich.console import Console

    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table for a terminal. Long keys go on in the next line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in header:
        made.add_column(Text(name), overflow="fold")
    for each in rows:
        made.add_row(*map(Text, each))
    return made


def bars() -> str:
    """Return the characters for drawings, from the lowest to the highest."""
    try:
        BARS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII_BARS
    return BARS


def sparkline(values: Sequence[float], most: float) -> str:
    """Return one character for each value, the higher the more; a blank for 0."""
    levels = bars()
    steps = (min(len(levels) - 1, int(each / (most or 1) * len(levels))) for each in values)
    return "".join(levels[n] if each > 0 else " " for each, n in zip(values, steps, strict=True))


def bar(share: float) -> str:
    """Return a bar as long as ``share`` of 40 characters, from 0 to 1."""
    return bars()[-1] * max(1, round(share * 40)) if share > 0 else ""
