"""``weblock watch``: the keys in use, again and again."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from .. import EngineUnavailable, KeyInfo, Locks, operating
from .._platform.logs import printable
from .app import Session, command, pass_session
from .output import console, say, sparkline, table

WIDTH: Final = 30
"""How many updates a sparkline shows."""

HEADER: Final = (*operating.HEADER, "WAITS")


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
        return [(*operating.row(info), self._drawn(info.key, most)) for info in self.now]

    def _drawn(self, key: str, most: int) -> str:
        return sparkline([look.get(key, 0) for look in self._waits], most=most).strip()

    def summary(self) -> str:
        """Return the numbers of all keys in one line."""
        if self.failure:
            return printable(self.failure)
        held = sum(info.holder is not None for info in self.now)
        return f"{held} held, {sum(len(info.waiters) for info in self.now)} waiting"


@command("watch")
@click.argument("prefix", default="")
@click.option("--interval", default=1.0, show_default=True, help="Seconds between two looks.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
@click.option("--limit", default=200, show_default=True, help="How many keys at most.")
@pass_session
def watch_command(
    session: Session, prefix: str, interval: float, count: int | None, limit: int
) -> None:
    """Shows the keys that are held or waited for, live, the longest queues first.

    If standard output is not a terminal, each update is written below the last one; with --json, as one
    line. Ctrl-C ends it.
    """
    interval = max(0.05, interval)
    looks = Looks()
    try:
        with session.locks() as locks:
            rounds = _rounds(count, interval)
            if session.json or not sys.stdout.isatty():
                for _ in rounds:
                    looks.look(locks, prefix, limit)
                    say(_line(looks) if session.json else _page(looks))
                return
            with Live(console=console(), screen=True, auto_refresh=False) as live:
                for _ in rounds:
                    looks.look(locks, prefix, limit)
                    live.update(_screen(locks.engine, looks), refresh=True)
    except KeyboardInterrupt:
        pass  # That is how it ends.


def _rounds(count: int | None, interval: float) -> Iterator[int]:
    done = 0
    while True:
        yield done
        done += 1
        if done == count:
            return
        time.sleep(interval)


def _line(looks: Looks) -> str:
    facts = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "error": looks.failure or None,
        "keys": [operating.as_dict(info) for info in looks.now],
    }
    return json.dumps(facts)


def _page(looks: Looks) -> str:
    head = f"{datetime.now(UTC):%H:%M:%S} {looks.summary()}"
    return f"{head}\n{operating.table(HEADER, looks.rows())}\n" if looks.now else f"{head}\n"


def _screen(engine: str, looks: Looks) -> RenderableType:
    head = Text(f"{datetime.now():%H:%M:%S}  {looks.summary()}  {engine}", style="bold")  # noqa: DTZ005 - local time, for people
    if looks.failure:
        head.stylize("red")
    return Group(head, table(HEADER, looks.rows())) if looks.now else head
