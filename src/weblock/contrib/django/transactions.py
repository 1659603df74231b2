"""What locks have to do with the transactions of the database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final, Protocol

from django.db import connections
from django.db.backends.signals import connection_created
from django.db.utils import Error

from ...errors import ConfigurationError, LeaseLost
from .guard import Guard, guarded_databases, watch, watch_on
from .internals import is_of_test_case
from .settings import guards


class Checked(Protocol):
    """What is to be ours still when work is committed."""

    guard: Guard | None
    """What the databases are to know of it."""

    def check(self) -> None:
        """Raises ``LeaseLost`` if it is not."""


checked_at_commit: Final[ContextVar[Checked | None]] = ContextVar("weblock_checked", default=None)
"""What the code that runs here holds, if it is to be checked before each COMMIT."""

_GUARDED: Final = "weblock_guarded"

_COMMITS: Final = re.compile(
    r"(?:^|[;\n]|\*/)\s*(?:COMMIT|END|PREPARE\s+TRANSACTION)\b", re.IGNORECASE
)
"""SQL that may commit. Where it matches more, a check too many costs nothing."""


def open_transaction() -> str | None:
    """The database on which this thread has a transaction open; not that around a ``TestCase``."""
    for connection in connections.all(initialized_only=True):
        if _has_transaction(connection):
            return str(connection.alias)
    return None


def _has_transaction(connection: Any) -> bool:
    if connection.in_atomic_block:
        return not all(map(is_of_test_case, connection.atomic_blocks))
    # With AUTOCOMMIT off, whatever was asked first has begun one.
    return connection.connection is not None and not connection.autocommit


def _refuse_open_transaction() -> None:
    """Raises ``ConfigurationError`` inside a transaction, which is too late for a lock.

    What such a transaction has read may be stale already, and it commits when the lock has gone.
    """
    if alias := open_transaction():
        raise ConfigurationError(
            f"a lock is wanted inside a transaction on the database {alias!r}, which began before"
            " the lock and would commit after it. With ATOMIC_REQUESTS, put"
            " weblock.contrib.django.middleware.LockMiddleware last into MIDDLEWARE, and @lock"
            " where the middleware sees it: on the view, or on a method of its class. Otherwise"
            " put atomic() inside the lock, and leave AUTOCOMMIT on"
        )


def prepare_connections(guarded: Iterable[str] = ()) -> None:
    """Refuses a transaction that is open, and has this thread's connections ask before COMMIT.

    Those to the ``guarded`` databases ask these, too.
    """
    _refuse_open_transaction()
    for connection in connections.all(initialized_only=True):
        _guard(connection)
    for alias in guarded:
        watch(connections[alias], current_guard)


def current_guard() -> Guard | None:
    """What the databases are to know of the code that runs here."""
    checked = checked_at_commit.get()
    return checked.guard if checked else None


def _opened(connection: Any, **_facts: object) -> None:
    """Looks after a connection that has just been opened, in whatever thread."""
    _guard(connection)
    if any(connection.alias in guarded_databases(each.databases) for each in guards()):
        watch(connection, current_guard).opened()


def give_back_connections() -> None:
    """Returns this thread's connections to their pool or server, but for those of a ``TestCase``."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _guard(connection: Any) -> None:
    """Check the leases before every commit on ``connection``."""
    if not getattr(connection, _GUARDED, False):
        _CommitCheck(connection)
        setattr(connection, _GUARDED, True)


class _CommitCheck:
    """Asks before each COMMIT on one connection whether what we hold is still ours.

    Django has no hook before COMMIT. What it has are the methods of the connection that each
    transaction ends with, which others may have wrapped, too; and wrappers of each statement, which
    notice a COMMIT that is sent as SQL.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._commit, connection.commit = connection.commit, self.commit
        self._rollback, connection.rollback = connection.rollback, self.rollback
        self._set_autocommit = connection.set_autocommit
        connection.set_autocommit = self.set_autocommit
        connection.execute_wrappers.append(self.execute)
        self._is_open = False

    def commit(self) -> None:
        self._check()
        self._commit()
        self._is_open = False

    def rollback(self) -> None:
        self._rollback()
        self._is_open = False

    def set_autocommit(self, autocommit: bool, **more: bool) -> None:  # noqa: FBT001 - Django's
        # It commits on SQLite and MySQL. Atomic calls it too, when it has committed or rolled back.
        if autocommit and self._is_open and not self._connection.autocommit:
            self._check()
        self._set_autocommit(autocommit, **more)
        self._is_open = False

    def execute(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        if checked_at_commit.get():
            text = sql if isinstance(sql, str) else sql.as_string(self._connection.connection)
            if _COMMITS.search(text):
                self._check()
        self._is_open = True
        return execute(sql, params, many, context)

    def _check(self) -> None:
        try:
            if checked := checked_at_commit.get():
                checked.check()
            if watching := watch_on(self._connection):
                watching.check()
        except LeaseLost:
            # Atomic rolls back by itself, but at the commit only for errors of the database.
            if not self._connection.in_atomic_block:
                self._undo()
            raise

    def _undo(self) -> None:
        try:
            self._connection.rollback()
        except Error:
            self._connection.close()


connection_created.connect(_opened, dispatch_uid="weblock")
