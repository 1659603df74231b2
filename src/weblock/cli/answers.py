"""``weblock answers`` and ``forget KEY``: the stored answers to idempotent requests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

import click

from .. import operating
from .._platform.logs import printable
from .._requirements import require
from ..contrib.kit.idempotency import Stored
from ..contrib.kit.once import SEARCHED, KeptAnswers
from .app import No, Session, command, confirmed, pass_session, warn

if TYPE_CHECKING:
    from ..contrib.sqlalchemy.idempotency import StoredAnswers

HEADER: Final = ("IDEMPOTENCY KEY", "REQUEST", "CALLER", "STATUS", "EXPIRES IN")

_database: Final = click.option(
    "--database",
    envvar="WEBLOCK_DATABASE",
    metavar="URL",
    help="The database of the application, as SQLAlchemy takes it; else $WEBLOCK_DATABASE. Without"
    " it: the engine, where idempotent rules store answers.",
)


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
    text = _table(found) if found else "No answer is stored."
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
        question = "Delete these, so that they can be executed again?"
        if found and not force and not confirmed(_table(found), question):
            raise No("nothing was deleted", {"forgotten": 0})
        count = sum(answers.forget(each) for each in found)
    if not count:
        to = f" to {printable(request)}" if request else ""
        raise No(f"no answer{to} is stored for the key {printable(key)}", {"forgotten": 0})
    session.say(f"Deleted {count} answer{'s' * (count > 1)}.", {"forgotten": count})


def _table(answers: Iterable[Stored]) -> str:
    rows = []
    for each in answers:
        left = operating.duration(max(0.0, each.expires_at - time.time()))
        texts = each.idempotency_key, each.request, each.caller[:8], str(each.status), left
        rows.append(tuple(map(printable, texts)))
    return operating.table(HEADER, rows)
