"""What locks have to do with the transactions of the database."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, Protocol

from django.db import connections
from django.db.backends.signals import connection_created
from django.db.utils import Error

from ...errors import ConfigurationError, LeaseLost
from .internals import is_of_test_case


class Checked(Protocol):
    """What is to be ours still when work is committed."""

    def check(self) -> None:
        """Raises ``LeaseLost`` if it is not."""


checked_at_commit: Final[ContextVar[Checked | None]] = ContextVar("weblock_checked", default=None)
"""What the code that runs here holds, if it is to be checked before each COMMIT."""

_GUARDED: Final = "weblock_guarded"


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


def prepare_connections() -> None:
    """Refuses a transaction that is open, and has this thread's connections ask before COMMIT."""
    _refuse_open_transaction()
    for connection in connections.all(initialized_only=True):
        _guard(connection)


def give_back_connections() -> None:
    """Returns this thread's connections to their pool or server, but for those of a ``TestCase``."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _guard(connection: Any, **_facts: object) -> None:
    """Has each COMMIT on ``connection`` ask first.

    Django has no hook before COMMIT. What it has is this method, which all transactions end with.
    """
    if getattr(connection, _GUARDED, False):
        return
    commit = connection.commit  # Whose it may be: others wrap it, too.

    def commit_if_held() -> None:
        try:
            if checked := checked_at_commit.get():
                checked.check()
        except LeaseLost:
            _roll_back(connection)  # Atomic does it for errors of the database alone.
            raise
        commit()

    connection.commit = commit_if_held
    setattr(connection, _GUARDED, True)


def _roll_back(connection: Any) -> None:
    try:
        connection.rollback()
    except Error:
        connection.close()


connection_created.connect(_guard, dispatch_uid="weblock")
