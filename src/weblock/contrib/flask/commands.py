"""``flask weblock list``, ``show KEY``, ``release KEY``: see who holds what, and take it away."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Callable
from typing import TypeVar

import click

from ... import operating
from ..._platform.logs import printable
from ...errors import WeblockError
from ...inspection import KeyInfo
from ...operating import ChangedHands
from ...sync import Locks

T = TypeVar("T")


class _Still(click.ClickException):
    """The holder was asked to release, and goes on."""

    exit_code = operating.STILL_HELD


def commands(locks: Locks) -> click.Group:
    """Return the commands of an application with these locks."""
    group = click.Group(
        "weblock", help="Shows who holds keys and who waits, and releases keys by force."
    )
    for command in (_list, _show, _release):
        group.add_command(command(locks))
    return group


def _list(locks: Locks) -> click.Command:
    @click.command("list")
    @click.argument("prefix", default="")
    @click.option("--limit", default=1000, show_default=True, help="How many keys at most.")
    @click.option("--json", "as_json", is_flag=True, help="For programs.")
    def command(prefix: str, limit: int, *, as_json: bool) -> None:
        """List the keys that are held or waited for; only those that begin with PREFIX."""
        infos = _asked(lambda: locks.list(prefix, limit=limit))
        if as_json:
            click.echo(json.dumps([operating.as_dict(info) for info in infos]))
        elif infos:
            click.echo(operating.table(operating.HEADER, map(operating.row, infos)))
        else:
            click.echo("No key is held or waited for.")
        if len(infos) == limit:
            click.echo(f"There may be more than these {limit}: see --limit.", err=True)

    return command


def _show(locks: Locks) -> click.Command:
    @click.command("show")
    @click.argument("key")
    @click.option("--json", "as_json", is_flag=True, help="For programs.")
    def command(key: str, *, as_json: bool) -> None:
        """Show who holds KEY, and who waits for it, in the order of their turn."""
        info = _asked(lambda: locks.inspect(key))
        if as_json:
            click.echo(json.dumps(info and operating.as_dict(info)))
        else:
            click.echo(operating.sheet(info) if info else f"{printable(key)} is free.")

    return command


def _release(locks: Locks) -> click.Command:
    @click.command("release")
    @click.argument("key")
    @click.option("--force", is_flag=True, help="Do not ask.")
    @click.option("--gently", is_flag=True, help="Ask the holder to release it, and wait for that.")
    @click.option("--timeout", default=operating.GENTLY, help="Seconds to wait with --gently.")
    def command(key: str, *, force: bool, gently: bool, timeout: float) -> None:
        """Take KEY away from its holder, for one that hangs."""
        info = _asked(lambda: locks.inspect(key))
        if info is None or info.holder is None:
            raise click.ClickException(f"Nobody holds {printable(key)}.")
        if gently:
            fences = operating.fences_of(info)
            if _asked(lambda: operating.step_down(locks, key, fences, timeout=timeout)):
                click.echo(operating.said_of_stepping_down(key))
                return
            if not force:
                raise _Still(operating.still_held(info))
        elif not force:
            _ask(info)
        by = f"{getpass.getuser()} (flask)"
        taken = _asked(lambda: operating.take_away(locks, key, fence=info.fence, by=by))
        if taken is None:
            raise click.ClickException(f"Nobody holds {printable(key)} any more.")
        click.echo(operating.said_of(taken))

    return command


def _asked(question: Callable[[], T]) -> T:
    try:
        return question()
    except (WeblockError, ChangedHands) as error:
        raise click.ClickException(str(error)) from error


def _ask(info: KeyInfo) -> None:
    if not sys.stdin.isatty():
        raise click.ClickException(
            "Standard input is not a terminal, so this cannot ask for confirmation: use --force."
        )
    click.echo(operating.question(info))
    if not click.confirm("Take it away?"):
        raise click.ClickException("Nothing was released.")
