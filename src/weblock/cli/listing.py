"""``weblock list`` and ``weblock show KEY``."""

from __future__ import annotations

import click

from .. import operating
from .._platform.logs import printable
from .app import No, Session, command, pass_session
from .output import say, show_table, warn


@command("list")
@click.argument("prefix", default="")
@click.option("--limit", default=operating.MOST, show_default=True, help="How many keys at most.")
@pass_session
def list_command(session: Session, prefix: str, limit: int) -> None:
    """Lists the keys that are held or waited for; only those that begin with PREFIX."""
    with session.locks() as locks:
        infos = locks.list(prefix, limit=limit)
    if session.json:
        session.say("", [operating.as_dict(info) for info in infos])
        return
    if not infos:
        say(operating.NOTHING)
        return
    show_table(operating.HEADER, map(operating.row, infos))
    if len(infos) == limit:
        warn(operating.more_than(limit))


@command("show")
@click.argument("key")
@pass_session
def show_command(session: Session, key: str) -> None:
    """Shows who holds KEY, and who waits for it, in the order of their turn.

    Exits with 1 if the key is free.
    """
    with session.locks() as locks:
        info = locks.inspect(key)
    if info is None:
        raise No(f"{printable(key)} is free")
    session.say(operating.sheet(info), operating.as_dict(info))
