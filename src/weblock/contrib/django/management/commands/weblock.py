"""``manage.py weblock list``, ``show KEY``, ``release KEY``: who holds what, and taking it away.

``manage.py weblock rules POST /items/7`` says what a request locks, and why.
"""

from __future__ import annotations

import getpass
import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..... import KeyInfo, WeblockError, operating
from ....._platform.logs import printable
from .....operating import ChangedHands, take_away
from ... import locks, settings
from ...rules import explain


class Command(BaseCommand):
    """Shows who holds keys and who waits for them, and takes keys away from holders that hang."""

    help = "Shows who holds keys and who waits, releases keys by force, and explains rules."
    # It serves in an emergency, whatever else is wrong with the project.
    requires_system_checks: Any = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add a subcommand for each operation."""
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="the keys that are held or waited for")
        listing.add_argument("prefix", nargs="?", default="", help="only those that begin so")
        listing.add_argument("--limit", type=int, default=1000, help="at most so many (1000)")
        show = actions.add_parser("show", help="the holder of a key, and its queue")
        release = actions.add_parser("release", help="take a key from its holder, by force")
        release.add_argument("--force", action="store_true", help="do not ask")
        rules = actions.add_parser("rules", help="what a request locks, and by which rule")
        rules.add_argument("method", type=str.upper, help="POST, say")
        rules.add_argument("target", help="its path or URL")
        for each in (show, release):
            each.add_argument("key")
        for each in (listing, show):
            each.add_argument("--json", action="store_true", help="for programs")
        for each in (listing, show, release):
            each.add_argument(
                "--alias", default="default", choices=sorted(locks), help="of WEBLOCK (default)"
            )

    def handle(self, *, action: str, alias: str = "", **options: Any) -> None:
        """Run the subcommand."""
        try:
            match action:
                case "rules":
                    self._say(str(explain(settings.rules(), options["method"], options["target"])))
                case "list":
                    self._list(alias, options["prefix"], options["limit"], as_json=options["json"])
                case "show":
                    self._show(alias, options["key"], as_json=options["json"])
                case "release":
                    self._release(alias, options["key"], ask=not options["force"])
        except (WeblockError, ChangedHands) as error:
            raise CommandError(str(error)) from error

    def _say(self, text: str) -> None:
        """Write a line; characters that the terminal does not have are escaped."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def _list(self, alias: str, prefix: str, limit: int, *, as_json: bool) -> None:
        infos = locks[alias].list(prefix, limit=limit)
        if as_json:
            self._say(json.dumps([operating.as_dict(info) for info in infos]))
            return
        if not infos:
            self._say("No key is held or waited for.")
            return
        self._say(operating.table(operating.HEADER, map(operating.row, infos)))
        if len(infos) == limit:
            self.stderr.write(f"There may be more than these {limit}: see --limit.")

    def _show(self, alias: str, key: str, *, as_json: bool) -> None:
        info = locks[alias].inspect(key)
        if as_json:
            self._say(json.dumps(info and operating.as_dict(info)))
        elif info is None:
            self._say(f"{printable(key)} is free.")
        else:
            self._say(operating.sheet(info))

    def _release(self, alias: str, key: str, *, ask: bool) -> None:
        info = locks[alias].inspect(key)
        if info is None or info.holder is None:
            raise CommandError(f"Nobody holds {printable(key)}.")
        if ask and not self._agrees(info):
            raise CommandError("Nothing was released.")
        by = f"{getpass.getuser()} (manage.py)"
        taken = take_away(locks[alias], key, fence=info.fence, by=by)
        if taken is None:
            raise CommandError(f"Nobody holds {printable(key)} any more.")
        self._say(operating.said_of(taken))

    def _agrees(self, info: KeyInfo) -> bool:
        if not sys.stdin.isatty():
            raise CommandError("There is nobody to ask: use --force.")
        self._say(operating.question(info))
        return input("Take it away? [y/N] ").strip().lower() in ("y", "yes")
