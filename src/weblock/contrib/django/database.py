"""Keep locks and the databases in order.

1. A request acquires its lock before its transaction begins. Inside one, acquiring is rejected: what
   the transaction has read may be outdated, and it would commit after the release.
2. A request that waits gives its database connections back first.
3. Inside a lock, rows are read from the database that is written: a replica may lack a row that the last
   holder has committed (``LockedReads``).
4. Before each COMMIT, the leases are checked. If one was lost, the transaction is rolled back.
5. With ``"GUARD": "database"`` (``Guard``), the fences of the leases are written into the databases as
   soon as they are acquired, and each COMMIT checks them, too.

Django has no hook before COMMIT: ``execute_wrappers`` do not see ``connection.commit()``, and
``on_commit`` comes after it. So the method ``commit`` of each connection is replaced once, when the
connection is opened; and where ``hold_until_commit`` holds something, what rolls back. A wrapper around its
statements handles those that would commit in another way:

- A COMMIT as SQL is checked, or rejected under a guard.
- Under a guard, a write outside of any transaction is rejected.
- A write in a transaction that ``set_autocommit(False)`` began is rejected, because
  ``set_autocommit(True)`` would commit it on some databases.

What a program does with the cursors and connections of the database's driver is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet, finalize

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections, router, transaction
from django.db.backends.signals import connection_created
from django.db.utils import Error
from django.http import HttpRequest

from ..._api import BaseLease
from ..._platform.logs import logger
from ...errors import ConfigurationError, LeaseLost, WeblockError
from ...events import Acquired, Event
from ...keys import unqualified
from ..kit import ENDED_HERE
from ..kit.guarding import Mark, Row, Runner, StaleFence, marks_of
from ..kit.sql import TABLE, Kind, Trouble, kind_of, refuse_commit, trouble_of
from .internals import is_of_test_case

if TYPE_CHECKING:
    from ...sync import Lease, Locks
    from .request import ViewLeases
    from .settings import AliasSettings


checked_at_commit: Final[ContextVar[ViewLeases | None]] = ContextVar(
    "weblock_checked", default=None
)
"""What the request holds for which code runs here; each of its COMMITs checks it."""


def open_transaction() -> str | None:
    """Return the database on which this thread has a transaction, other than a ``TestCase``'s."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            if not all(map(is_of_test_case, connection.atomic_blocks)):
                return str(connection.alias)
        elif connection.connection is not None and not connection.autocommit:
            return str(connection.alias)  # Whatever was asked first has begun one.
    return None


def is_inside_transaction(_acquired: Event) -> bool:
    """Return whether a lock is acquired inside a transaction, such as by ``hold`` in a view."""
    return not ends_with_transaction.get() and open_transaction() is not None


def warn_of_transaction(acquired: Event) -> None:
    """Warn that a lock was acquired inside a transaction."""
    assert isinstance(acquired, Acquired)
    logger.warning(
        "the lock of %.200r is acquired inside a transaction on the database %r. If it is"
        " released before the COMMIT, the next holder does not see what is written: put atomic()"
        " inside the lock, or acquire it with hold_until_commit [weblock.inside_transaction]",
        acquired.key,
        open_transaction(),
    )


# Locks that end with a transaction.

ends_with_transaction: Final[ContextVar[bool]] = ContextVar(
    "weblock_ends_with_transaction", default=False
)
"""Whether what is acquired here is released after the COMMIT."""


class UntilEnd:
    """A lease that is released when the transaction of a connection has ended.

    It is an ``on_commit`` hook: Django drops it when the transaction, or the savepoint in which it was
    acquired, is rolled back. Then, and after the COMMIT, it is called. A connection that just vanishes
    takes it along.
    """

    def __init__(self, connection: Any, own: Locks, lease: Lease) -> None:
        self.own = own
        self.lease = lease
        self.end = finalize(self, _release, lease)
        until_ends[connection].add(self)

    def __call__(self) -> None:
        """Release it, at most once."""
        self.end()


until_ends: Final[WeakKeyDictionary[Any, WeakSet[UntilEnd]]] = WeakKeyDictionary()


def _release(lease: Lease) -> None:
    with suppress(WeblockError):  # It is over, and events have told what is wrong.
        lease.release()


def until_end(connection: Any) -> list[UntilEnd]:
    """Return the leases that end with the transaction of a connection."""
    return [each for each in tuple(until_ends.get(connection, ())) if each.end.alive]


def prepare_connections(request: HttpRequest) -> None:
    """Make this thread's connections check before COMMIT.

    Raises ``ConfigurationError`` inside a transaction, which is too late for a lock: what it has read may
    be stale already, and it commits when the lock has gone.
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
            " ATOMIC_REQUESTS, put atomic() inside the lock, and leave AUTOCOMMIT on",
            code="inside_transaction",
        )
    for connection in connections.all(initialized_only=True):
        if _execute not in connection.execute_wrappers:  # It was opened before this was imported.
            watch(connection)


def give_back_connections() -> None:
    """Close this thread's connections, or return them to their pool, except in a ``TestCase``."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


# The COMMIT.


def watch(connection: Any, **_signal: object) -> None:
    """Check the leases before each COMMIT of a connection, in whatever thread it is used."""
    if _execute not in connection.execute_wrappers:
        connection.commit = partial(_commit, connection, connection.commit)
        # Not the last: execute_wrapper() removes the last when it ends, even if that is another.
        connection.execute_wrappers.insert(0, _execute)


connection_created.connect(watch, dispatch_uid="weblock")


def _commit(connection: Any, commit: Callable[[], None]) -> None:
    checked = checked_at_commit.get()
    if checked or connection in until_ends:
        _check(connection, checked)
    commit()
    if checked:
        checked.has_committed = True
        checked.written_to.discard(connection)
    for each in until_end(connection):  # Before other hooks, any of which may raise.
        each()


def roll_back(connection: Any, method: Callable[..., None], *savepoint: str) -> None:
    """Roll back a transaction or a savepoint, and release what was to be held until its end."""
    ending = until_end(connection)
    try:
        method(*savepoint)
    finally:
        hooks = [hook for _, hook, *_ in connection.run_on_commit]
        for each in ending:
            if each not in hooks:
                each()


def _execute(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001 - Django's
    """Run a statement, unless it would commit unchecked."""
    checked = checked_at_commit.get()
    connection = context["connection"]
    holds = checked is not None and (checked.book.keys or checked.guard)
    if not (holds or (connection in until_ends and until_end(connection))):
        return execute(sql, params, many, context)
    text, kind = read_statement(connection, sql)
    guard = checked.guard if checked else None
    is_guarded = guard is not None and guard.covers(connection.alias)
    in_atomic = connection.in_atomic_block
    if kind is Kind.COMMITS:
        if is_guarded:
            raise refuse_commit(text)
        _check(connection, checked)
    elif kind is Kind.WRITES:
        if checked:
            checked.written_to.add(connection)
        if not (connection.commit_on_exit if in_atomic else connection.autocommit):
            raise ConfigurationError(
                f"while a lock is held, the database {connection.alias!r} is written in a transaction"
                " that set_autocommit(False) began, or with AUTOCOMMIT off: set_autocommit(True) would"
                " commit it unchecked. Use transaction.atomic(), and leave AUTOCOMMIT on",
                code="unchecked_commit",
            )
        if is_guarded and not in_atomic:
            if checked and checked.has_committed and connections[connection.alias] is connection:
                # Of an on_commit hook, say: the work is done, and an error would keep other hooks from running.
                with transaction.atomic(using=connection.alias):
                    return execute(sql, params, many, context)
            raise ConfigurationError(
                f"under a guard, {text!r:.100} is rejected outside of a transaction, where it would commit"
                f" unchecked: put it into transaction.atomic(using={connection.alias!r}), which is for"
                f" connections[{connection.alias!r}] and not for a copy() of it",
                code="unchecked_commit",
            )
    return execute(sql, params, many, context)


def read_statement(connection: Any, sql: Any) -> tuple[str, Kind]:
    """Return a statement of Django's as text, and what it does."""
    text = sql if isinstance(sql, str) else sql.as_string(connection.connection)  # of psycopg
    return text, kind_of(text, mysql=connection.vendor == "mysql")


def _check(connection: Any, checked: ViewLeases | None) -> None:
    """Raise ``LeaseLost`` if the transaction must not be committed, after it has been rolled back.

    With ``ATOMIC_REQUESTS`` on several databases, an ``on_commit`` hook of one may end the lease before
    the COMMIT of another. That passes if nothing was written there.
    """
    try:
        for each in until_end(connection):
            each.lease.check()
        if checked:
            checked.book.check()
            if checked.guard:
                checked.guard.check_on(connection)
    except BaseException as error:
        if checked and isinstance(error, LeaseLost) and error.reason in ENDED_HERE:
            if checked.has_committed and connection not in checked.written_to:
                return
            # The keeper logs all other losses.
            logger.error(  # noqa: TRY400 - where it was raised is plain
                "the transaction on the database %r is rolled back, because the view ended its lease"
                " before the COMMIT (%s). Leave the release to @lock, or end the lease in"
                " transaction.on_commit of the database that commits last"
                " [weblock.released_before_commit]",
                connection.alias,
                error.message,
            )
        # Atomic turns autocommit on in any case, which commits on SQLite and MySQL; and for errors
        # that are not the database's, it does not roll back before.
        if not connection.in_atomic_block:
            try:
                connection.rollback()
            except Error:
                connection.close()
        raise


# ``"GUARD": "database"``.


@dataclass
class _GuardedLease:
    """The lease of one key: its databases, how long to wait for each, and the locks it is from."""

    mark: Mark
    databases: frozenset[str]
    wait: float
    locks: Locks
    written_to: set[str] = field(default_factory=set)
    """The databases that have its fence."""

    def runner(self, connection: Any) -> Runner:
        """Return what takes the steps of its guard on a connection."""

        def execute(sql: str, parameters: dict[str, Any]) -> tuple[int, Row | None]:
            token = checked_at_commit.set(None)  # These statements commit by themselves.
            try:
                with connection.cursor() as cursor:
                    cursor.execute(placed(sql), parameters)
                    found = cursor.fetchone() if cursor.description else None
                    return cursor.rowcount, Row(*found) if found else None
            finally:
                checked_at_commit.reset(token)

        def is_held(mark: Mark) -> bool:
            found = self.locks.inspect(unqualified(mark.key))
            return found is not None and found.fence == mark.fence

        alias = connection.alias
        database = "" if alias == DEFAULT_DB_ALIAS else f" --database={alias}"
        is_mariadb = connection.vendor == "mysql" and connection.mysql_is_mariadb
        return Runner(
            "mariadb" if is_mariadb else connection.vendor,
            self.wait,
            execute,
            is_held,
            f"the database {alias!r} has no table {TABLE}, which GUARD needs: run manage.py migrate"
            f" weblock{database}, or name the databases in GUARD_DATABASES",
        )


class Guard:
    """The leases of one request, and their fences in its databases."""

    def __init__(self, outer: Guard | None = None) -> None:
        """``outer`` is that of a request that waits for this one's response."""
        self.leases: list[_GuardedLease] = list(outer.leases) if outer else []

    def add(self, lease: BaseLease, wanted: AliasSettings, locks: Locks) -> None:
        """Have a lease of ``locks`` guarded: see ``write``."""
        databases = guarded_databases(wanted.guard_databases)
        known = {each.mark for each in self.leases}
        self.leases += [
            _GuardedLease(mark, databases, wanted.guard_wait, locks)
            for mark in marks_of(lease)
            if mark not in known
        ]

    def covers(self, database: str) -> bool:
        """Return whether ``database`` is guarded."""
        return any(database in each.databases for each in list(self.leases))

    def write(self) -> None:
        """Write the fences that their databases do not have yet, each committed by itself.

        Raises ``StaleFence`` if a later holder has begun, and ``FenceLocked`` if a former one has
        been about to commit for too long.
        """
        for guarded in list(self.leases):
            for alias in sorted(guarded.databases - guarded.written_to):
                connection = connections[alias]
                if not connection.settings_dict["AUTOCOMMIT"]:
                    raise ConfigurationError(
                        f"the database {alias!r} has AUTOCOMMIT off, but GUARD commits before the"
                        " work begins: turn it on",
                        code="unchecked_commit",
                    )
                may_sweep = not connection.in_atomic_block  # That of a TestCase.
                guarded.runner(connection).begin(guarded.mark, None, may_sweep=may_sweep)
                guarded.written_to.add(alias)

    def check_on(self, connection: Any) -> None:
        """Raise ``StaleFence`` if another section has begun; keep others out until COMMIT.

        A transaction that turns out to be read-only passes: it commits nothing.
        """
        for guarded in list(self.leases):
            if connection.alias not in guarded.databases:
                continue
            runner = guarded.runner(connection)
            try:
                if not runner.check(guarded.mark):
                    connection.connection.rollback()
                    return
            except Error as error:
                if trouble_of(error) is Trouble.CONFLICT:
                    connection.rollback()
                    try:
                        runner.look(guarded.mark)
                    finally:
                        connection.rollback()
                raise

    def reason_of(self, error: Exception) -> Exception:
        """Return the error to respond with for a view that failed: ``StaleFence``, if that was why.

        A database may itself refuse a statement of a holder that another has followed.
        """
        if trouble_of(error) is not Trouble.CONFLICT:
            return error
        for guarded in list(self.leases):
            for alias in list(guarded.written_to):
                try:
                    guarded.runner(connections[alias]).look(guarded.mark)
                except StaleFence as stale:
                    stale.__cause__ = error
                    return stale
                except Error:
                    return error
        return error


def guarded_databases(only: frozenset[str] | None) -> frozenset[str]:
    """Return the guarded databases: those in which migrations create the table."""
    if only is not None:
        return only
    return frozenset(
        alias
        for alias in connections
        if router.allow_migrate(alias, "weblock", model_name="fence")
        and not connections.settings[alias]["TEST"]["MIRROR"]
    )


@cache
def placed(sql: str) -> str:
    """Return a statement with the placeholders of Django's cursors."""
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", sql)


# Reads inside a lock.

LOCKED_READS: Final = f"{__name__}.LockedReads"

_TRIES: Final = 5
"""How often a router is asked: it may choose between replicas at random."""

is_locked: Final[ContextVar[bool]] = ContextVar("weblock_is_locked", default=False)
"""Whether the code that runs here is a locked management command, or asks what such code would read."""


class LockedReads:
    """Sends the reads of a request, a command or a transaction that holds a lock to the database that is written.

    ``DATABASE_ROUTERS = ["weblock.contrib.django.database.LockedReads", ...]``: it stands before the routers
    that know replicas. ``using()`` still decides for itself.
    """

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Return the database that is written, inside a lock; ``None`` outside."""
        checked = checked_at_commit.get()
        if not (
            is_locked.get()
            or (checked and checked.book.keys)
            or any(map(until_end, connections.all(initialized_only=True)))
        ):
            return None
        found: str = router.db_for_write(model, **hints)
        return found


def refuse_split_reads() -> None:
    """Raise ``ConfigurationError`` if reads inside a lock would go to another database than the writes.

    ``LockedReads`` does not help behind a router that has decided already.
    """
    token = is_locked.set(True)
    try:
        for model in apps.get_models() if router.routers else ():
            written = router.db_for_write(model)
            for _ in range(_TRIES):
                if (read := router.db_for_read(model)) != written:
                    raise ConfigurationError(
                        f"DATABASE_ROUTERS sends the reads of {model.__name__} to {read!r} and its writes"
                        f" to {written!r}, so that a view would read rows inside its lock that are out of"
                        f" date: put {LOCKED_READS!r} first into DATABASE_ROUTERS",
                        code="stale_rows",
                    )
    finally:
        is_locked.reset(token)
