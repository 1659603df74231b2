"""``manage.py weblock list``, ``show KEY``, ``release KEY``: who holds what, and taking it away.

``manage.py weblock check`` lists what the project locks, and what is wrong.
``manage.py weblock run KEY -- migrate`` runs another command while it holds a key.
"""

from __future__ import annotations

import getpass
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..... import ConfigurationError, WeblockError, operating
from .....operating import NotReleased
from ....kit import Asked, Locked
from ... import locks, settings
from ...checks import listed
from ...view_lock import DEFAULT


class Command(BaseCommand):
    """Shows who holds keys and who waits for them, and takes keys away from holders that hang."""

    help = (
        "Shows the holders and waiters of keys, releases keys by force, lists what is locked, and runs a command"
        " while it holds a key."
    )
    # It serves in an emergency, whatever else is wrong with the project.
    requires_system_checks: Any = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command that the process was started for."""
        if argv[2:3] != ["run"]:
            super().run_from_argv(argv)
            return
        try:
            _become_run(argv[0], argv[3:])
        except WeblockError as error:
            sys.exit(f"weblock: {error}")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add a subcommand for each operation."""
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="the keys that are held or waited for")
        listing.add_argument(
            "prefix", nargs="?", default="", help="only keys that start with this prefix"
        )
        listing.add_argument(
            "--limit", type=int, default=operating.MOST, help="maximum number of keys (1000)"
        )
        show = actions.add_parser("show", help="the holder of a key, and its queue")
        release = actions.add_parser("release", help="release a key by force")
        release.add_argument("--force", action="store_true", help="do not ask for confirmation")
        release.add_argument(
            "--gently",
            action="store_true",
            help="ask the holder to release it, and wait until it has",
        )
        release.add_argument(
            "--timeout",
            type=float,
            default=operating.GENTLY,
            help="seconds to wait with --gently (30)",
        )
        check = actions.add_parser("check", help="what the project locks, and what is wrong")
        check.add_argument(
            "request", nargs="*", help="only what this request locks, such as POST /items/7"
        )
        run = actions.add_parser("run", help="run a Django command while it holds a key")
        run.add_argument("arguments", nargs="*")
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
                case "check":
                    self._check(options["request"])
                case "list":
                    infos = locks[alias].list(options["prefix"], limit=options["limit"])
                    self._say(operating.listed(infos, as_json=options["json"]))
                    if len(infos) == options["limit"]:
                        self.stderr.write(operating.more_than(options["limit"]))
                case "show":
                    info = locks[alias].inspect(options["key"])
                    self._say(operating.shown(options["key"], info, as_json=options["json"]))
                case "release":
                    said, _ = operating.release(
                        locks[alias],
                        options["key"],
                        by=f"{getpass.getuser()} (manage.py)",
                        agrees=None if options["force"] else self._agrees,
                        gently=options["timeout"] if options["gently"] else None,
                    )
                    self._say(said)
                case "run":
                    raise CommandError(
                        "weblock run works on the command line, directly after weblock, as in manage.py"
                        " weblock run KEY --settings shop.settings -- migrate; in code, use"
                        " locks[...].run(key, call_command, ...)"
                    )
        except NotReleased as no:
            code = operating.STILL_HELD if no.still_held else 1
            raise CommandError(str(no), returncode=code) from no
        except WeblockError as error:
            raise CommandError(str(error)) from error

    def _say(self, text: str) -> None:
        """Write a line; characters that the terminal does not have are escaped."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def _check(self, request: Sequence[str]) -> None:
        if len(request) not in (0, 2):
            raise CommandError("a request is a method and a path, as in POST /items/7")
        found = list(listed(Asked.of(*request) if request else None))
        for each in found:
            if isinstance(each, Locked):
                self._say(str(each))
        if wrong := [str(each) for each in found if isinstance(each, ConfigurationError)]:
            raise CommandError("\n".join(wrong))
        if not any(isinstance(each, Locked) and each.keys for each in found):
            raise CommandError(
                f"nothing locks {' '.join(request)}" if request else "nothing is locked"
            )

    def _agrees(self, question: str) -> bool:
        if not sys.stdin.isatty():
            raise NotReleased(operating.NO_TERMINAL)
        self._say(question)
        return input(f"{operating.CONFIRM} [y/N] ").strip().lower() in ("y", "yes")


def _become_run(program: str, arguments: list[str]) -> None:
    """Become ``weblock run``, which runs a process for the command: options, signals and codes are its own."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own, command = arguments[:at], arguments[at + 1 :]
    is_key_first = bool(own) and not own[0].startswith("-")
    if not (command and is_key_first) and not {"-h", "--help"}.intersection(own):
        raise ConfigurationError(
            "write the key first, then options, and -- before the command, as in run KEY --wait 30 -- migrate"
        )
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--alias", default=DEFAULT)
    for option in ("--settings", "--pythonpath"):  # Django has read them.
        parser.add_argument(option)
    known, own = parser.parse_known_args(own)
    found = locks[known.alias]  # The checks of its options are made, too.
    url = settings.current()[known.alias].url
    if command:
        is_module = Path(program).name == "__main__.py"
        own += ["--", sys.executable, *(["-m", "django"] if is_module else [program]), *command]
    env = {  # Not arguments, which other users can see: a URL may have a password.
        **os.environ,
        "WEBLOCK_URL": url if isinstance(url, str) else " ".join(url),
        "WEBLOCK_NAMESPACE": found.namespace,
    }
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    arguments = [sys.executable, "-m", "weblock", "run", *own]
    os.execve(sys.executable, arguments, env)  # noqa: S606 - it is weblock
