"""What all commands have in common: the engine, the output, and how errors end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any, Final

import click

from .. import Locks, LocksOptions, __version__, operating
from .._platform.logs import printable
from ..errors import ConfigurationError, LeaseLost, LockTimeout, WeblockError
from ..stores.url import DEFAULT
from . import Code

COMMANDS: Final = {
    "list": "keys",
    "show": "keys",
    "release": "keys",
    "watch": "watch",
    "ping": "doctor",
    "doctor": "doctor",
    "ddl": "doctor",
    "bench": "bench",
    "run": "run",
    "check": "check",
    "answers": "answers",
    "forget": "answers",
    "status": "status",
}
"""The module of each command, in the order of ``--help``. It is imported when it is needed."""


class Session:
    """The options of all commands: where the locks are, and the form of the output."""

    url: Sequence[str] = ()
    namespace: str | None = None
    json = False

    def locks(self, *, logs: int = logging.CRITICAL) -> Locks:
        """Return the locks that are meant, for a ``with`` block. Raises ``ConfigurationError``.

        A command says by itself what happens. Of what weblock logs, only what is of the level ``logs``
        goes to standard error.
        """
        for name in ("weblock", "kazoo"):  # Other drivers log nothing.
            logging.getLogger(name).setLevel(logs)
        # A URL may say recovery=2, and no command but ``run``, which has a ttl of its own, holds a key for long.
        urls, options = self.urls(), LocksOptions(ttl=1.0)
        if namespace := self.namespace or os.environ.get("WEBLOCK_NAMESPACE"):
            options["namespace"] = namespace
        return Locks.from_url(urls if len(urls) > 1 else urls[0] if urls else DEFAULT, **options)

    def urls(self) -> list[str]:
        """Return the URLs that are meant: of the options, else of the environment."""
        return list(self.url or os.environ.get("WEBLOCK_URL", "").split())

    def say(self, text: str, facts: object) -> None:
        """Write the answer of a command: ``text`` for people, or ``facts`` as JSON for programs."""
        say(json.dumps(facts) if self.json else text)


pass_session = click.make_pass_decorator(Session, ensure=True)


class No(Exception):
    """The answer to the question is no. ``facts`` are what ``--json`` prints of it."""

    def __init__(self, text: str, facts: object = None, code: Code = Code.NO) -> None:
        super().__init__(text)
        self.facts = facts
        self.code = code


_CODES: Final = {
    ConfigurationError: Code.USAGE,
    LockTimeout: Code.BUSY,
    LeaseLost: Code.LOST,
    WeblockError: Code.UNAVAILABLE,
}


class Command(click.Command):
    """A command that takes the engine's options behind its own name, too."""

    allow_extra_args = True
    """So that they can be refused in words of ours, which show no password."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += common_options()
        # The first sentence, whole: ``--help`` of all commands wraps it.
        self.short_help = (self.help or "").partition("\n")[0]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments as click does; for a URL beyond them, name the missing option."""
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            _refuse_url(rest[0], ctx)
            ctx.fail(f"unexpected argument: {rest[0]}")
        for each in self.params:
            if (value := ctx.params.get(str(each.name))) != value:  # It is inside every range.
                raise click.BadParameter("nan is not a number", ctx, each)
        return rest

    def invoke(self, context: click.Context) -> Any:
        """Run the command, and exit as the error says that it raises.

        In JSON, an answer goes to standard output, and an error to standard error.
        """
        session = context.ensure_object(Session)
        try:
            return super().invoke(context)
        except No as no:
            if session.json:
                say(json.dumps(no.facts))
            else:
                warn("weblock: " + "\n".join(map(printable, str(no).split("\n"))))
            raise SystemExit(no.code) from no
        except WeblockError as error:
            text = in_options(error.for_operators, self)
            facts = {"error": type(error).__name__, "message": text}
            warn(json.dumps(facts) if session.json else f"weblock: {printable(text)}")
            code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
            raise SystemExit(code) from error


def in_options(text: str, command: click.Command) -> str:
    """Return an error's text with the options of a command: ``--wait 3`` for Python's ``wait=3``."""
    flags = {each.name: each.opts[0] for each in command.params if isinstance(each, click.Option)}
    return re.sub(
        rf"\b({'|'.join(map(str, flags))})=(?:True\b)?(['\"\w-])?",
        lambda found: f"{flags[found[1]]} {found[2] or ''}".rstrip(),
        text,
    )


class App(click.Group):
    """Imports each command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """The names, in the order of ``COMMANDS``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of a name; ``None`` if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__package__}.{COMMANDS[cmd_name]}")
        found: click.Command = getattr(module, f"{cmd_name}_command")
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Resolve a command as click does; for a URL in its place, name the missing option."""
        if args:
            _refuse_url(args[0], ctx)
        return super().resolve_command(ctx, args)


def _refuse_url(word: str, context: click.Context) -> None:
    if "://" in word:
        raise click.UsageError("give the engine's URL with --url, or in WEBLOCK_URL", context)


def command(name: str) -> Callable[[Callable[..., None]], Command]:
    """Decorate the function that is a command; its docstring is the help."""
    return click.command(name, cls=Command)


def common_options() -> list[click.Parameter]:
    """Return the options that stand before a command's name or behind it."""
    common: dict[str, Any] = {"callback": _remember, "expose_value": False}
    url = (
        "The engine. Repeat it for a quorum. Without it: $WEBLOCK_URL, else file://. A password is"
        " safer in $WEBLOCK_URL, since other users can see the arguments."
    )
    namespace = 'The namespace of the application\'s keys; else $WEBLOCK_NAMESPACE, else "default".'
    in_json = "Write JSON, for programs. Durations are seconds."
    return [
        click.Option(["--url"], multiple=True, metavar="URL", help=url, **common),
        click.Option(["--namespace"], metavar="NAME", help=namespace, **common),
        click.Option(["--json"], is_flag=True, help=in_json, **common),
    ]


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(context.ensure_object(Session), str(parameter.name), value)


@click.group(
    cls=App,
    params=common_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="weblock", message="%(prog)s %(version)s")
def app() -> None:
    """Shows, tests and uses the locks of an application.

    Exit codes: 0 done; 1 the answer is no; 2 wrong arguments; 69 the engine is unavailable; 75 the
    key was not free in time; 76 the lease was lost.
    """
    for stream in (sys.stdout, sys.stderr):
        # A key may have characters that a terminal's encoding lacks.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Write a line to standard output; click's own function takes ASCII there for UTF-8."""
    click.echo(text, file=sys.stdout)


def warn(text: str) -> None:
    """Write a line to standard error; if it takes none, the exit code says enough."""
    with contextlib.suppress(OSError):
        click.echo(text, file=sys.stderr)


def confirmed(told: str, question: str) -> bool:
    """Tell a person something, and return whether the person then says yes."""
    if not sys.stdin.isatty():
        raise click.UsageError(operating.NO_TERMINAL)
    warn(told)
    return click.confirm(question, err=True)
