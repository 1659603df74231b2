"""``flask weblock list``, ``show KEY``, ``release KEY``: see who holds what, and take it away."""

from __future__ import annotations

import getpass
import sys
from typing import Any

import click

from ... import operating
from ...errors import WeblockError
from ...sync import Locks


class _StillHeld(click.ClickException):
    exit_code = operating.STILL_HELD


class _Group(click.Group):
    """Reports the errors of weblock as click does."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (WeblockError, operating.NotReleased) as error:
            still = isinstance(error, operating.NotReleased) and error.still_held
            raise (_StillHeld if still else click.ClickException)(str(error)) from error


def commands(locks: Locks) -> click.Group:
    """Return the commands of an application with these locks."""
    as_json = click.option("--json", "as_json", is_flag=True, help="For programs.")

    @click.group("weblock", cls=_Group)
    def group() -> None:
        """Show who holds keys and who waits, and release keys by force."""

    @group.command("list")
    @click.argument("prefix", default="")
    @click.option("--limit", default=operating.MOST, show_default=True, help="At most so many.")
    @as_json
    def listing(prefix: str, limit: int, *, as_json: bool) -> None:
        """List the keys that are held or waited for; only those that begin with PREFIX."""
        infos = locks.list(prefix, limit=limit)
        click.echo(operating.listed(infos, as_json=as_json))
        if len(infos) == limit:
            click.echo(operating.more_than(limit), err=True)

    @group.command("show")
    @click.argument("key")
    @as_json
    def show(key: str, *, as_json: bool) -> None:
        """Show who holds KEY, and who waits for it, in the order of their turn."""
        click.echo(operating.shown(key, locks.inspect(key), as_json=as_json))

    @group.command("release")
    @click.argument("key")
    @click.option("--force", is_flag=True, help="Do not ask.")
    @click.option("--gently", is_flag=True, help="Ask the holder to release it, and wait for that.")
    @click.option("--timeout", default=operating.GENTLY, help="Seconds to wait with --gently.")
    def release(key: str, *, force: bool, gently: bool, timeout: float) -> None:
        """Take KEY away from its holder, for one that hangs."""
        by, agrees = f"{getpass.getuser()} (flask)", None if force else _agrees
        wait = timeout if gently else None
        click.echo(operating.release(locks, key, by=by, agrees=agrees, gently=wait)[0])

    return group


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise operating.NotReleased(operating.NO_TERMINAL)
    click.echo(question)
    return click.confirm(operating.CONFIRM)
