"""``flask weblock list``, ``show KEY``, ``release KEY``: see who holds what, and take it away."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ... import operating
from ...errors import WeblockError
from ...operating import ChangedHands, NotReleased
from ...sync import Locks


class _Still(click.ClickException):
    """The holder was asked to release, and goes on."""

    exit_code = operating.STILL_HELD


def commands(locks: Locks) -> click.Group:
    """Return the commands of an application with these locks."""
    as_json = click.option("--json", "as_json", is_flag=True, help="For programs.")

    @click.group("weblock")
    def group() -> None:
        """Show who holds keys and who waits, and release keys by force."""

    @group.command("list")
    @click.argument("prefix", default="")
    @click.option(
        "--limit", default=operating.MOST, show_default=True, help="How many keys at most."
    )
    @as_json
    def listing(prefix: str, limit: int, *, as_json: bool) -> None:
        """List the keys that are held or waited for; only those that begin with PREFIX."""
        with _errors():
            infos = locks.list(prefix, limit=limit)
        click.echo(operating.listed(infos, as_json=as_json))
        if len(infos) == limit:
            click.echo(operating.more_than(limit), err=True)

    @group.command("show")
    @click.argument("key")
    @as_json
    def show(key: str, *, as_json: bool) -> None:
        """Show who holds KEY, and who waits for it, in the order of their turn."""
        with _errors():
            click.echo(operating.shown(key, locks.inspect(key), as_json=as_json))

    @group.command("release")
    @click.argument("key")
    @click.option("--force", is_flag=True, help="Do not ask.")
    @click.option("--gently", is_flag=True, help="Ask the holder to release it, and wait for that.")
    @click.option("--timeout", default=operating.GENTLY, help="Seconds to wait with --gently.")
    def release(key: str, *, force: bool, gently: bool, timeout: float) -> None:
        """Take KEY away from its holder, for one that hangs."""
        with _errors():
            said, _ = operating.release(
                locks,
                key,
                by=f"{getpass.getuser()} (flask)",
                agrees=None if force else _agrees,
                gently=timeout if gently else None,
            )
        click.echo(said)

    return group


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what a command raises as click reports it."""
    try:
        yield
    except (WeblockError, ChangedHands, NotReleased) as error:
        still = isinstance(error, NotReleased) and error.still_held
        raise (_Still if still else click.ClickException)(str(error)) from error


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise NotReleased(operating.NO_TERMINAL)
    click.echo(question)
    return click.confirm(operating.CONFIRM)
