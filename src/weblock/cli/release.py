"""``weblock release KEY``."""

from __future__ import annotations

import getpass
import sys

import click

from .. import operating
from .._platform.logs import printable
from ..operating import ChangedHands, take_away
from .app import No, Session, Still, command, pass_session
from .output import warn


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
@click.option("--fence", type=int, help="Only if the holder has this fencing token.")
@pass_session
def release_command(
    session: Session, key: str, *, force: bool, gently: bool, timeout: float, fence: int | None
) -> None:
    """Takes KEY away from a holder that hangs.

    The key passes to the first waiter at once. The former holder learns of it when it next renews its
    lease: until then both may be running. Exits with 1 if nothing was released.

    With --gently the holder is asked to release it, and may go on: if it still holds the key after
    the timeout, the command exits with 75, or takes it away if there is --force, too.
    """
    with session.locks() as locks:
        info = locks.inspect(key)
        if info is None or info.holder is None:
            raise No(f"nobody holds {printable(key)}", {"released": False})
        wanted = info.fence if fence is None else fence
        if gently:
            fences = operating.fences_of(info)
            if wanted not in fences:
                raise ChangedHands(key, info)
            fences = fences if fence is None else frozenset({fence})
            if operating.step_down(locks, key, fences, timeout=timeout):
                session.say(operating.said_of_stepping_down(key), {"released": True})
                return
            if not force:
                raise Still(operating.still_held(info), {"released": False})
        elif not force:
            _ask(operating.question(info))
        taken = take_away(locks, key, fence=wanted, by=f"{getpass.getuser()} (weblock)")
    if taken is None:
        raise No(f"nobody holds {printable(key)} any more", {"released": False})
    session.say(operating.said_of(taken), {"released": True, **operating.as_dict(taken)})


def _ask(question: str) -> None:
    if not _is_terminal():
        raise click.UsageError(
            "standard input is not a terminal, so this cannot ask for confirmation: use --force"
        )
    warn(question)
    if not click.confirm("Take it away?", err=True):
        raise No("nothing was released", {"released": False})


def _is_terminal() -> bool:
    return sys.stdin.isatty()
