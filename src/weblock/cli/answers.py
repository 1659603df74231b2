"""``weblock answers`` and ``forget KEY``: the stored answers to idempotent requests."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from .. import operating
from .._platform.logs import printable
from .._requirements import require
from ..contrib.kit.idempotency import Stored
from ..contrib.kit.once import SEARCHED, KeptAnswers
from .app import No, Session, command, console, pass_session, table, warn
from .keys import _is_terminal

if TYPE_CHECKING:
    from ..contrib.sqlalchemy.idempotency import StoredAnswers

HEADER: Final = ("IDEMPOTENCY KEY", "REQUEST", "CALLER", "STATUS", "EXPIRES IN")

_Function = Callable[..., Any]


def _database(function: _Function) -> _Function:
    text = (
        "The database of the application, as SQLAlchemy takes it; else $WEBLOCK_DATABASE. Without it: the"
        " engine, where idempotent rules store answers."
    )
    return click.option("--database", envvar="WEBLOCK_DATABASE", metavar="URL", help=text)(function)


@contextmanager
def _answers(session: Session, database: str | None) -> Iterator[KeptAnswers | StoredAnswers]:
    if database:
        require("weblock answers --database", "sqlalchemy")
        from ..contrib.sqlalchemy.idempotency import StoredAnswers

        with closing(StoredAnswers(database)) as found:
            yield found
    else:
        with session.locks() as locks:
            yield KeptAnswers(locks)


@command("answers")
@click.argument("key", required=False)
@click.option("--limit", default=operating.MOST, show_default=True, help="How many at most.")
@_database
@pass_session
def answers_command(session: Session, key: str | None, limit: int, database: str | None) -> None:
    """Lists the stored answers to idempotent requests; only those with the idempotency key KEY.

    Equal callers have equal digests. Bodies are not shown.
    """
    with _answers(session, database) as answers:
        found = answers.all(limit, key)
    rows = list(map(_row, found))
    if rows and sys.stdout.isatty() and not session.json:
        console().print(table(HEADER, rows))
    else:
        text = operating.table(HEADER, rows) if rows else "No answer is stored."
        session.say(text, [each._asdict() for each in found])
    if len(found) == limit and not session.json:
        warn(operating.more_than(limit, "answers"))


@command("forget")
@click.argument("key")
@click.option("--request", metavar="'METHOD PATH'", help="Only the answer to this request.")
@click.option("--force", is_flag=True, help="Do not ask for confirmation.")
@_database
@pass_session
def forget_command(
    session: Session, key: str, *, request: str | None, force: bool, database: str | None
) -> None:
    """Deletes the stored answers to requests with the idempotency key KEY, of all callers.

    A request that is sent again is then executed again. Exits with 1 if nothing was deleted.
    """
    with _answers(session, database) as answers:
        found = [each for each in answers.all(SEARCHED, key) if request in (None, each.request)]
        if found and not force:
            if not _is_terminal():
                raise click.UsageError(operating.NO_TERMINAL)
            warn(operating.table(HEADER, map(_row, found)))
            if not click.confirm("Delete these, so that they can be executed again?", err=True):
                raise No("nothing was deleted", {"forgotten": 0})
        count = sum(answers.forget(each) for each in found)
    if not count:
        to = f" to {printable(request)}" if request else ""
        raise No(f"no answer{to} is stored for the key {printable(key)}", {"forgotten": 0})
    session.say(f"Deleted {count} answer{'s' * (count > 1)}.", {"forgotten": count})


def _row(answer: Stored) -> tuple[str, ...]:
    left = operating.duration(max(0.0, answer.expires_at - time.time()))
    texts = answer.idempotency_key, answer.request, answer.caller[:8], str(answer.status), left
    return tuple(map(printable, texts))
