"""Keep locks and the transactions of the database in order.

1. A request acquires its lock before its transaction begins. Inside one, acquiring is rejected: what
   the transaction has read may be outdated, and it would commit after the release.
2. A request that waits gives its database connections back first.
3. Before each COMMIT, the leases are checked, and under a guard the fences in the database, too. If
   one was lost, the transaction is rolled back.

Django has no hook before COMMIT: ``execute_wrappers`` do not see ``connection.commit()``, and
``on_commit`` comes after it. So the method ``commit`` of each connection is replaced once, when the
connection is opened. A wrapper around its statements handles those that would commit in another way:

- A COMMIT as SQL is checked, or rejected under a guard.
- Under a guard, a write outside of any transaction gets a transaction of its own.
- A write in a transaction that ``set_autocommit(False)`` began is rejected, because
  ``set_autocommit(True)`` would commit it on some databases.

What a program does with the cursors and connections of the database's driver is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Protocol

from django.db import connections, transaction
from django.db.backends.signals import connection_created
from django.db.utils import Error
from django.http import HttpRequest

from ..._platform.logs import logger
from ...errors import ConfigurationError, LeaseLost
from ...events import Acquired, Event
from ..kit.book import ENDED_HERE
from ..kit.guarding import Kind, kind_of, refuse_commit
from .guard import Guard
from .internals import is_of_test_case


class Checked(Protocol):
    """What must still be held when work is committed."""

    guard: Guard | None
    """The guard that has written the fences into the databases."""

    @property
    def holds_any(self) -> bool:
        """Whether anything is held."""

    def check(self) -> None:
        """Raise ``LeaseLost`` if a lease is lost."""


checked_at_commit: Final[ContextVar[Checked | None]] = ContextVar("weblock_checked", default=None)
"""The leases of the code that runs here, if they are checked before each COMMIT."""

_WATCHED: Final = "weblock_watched"
"""An attribute of connections whose ``commit`` has been replaced."""


def open_transaction() -> str | None:
    """Return the database on which this thread has a transaction, other than a ``TestCase``'s."""
    for connection in connections.all(initialized_only=True):
        if _has_transaction(connection):
            return str(connection.alias)
    return None


def _has_transaction(connection: Any) -> bool:
    if connection.in_atomic_block:
        return not all(map(is_of_test_case, connection.atomic_blocks))
    # With AUTOCOMMIT off, whatever was asked first has begun one.
    return connection.connection is not None and not connection.autocommit


def _refuse_open_transaction(request: HttpRequest) -> None:
    """Raises ``ConfigurationError`` inside a transaction, which is too late for a lock.

    What such a transaction has read may be stale already, and it commits when the lock has gone.
    """
    if alias := open_transaction():
        view = request.resolver_match.view_name if request.resolver_match else "shop:item"
        raise ConfigurationError(
            f"a lock is acquired inside a transaction on the database {alias!r}, which began before"
            " the lock and would commit after it. With ATOMIC_REQUESTS, put"
            " weblock.contrib.django.middleware.LockMiddleware last into MIDDLEWARE, and @lock"
            " where the middleware sees it: on the view, or on dispatch or the method or action of"
            " its class that serves the request, not on one that this method calls. For an"
            " operation of django-ninja, or a function below @api_view, write a rule instead:"
            f" {{'view': {view!r}, 'methods': [{request.method!r}], 'key': ...}} in RULES. Without"
            " ATOMIC_REQUESTS, put atomic() inside the lock, and leave AUTOCOMMIT on"
        )


def warn_of_transaction(acquired: Event) -> None:
    """Warn that a lock was acquired inside a transaction, such as by ``hold`` in a view."""
    assert isinstance(acquired, Acquired)
    if alias := open_transaction():
        logger.warning(
            "the lock of %.200r is acquired inside a transaction on the database %r, and will"
            " be released before its COMMIT: put atomic() inside the lock",
            acquired.key,
            alias,
        )


def prepare_connections(request: HttpRequest) -> None:
    """Reject an open transaction, and make this thread's connections check before COMMIT."""
    _refuse_open_transaction(request)
    for connection in connections.all(initialized_only=True):
        watch(connection)


def give_back_connections() -> None:
    """Close this thread's connections, or return them to their pool, except in a ``TestCase``."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def write_fences(guard: Guard) -> None:
    """Write the fences that are not yet in the databases, each committed by itself."""
    with _unchecked():
        guard.write()


def watch(connection: Any, **_signal: object) -> None:
    """Check the leases before each COMMIT of a connection, in whatever thread it is used."""
    if not hasattr(connection, _WATCHED):
        setattr(connection, _WATCHED, True)
        connection.commit = partial(_commit, connection, connection.commit)
        # Not the last: execute_wrapper() removes the last when it ends, even if that is another.
        connection.execute_wrappers.insert(0, _execute)


def _commit(connection: Any, commit: Callable[[], None]) -> None:
    if checked := checked_at_commit.get():
        _check(connection, checked)
    commit()


def _execute(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001 - Django's
    """Run a statement, in a checked transaction of its own if it would commit by itself."""
    checked = checked_at_commit.get()
    if checked is None or not (checked.holds_any or checked.guard):
        return execute(sql, params, many, context)
    connection = context["connection"]
    text = sql if isinstance(sql, str) else sql.as_string(connection.connection)  # of psycopg
    kind = kind_of(text, mysql=connection.vendor == "mysql")
    guard = checked.guard
    is_guarded = guard is not None and guard.covers(connection.alias)
    if kind is Kind.COMMITS:
        if is_guarded:
            raise refuse_commit(text)
        _check(connection, checked)
    elif kind is Kind.WRITES and connection.in_atomic_block:
        if not connection.commit_on_exit:
            raise _refuse_own_transaction(connection)
    elif kind is Kind.WRITES and not connection.autocommit:
        raise _refuse_own_transaction(connection)
    elif kind is Kind.WRITES and is_guarded:
        if connections[connection.alias] is not connection:
            raise ConfigurationError(
                f"under a guard, a connection to the database {connection.alias!r} that is not"
                f" connections[{connection.alias!r}], such as its copy(), commits unchecked: use that one"
            )
        with transaction.atomic(using=connection.alias):
            return execute(sql, params, many, context)
    return execute(sql, params, many, context)


def _refuse_own_transaction(connection: Any) -> ConfigurationError:
    return ConfigurationError(
        f"while a lock is held, the database {connection.alias!r} is written in a transaction that"
        " set_autocommit(False) began, or with AUTOCOMMIT off: set_autocommit(True) would commit it"
        " unchecked. Use transaction.atomic(), and leave AUTOCOMMIT on"
    )


def _check(connection: Any, checked: Checked) -> None:
    """Raise ``LeaseLost`` if the transaction must not be committed, after it has been rolled back."""
    try:
        checked.check()
        if guard := checked.guard:
            with _unchecked():
                guard.check_on(connection)
    except BaseException as error:
        if isinstance(error, LeaseLost) and error.reason in ENDED_HERE:
            # The keeper logs all other losses.
            logger.error(  # noqa: TRY400 - where it was raised is plain
                "the transaction on the database %r is rolled back, since the view ended its lease"
                " before the COMMIT, which others must not overtake (%s). Leave the release to"
                " @lock, or end the lease in transaction.on_commit",
                connection.alias,
                error,
            )
        # Atomic turns autocommit on in any case, which commits on SQLite and MySQL; and for errors
        # that are not the database's, it does not roll back before.
        if not connection.in_atomic_block:
            try:
                connection.rollback()
            except Error:
                connection.close()
        raise


@contextmanager
def _unchecked() -> Iterator[None]:
    """Let the guard's own statements pass."""
    token = checked_at_commit.set(None)
    try:
        yield
    finally:
        checked_at_commit.reset(token)


connection_created.connect(watch, dispatch_uid="weblock")
