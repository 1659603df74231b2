"""``weblock list``, ``show KEY`` and ``release KEY``."""

from __future__ import annotations

import getpass

import click

from .. import operating
from .._platform.logs import printable
from . import Code
from .app import No, Session, command, confirmed, pass_session, say, warn


@command("list")
@click.argument("prefix", default="")
@click.option("--limit", default=operating.MOST, show_default=True, help="Maximum number of keys.")
@pass_session
def list_command(session: Session, prefix: str, limit: int) -> None:
    """Lists the keys that are held or waited for; with PREFIX, only keys that start with it."""
    with session.locks() as locks:
        infos = locks.list(prefix, limit=limit)
    say(operating.listed(infos, as_json=session.json))
    if len(infos) == limit and not session.json:
        warn(operating.more_than(limit))


@command("show")
@click.argument("key")
@pass_session
def show_command(session: Session, key: str) -> None:
    """Shows the holders of KEY, and its waiters in the order of the queue.

    Exits with 1 if the key is free.
    """
    with session.locks() as locks:
        info = locks.inspect(key)
    if info is None:
        raise No(f"{printable(key)} is free")
    say(operating.shown(key, info, as_json=session.json))


@command("release")
@click.argument("key")
@click.option("--force", is_flag=True, help="Do not ask for confirmation.")
@click.option("--gently", is_flag=True, help="Ask the holder to release it, and wait until it has.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=operating.GENTLY,
    metavar="SECONDS",
    help="How long to wait with --gently; 30 by default.",
)
@click.option("--fence", type=int, help="Release it only if the holder has this fencing token.")
@pass_session
def release_command(
    session: Session, key: str, *, force: bool, gently: bool, timeout: float, fence: int | None
) -> None:
    """Releases KEY by force, from a holder that hangs.

    The key passes to the first waiter at once. The former holder learns of it when it next renews its
    lease: until then, both can be running. Exits with 1 if nothing was released.

    With --gently, the holder is asked to release the key. If it still holds the key after the timeout,
    the command exits with 75, or with --force also releases the key by force.
    """
    try:
        with session.locks() as locks:
            said, taken = operating.release(
                locks,
                key,
                by=f"{getpass.getuser()} (weblock)",
                agrees=None if force else lambda told: confirmed(told, operating.CONFIRM),
                gently=timeout if gently else None,
                fence=fence,
            )
    except operating.NotReleased as no:
        raise No(str(no), {"released": False}, Code.BUSY if no.still_held else Code.NO) from None
    session.say(said, {"released": True, **(operating.as_dict(taken) if taken else {})})
