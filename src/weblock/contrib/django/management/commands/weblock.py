"""``manage.py weblock list``, ``show KEY``, ``release KEY``: who holds what, and taking it away."""

from __future__ import annotations

import getpass
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..... import KeyInfo, WeblockError
from ... import locks
from ...operating import ChangedHands, duration, printable, take_away

HEADER = ("KEY", "HOLDER", "FENCE", "HELD", "LEFT", "WAITING")


class Command(BaseCommand):
    """Shows who holds keys and who waits for them, and takes keys away from holders that hang."""

    help = "Shows who holds keys and who waits for them, and releases keys by force."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One subcommand for each thing to do."""
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="the keys that are held or waited for")
        listing.add_argument("prefix", nargs="?", default="", help="only those that begin so")
        listing.add_argument("--limit", type=int, default=1000, help="at most so many (1000)")
        show = actions.add_parser("show", help="the holder of a key, and its queue")
        release = actions.add_parser("release", help="take a key from its holder, by force")
        release.add_argument("--force", action="store_true", help="do not ask")
        for each in (show, release):
            each.add_argument("key")
        for each in (listing, show, release):
            each.add_argument(
                "--alias", default="default", choices=sorted(locks), help="of WEBLOCK (default)"
            )

    def handle(self, *, action: str, alias: str, **options: Any) -> None:
        """Runs the subcommand."""
        try:
            match action:
                case "list":
                    self._list(alias, options["prefix"], options["limit"])
                case "show":
                    self._show(alias, options["key"])
                case "release":
                    self._release(alias, options["key"], ask=not options["force"])
        except (WeblockError, ChangedHands) as error:
            raise CommandError(str(error)) from error

    def _list(self, alias: str, prefix: str, limit: int) -> None:
        infos = locks[alias].list(prefix, limit=limit)
        if not infos:
            self.stdout.write("No key is held or waited for.")
            return
        self.stdout.write("\n".join(_table([HEADER, *map(_row, infos)])))
        if len(infos) == limit:
            self.stderr.write(f"There may be more than these {limit}: see --limit.")

    def _show(self, alias: str, key: str) -> None:
        info = locks[alias].inspect(key)
        if info is None:
            self.stdout.write(f"{key} is free.")
            return
        facts = zip(HEADER, _row(info), strict=True)
        self.stdout.write("\n".join(f"{name.lower() + ':':<9}{value}" for name, value in facts))
        for place, waiter in enumerate(info.waiters, 1):
            self.stdout.write(f"{place:>9}. {printable(waiter)}")

    def _release(self, alias: str, key: str, *, ask: bool) -> None:
        info = locks[alias].inspect(key)
        if info is None or info.holder is None:
            raise CommandError(f"Nobody holds {key}.")
        if ask and not self._agrees(info):
            raise CommandError("Nothing was released.")
        taken = take_away(alias, key, fence=info.fence, by=f"{getpass.getuser()} (manage.py)")
        if taken is None:
            raise CommandError(f"Nobody holds {key} any more.")
        passed = f" It passes to {printable(taken.waiters[0])}." if taken.waiters else ""
        self.stdout.write(f"Released {key}, taken from {printable(taken.holder)}.{passed}")

    def _agrees(self, info: KeyInfo) -> bool:
        if not sys.stdin.isatty():
            raise CommandError("There is nobody to ask: use --force.")
        self.stdout.write(
            f"{info.key} is held by {printable(info.holder)}, for {duration(info.held_for)}."
            " If that is still at work, it and the next holder overlap."
        )
        return input("Take it away? [y/N] ").strip().lower() in ("y", "yes")


def _row(info: KeyInfo) -> Sequence[str]:
    waiting = str(len(info.waiters)) if info.waiters else "-"
    if info.holder is None:
        return info.key, "-", "-", "-", "-", waiting
    return (
        *(info.key, printable(info.holder), str(info.fence)),
        *(duration(info.held_for), duration(info.remaining), waiting),
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
