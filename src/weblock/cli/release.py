"""``weblock release KEY``."""

from __future__ import annotations

import getpass
import sys

import click

from .. import operating
from ..operating import NotReleased
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
    try:
        with session.locks() as locks:
            said, taken = operating.release(
                locks,
                key,
                by=f"{getpass.getuser()} (weblock)",
                agrees=None if force else _agrees,
                gently=timeout if gently else None,
                fence=fence,
            )
    except NotReleased as no:
        raise (Still if no.still_held else No)(str(no), {"released": False}) from None
    session.say(said, {"released": True, **(operating.as_dict(taken) if taken else {})})


def _agrees(question: str) -> bool:
    if not _is_terminal():
        raise click.UsageError(operating.NO_TERMINAL)
    warn(question)
    return click.confirm(operating.CONFIRM, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()
