"""How locks and the transactions of the database work together.

A lock comes before its transaction, and is checked before each COMMIT. Every connection then asks
whether what runs there still holds its leases. Where ``GUARD`` is set, it also has the fences
written before the work begins, and asks the database itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, Final, Protocol

from django.db import connections, transaction
from django.db.backends.signals import connection_created
from django.db.backends.utils import CursorWrapper
from django.db.utils import Error
from django.http import HttpRequest

from ..._platform.logs import logger
from ...errors import ConfigurationError, LeaseLost
from ...events import Acquired, Event
from ..guarding import Kind, kind_of, refuse_commit
from ..request import ENDED_HERE
from .guard import Guard
from .internals import is_of_test_case


class Checked(Protocol):
    """What must still be held when work is committed."""

    guard: Guard | None
    """The guard that writes the fences into the databases."""

    def check(self) -> None:
        """Raise ``LeaseLost`` if a lease is lost."""


checked_at_commit: Final[ContextVar[Checked | None]] = ContextVar("weblock_checked", default=None)
"""The leases of the code that runs here, if they are checked before each COMMIT."""

_CHECKED: Final = "weblock_checked"
_WATCH: Final = "weblock_watch"
"""Attributes of a connection that is watched."""


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


def prepare_connections(request: HttpRequest, guarded: Iterable[str]) -> None:
    """Reject an open transaction, and make this thread's connections check before COMMIT.

    Connections to the ``guarded`` databases check the fences, too.
    """
    _refuse_open_transaction(request)
    for connection in connections.all(initialized_only=True):
        _check_commits(connection)
    for alias in guarded:
        _watch(connections[alias])


def current_guard() -> Guard | None:
    """Return the guard of the code that runs here."""
    checked = checked_at_commit.get()
    return checked.guard if checked else None


def _opened(connection: Any, **_facts: object) -> None:
    """Watch a connection that has just been opened, in any thread."""
    _check_commits(connection)
    if _is_guarded_now(connection):
        _watch(connection).opened()


def _is_guarded_now(connection: Any) -> bool:
    """Return whether the code that runs here guards this database."""
    guard = current_guard()
    return guard is not None and guard.covers(connection.alias)


def give_back_connections() -> None:
    """Close this thread's connections, or return them to their pool, except in a ``TestCase``."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _check_commits(connection: Any) -> None:
    """Check the leases before every commit on ``connection``."""
    if not getattr(connection, _CHECKED, False):
        _CommitCheck(connection)
        setattr(connection, _CHECKED, True)


class _CommitCheck:
    """Checks before each COMMIT on one connection that the leases are still held.

    Django has no hook before COMMIT. So this wraps the methods of the connection that end a
    transaction, which others may have wrapped, too, and each statement, to notice a COMMIT that is
    sent as SQL.

    Where it notices that guarded code has come to a connection that nobody watches yet, such as one
    that another thread keeps, it has the connection watched before it goes on.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._commit, connection.commit = connection.commit, self.commit
        self._rollback, connection.rollback = connection.rollback, self.rollback
        self._set_autocommit = connection.set_autocommit
        connection.set_autocommit = self.set_autocommit
        self._make_cursor, connection.make_cursor = connection.make_cursor, self.make_cursor
        self._make_debug_cursor = connection.make_debug_cursor
        connection.make_debug_cursor = self.make_debug_cursor
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
        if self._begins_to_watch():
            self._connection.set_autocommit(autocommit, **more)
            return
        # It commits on SQLite and MySQL. Atomic calls it too, when it has committed or rolled back.
        if autocommit and self._is_open and not self._connection.autocommit:
            self._check()
        self._set_autocommit(autocommit, **more)
        self._is_open = False

    def make_cursor(self, cursor: Any) -> Any:
        if self._begins_to_watch():
            return self._connection.make_cursor(cursor)
        return self._make_cursor(cursor)

    def make_debug_cursor(self, cursor: Any) -> Any:
        if self._begins_to_watch():
            return self._connection.make_debug_cursor(cursor)
        return self._make_debug_cursor(cursor)

    def execute(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        if self._begins_to_watch():  # It is a cursor from before.
            execute = partial(self.execute, execute)
            return _watch(self._connection).execute(execute, sql, params, many, context)
        if checked_at_commit.get() and _kind(self._connection, sql) is Kind.COMMITS:
            self._check()
        self._is_open = True
        return execute(sql, params, many, context)

    def _begins_to_watch(self) -> bool:
        if hasattr(self._connection, _WATCH) or not _is_guarded_now(self._connection):
            return False
        _watch(self._connection)
        return True

    def _check(self) -> None:
        try:
            if checked := checked_at_commit.get():
                checked.check()
            if watch := getattr(self._connection, _WATCH, None):
                watch.check()
        except LeaseLost as loss:
            if loss.reason in ENDED_HERE:  # The keeper logs all other losses.
                logger.error(  # noqa: TRY400 - where it was raised is plain
                    "the transaction on the database %r is rolled back, since the view ended its lease"
                    " before the COMMIT, which others must not overtake (%s). Leave the release to"
                    " @lock, or end the lease in transaction.on_commit",
                    self._connection.alias,
                    loss,
                )
            # Atomic rolls back by itself, but at the commit only for errors of the database.
            if not self._connection.in_atomic_block:
                self._undo()
            raise

    def _undo(self) -> None:
        try:
            self._connection.rollback()
        except Error:
            self._connection.close()


class _GuardWatch:
    """Calls the guard of a request at the right moments on one connection.

    These are before the first statement, before each transaction, and before each COMMIT.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._set_autocommit = connection.set_autocommit
        self._make_cursor = connection.make_cursor
        self._make_debug_cursor = connection.make_debug_cursor
        self._busy = False
        self._wrote = False
        self._of_transaction: Guard | None = None
        connection.set_autocommit = self.set_autocommit
        connection.make_cursor = lambda cursor: self._watched(self._make_cursor(cursor))
        connection.make_debug_cursor = lambda cursor: self._watched(self._make_debug_cursor(cursor))
        connection.execute_wrappers.insert(0, self.execute)  # It sees a write before others do.

    def opened(self) -> None:
        """Handle a connection that has just been opened, perhaps because a transaction begins."""
        if guard := self.guard:
            self._of_transaction, self._wrote = guard, True
            self.raise_with(guard)

    @property
    def guard(self) -> Guard | None:
        """Return the guard of the code that runs now, if it guards this database."""
        if self._busy:
            return None
        guard = current_guard()
        return guard if guard and guard.covers(self._connection.alias) else None

    def set_autocommit(self, autocommit: bool, *args: Any, **options: Any) -> None:  # noqa: FBT001
        """Write the fences first: every outermost transaction begins with this call."""
        if not autocommit and not self._busy:
            self._wrote = False
            self._of_transaction = self.guard
            if self._of_transaction:
                self.raise_with(self._of_transaction)
        self._set_autocommit(autocommit, *args, **options)
        if autocommit and not self._busy:
            self._of_transaction = None

    def execute(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        """Run a statement of one of Django's cursors."""
        with self.about_to(sql):
            return execute(sql, params, many, context)

    @contextmanager
    def about_to(self, sql: Any) -> Iterator[None]:
        """Run a statement, in a checked transaction of its own if it would have none.

        Raises ``ConfigurationError`` for a statement that commits by itself.
        """
        connection = self._connection
        kind = _kind(connection, sql)
        if kind is Kind.COMMITS and self.guard:
            raise refuse_commit(str(sql))
        if self._busy or kind in (Kind.CONTROLS, Kind.COMMITS):
            yield
            return
        in_transaction = connection.in_atomic_block or not connection.get_autocommit()
        self._wrote = self._wrote or kind is Kind.WRITES
        guard = self.guard
        if guard and (not in_transaction or _is_of_tests(connection)):
            self.raise_with(guard)
        if guard is None or in_transaction or kind is Kind.READS:
            yield
            return
        if connections[connection.alias] is not connection:
            raise ConfigurationError(
                f"under a guard, a connection to the database {connection.alias!r} that is not"
                f" connections[{connection.alias!r}], such as its copy(), commits unchecked: use that one"
            )
        with transaction.atomic(using=connection.alias):
            self._wrote = True
            yield

    def went_behind(self) -> None:
        """Record that the driver's own cursor was used, which may have written."""
        self._wrote = True
        if (
            not self._connection.in_atomic_block
            and self._connection.get_autocommit()
            and self.guard
        ):
            raise ConfigurationError(
                "under a guard, what a cursor of the database's driver does by itself (COPY, say)"
                " cannot be checked while it commits by itself: put it inside transaction.atomic()"
            )

    def refuse_script(self) -> None:
        """Raise ``ConfigurationError`` under a guard: a script commits what came before it."""
        self._wrote = True
        if self.guard:
            raise ConfigurationError(
                "under a guard, executescript() cannot be checked, for it commits by itself: execute"
                " the statements one by one"
            )

    def check(self) -> None:
        """Check before COMMIT, if anything may have been written."""
        guard = self._of_transaction
        if guard and self._wrote and not self._busy:
            with self._own_statements():
                guard.check_on(self._connection)

    def raise_with(self, guard: Guard) -> None:
        """Write the fences that the database does not have yet."""
        if not self._connection.settings_dict["AUTOCOMMIT"]:
            raise ConfigurationError(
                f"the database {self._connection.alias!r} has AUTOCOMMIT off: GUARD commits by"
                " itself before the work begins, and needs it on"
            )
        with self._own_statements():
            guard.raise_on(self._connection)

    @contextmanager
    def _own_statements(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _watched(self, cursor: Any) -> Any:
        if type(cursor).__init__ is CursorWrapper.__init__:
            kind: Any = type(cursor)
            return _watched(kind)(cursor.cursor, cursor.db)
        self._wrote = True  # It is a custom kind, whose statements are unknown.
        return cursor


def _kind(connection: Any, sql: Any) -> Kind:
    """Return what a statement does, which may be one that psycopg has composed."""
    text = sql if isinstance(sql, str) else sql.as_string(connection.connection)
    return kind_of(text, mysql=connection.vendor == "mysql")


def _watch(connection: Any) -> _GuardWatch:
    """Return the watch of a connection, which is created once and stays."""
    found: _GuardWatch | None = getattr(connection, _WATCH, None)
    if found is None:
        found = _GuardWatch(connection)
        setattr(connection, _WATCH, found)
    return found


class _WatchedCursor:
    """A cursor that reports uses that execute wrappers do not see."""

    db: Any
    cursor: Any

    def callproc(self, procname: str, *args: Any, **kwargs: Any) -> Any:
        with self._watch.about_to(f"CALL {procname}"):
            return super().callproc(procname, *args, **kwargs)  # type: ignore[misc] # CursorWrapper has it

    @property
    def executescript(self) -> Any:
        """Return the method of SQLite's cursors, unless a guard has to check the COMMIT it makes."""
        method = self.cursor.executescript
        self._watch.refuse_script()
        return method

    @property
    def _watch(self) -> _GuardWatch:
        found: _GuardWatch = getattr(self.db, _WATCH)
        return found


def _goes_behind(name: str) -> property:
    def get(self: Any) -> Any:
        self._watch.went_behind()
        return getattr(super(_WatchedCursor, self), name, None) or getattr(self.cursor, name)

    return property(get)


for _name in ("connection", "copy", "copy_expert", "copy_from", "copy_to", "stream"):
    setattr(_WatchedCursor, _name, _goes_behind(_name))


@cache
def _watched(kind: Any) -> Any:
    return type(f"Watched{kind.__name__}", (_WatchedCursor, kind), {})


def _is_of_tests(connection: Any) -> bool:
    """Return whether the open transaction is that of a ``TestCase``, which does not count."""
    return bool(connection.atomic_blocks) and all(map(is_of_test_case, connection.atomic_blocks))


connection_created.connect(_opened, dispatch_uid="weblock")
