"""``weblock watch``: the keys in use, again and again."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Final

import click
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .. import EngineUnavailable, KeyInfo, Locks, operating
from .._options import LONGEST
from .._platform.logs import printable
from .app import Session, command, pass_session

WIDTH: Final = 30
"""How many updates a sparkline shows."""

HEADER: Final = (*operating.HEADER, "WAITS")

BARS: Final = "▁▂▃▄▅▆▇█"


class Looks:
    """The last updates, each with the number of waiters for each key."""

    def __init__(self) -> None:
        self.now: list[KeyInfo] = []
        self.failure = ""
        self._waits: deque[dict[str, int]] = deque(maxlen=WIDTH)

    def look(self, locks: Locks, prefix: str, limit: int) -> None:
        """Take a look. An engine that does not answer is remembered as that."""
        try:
            self.now = locks.list(prefix, limit=limit)
            self.failure = ""
        except EngineUnavailable as error:
            self.now, self.failure = [], str(error)
        # The longest queues first: there is the trouble.
        self.now.sort(key=lambda info: (-len(info.waiters), -info.held_for, info.key))
        self._waits.append({info.key: len(info.waiters) for info in self.now})

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of a table; the last column draws how many waited at the last updates."""
        most = max((n for look in self._waits for n in look.values()), default=0)
        made = []
        for info in self.now:
            waits = [look.get(info.key, 0) for look in self._waits]
            drawn = "".join(BARS[min(7, 8 * n // most)] if n else " " for n in waits)
            made.append((*operating.row(info), drawn.strip()))
        return made

    def summary(self) -> str:
        """Return the numbers of all keys in one line."""
        if self.failure:
            return printable(self.failure)
        held = sum(info.holder is not None for info in self.now)
        return f"{held} held, {sum(len(info.waiters) for info in self.now)} waiting"


@command("watch")
@click.argument("prefix", default="")
@click.option(
    "--interval",
    type=click.FloatRange(0, LONGEST),
    default=1.0,
    show_default=True,
    help="Seconds between two updates.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this number of updates.")
@click.option("--limit", default=200, show_default=True, help="Maximum number of keys.")
@pass_session
def watch_command(
    session: Session, prefix: str, interval: float, count: int | None, limit: int
) -> None:
    """Shows the keys that are held or waited for, live, the longest queues first.

    If standard output is not a terminal, each update is written below the last one; with --json, as one
    line. Ctrl-C ends it.
    """
    looks, on_screen = Looks(), sys.stdout.isatty() and not session.json
    with suppress(KeyboardInterrupt), session.locks() as locks, ExitStack() as stack:
        # It does not interpret markup in a text.
        console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
        live = Live(console=console, screen=True, auto_refresh=False)
        if on_screen:
            stack.enter_context(live)
        for number in itertools.count(1):
            looks.look(locks, prefix, limit)
            if on_screen:
                live.update(screen(locks.engine, looks), refresh=True)
            else:
                at = datetime.now(UTC)
                table = operating.table(HEADER, looks.rows()) + "\n" if looks.now else ""
                facts = {
                    "at": at.isoformat(timespec="milliseconds"),
                    "error": looks.failure or None,
                    "keys": [operating.as_dict(info) for info in looks.now],
                }
                session.say(f"{at:%H:%M:%S} {looks.summary()}\n{table}", facts)
            if number == count:
                return
            time.sleep(max(0.05, interval))


def screen(engine: str, looks: Looks) -> RenderableType:
    """Return the last update for a terminal. Long keys go on in the next line."""
    head = Text(f"{datetime.now():%H:%M:%S}  {looks.summary()}  {engine}", style="bold")  # noqa: DTZ005 - local time, for people
    if looks.failure:
        head.stylize("red")
    if not looks.now:
        return head
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in HEADER:
        table.add_column(Text(name), overflow="fold")
    for each in looks.rows():
        table.add_row(*map(Text, each))
    return Group(head, table)
