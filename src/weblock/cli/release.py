"""``weblock release KEY``."""

from __future__ import annotations

import getpass
import sys

import click

from .. import operating
from .._platform.logs import printable
from ..operating import take_away
from .app import No, Session, command, pass_session
from .output import warn


@command("release")
@click.argument("key")
@click.option("--force", is_flag=True, help="Do not ask.")
@click.option("--fence", type=int, help="Only if the holder has this fencing token.")
@pass_session
def release_command(session: Session, key: str, *, force: bool, fence: int | None) -> None:
    """Takes KEY away from its holder, for one that hangs.

    The key passes to the first waiter at once. The former holder learns of it when it next renews its
    lease: until then both may be running. Exits with 1 if nothing was released.
    """
    with session.locks() as locks:
        info = locks.inspect(key)
        if info is None or info.holder is None:
            raise No(f"nobody holds {printable(key)}", {"released": False})
        if not force:
            _ask(operating.question(info))
        wanted = info.fence if fence is None else fence
        taken = take_away(locks, key, fence=wanted, by=f"{getpass.getuser()} (weblock)")
    if taken is None:
        raise No(f"nobody holds {printable(key)} any more", {"released": False})
    session.say(operating.said_of(taken), {"released": True, **operating.as_dict(taken)})


def _ask(question: str) -> None:
    if not _is_terminal():
        raise click.UsageError("there is nobody to ask: use --force")
    warn(question)
    if not click.confirm("Take it away?", err=True):
        raise No("nothing was released", {"released": False})


def _is_terminal() -> bool:
    return sys.stdin.isatty()
