"""``"GUARD": "database"``: the database refuses the COMMIT of a holder that slept through its lease.

``Guard`` knows the leases of one request, and what of them stands in which database. A ``Watch`` on
each connection has it act at the right moments: before the first statement, before each
transaction, and before each COMMIT.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections, router, transaction
from django.db.backends.utils import CursorWrapper
from django.db.utils import Error

from ..._face import BaseLease
from ..._platform.logs import logger
from ...errors import ConfigurationError
from ...keys import unqualified
from ..guarding import (
    TABLE,
    Check,
    Conflict,
    Dialect,
    FenceLocked,
    Kind,
    Look,
    Mark,
    Raise,
    Row,
    StaleFence,
    Statement,
    Trouble,
    checking,
    dialect_of,
    kind_of,
    marks_of,
    raising,
    run,
    still_ours,
    sweep_is_due,
    trouble_of,
)
from .internals import is_of_test_case

Holds = Callable[[Mark], bool]
"""Whether the engine says that a section holds its key."""


class Guard:
    """The leases of one request, as its databases are to know them."""

    def __init__(self, outer: Guard | None, *, wait: float) -> None:
        self._outer = outer
        self._wait = wait
        self._marks: dict[Mark, tuple[frozenset[str], Holds]] = {}
        self._raised: set[tuple[str, Mark]] = set()

    def add(self, lease: BaseLease, databases: frozenset[str], holds: Holds) -> None:
        """Has ``databases`` know of a lease, before anything else is asked of them."""
        self._marks.update((mark, (databases, holds)) for mark in marks_of(lease))

    def covers(self, database: str) -> bool:
        """Whether there is anything that ``database`` is to know."""
        return any(self._marks_on(database))

    def raise_on(self, connection: Any) -> None:
        """Writes the fences that a database does not know yet. Raises ``StaleFence``, ``FenceLocked``.

        Outside of any transaction: each is committed by itself.
        """
        if self._outer:
            self._outer.raise_on(connection)
        for mark, (databases, holds) in tuple(self._marks.items()):
            told = connection.alias, mark
            if connection.alias in databases and told not in self._raised:
                self._raise(connection, mark, holds)
                self._raised.add(told)

    def check_on(self, connection: Any) -> None:
        """Raises ``StaleFence`` if another section has begun; keeps others out until COMMIT.

        A transaction that turns out to be read-only passes: it commits nothing.
        """
        asked = _asked(connection, self._wait)
        for mark in self._marks_on(connection.alias):
            try:
                run(checking(mark), asked)
            except Conflict as conflict:
                connection.rollback()
                try:
                    run(still_ours(mark), asked)
                finally:
                    connection.rollback()
                assert conflict.__cause__ is not None
                raise conflict.__cause__ from None
            except Error as error:
                if trouble_of(error) is not Trouble.READ_ONLY:
                    raise
                connection.connection.rollback()
                return

    def _marks_on(self, database: str) -> Iterator[Mark]:
        if self._outer:
            yield from self._outer._marks_on(database)
        for mark, (databases, _) in self._marks.items():
            if database in databases:
                yield mark

    def _raise(self, connection: Any, mark: Mark, holds: Holds) -> None:
        asked = _asked(connection, self._wait)
        try:
            run(raising(mark), asked)
        except StaleFence as stale:
            if stale.newest is None or not holds(mark):
                raise
            logger.warning(
                "the engine's fence of %.200r is %d, and the database %r knows fence %d: the engine"
                " was set back, by a flush or an older backup. The database goes on from its own",
                *(unqualified(mark.key), mark.fence, connection.alias, stale.newest),
            )
            run(raising(mark.above(stale.newest)), asked)
        if sweep_is_due() and not connection.in_atomic_block:
            _execute(connection, _dialect(_vendor(connection), self._wait).sweeping, mark)


class Watch:
    """What one connection has in mind of the guard of the request that uses it."""

    def __init__(self, connection: Any, current: Callable[[], Guard | None]) -> None:
        self._connection = connection
        self._current = current
        self._set_autocommit = connection.set_autocommit
        self._make_cursor = connection.make_cursor
        self._make_debug_cursor = connection.make_debug_cursor
        self._busy = False
        self._wrote = False
        self._of_transaction: Guard | None = None
        connection.set_autocommit = self.set_autocommit
        connection.make_cursor = lambda cursor: self._seen(self._make_cursor(cursor))
        connection.make_debug_cursor = lambda cursor: self._seen(self._make_debug_cursor(cursor))
        connection.execute_wrappers.append(self.execute)

    @property
    def guard(self) -> Guard | None:
        """The guard of what runs now, if it has anything to do with this database."""
        if self._busy:
            return None
        guard = self._current()
        return guard if guard and guard.covers(self._connection.alias) else None

    def set_autocommit(self, autocommit: bool, *args: Any, **options: Any) -> None:  # noqa: FBT001
        """Every outermost transaction begins with it: the fence is in the database before."""
        if not autocommit and not self._busy:
            self._wrote = False
            self._of_transaction = self.guard
            if self._of_transaction:
                self.raise_with(self._of_transaction)
        self._set_autocommit(autocommit, *args, **options)

    def execute(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        """Runs a statement that came through Django's cursors."""
        kind = kind_of(sql) if isinstance(sql, str) else Kind.WRITES
        with self.about_to(kind):
            return execute(sql, params, many, context)

    @contextmanager
    def about_to(self, kind: Kind) -> Iterator[None]:
        """Runs what does ``kind``: in a transaction of its own, which is checked, if it commits itself."""
        if self._busy or kind is Kind.CONTROLS:
            yield
            return
        connection = self._connection
        in_transaction = connection.in_atomic_block or not connection.get_autocommit()
        self._wrote = self._wrote or kind is Kind.WRITES
        guard = self.guard
        if guard and (not in_transaction or _is_of_tests(connection)):
            self.raise_with(guard)
        if guard is None or in_transaction or kind is Kind.READS:
            yield
            return
        with transaction.atomic(using=connection.alias):
            self._wrote = True
            yield

    def went_behind(self) -> None:
        """Notes that the driver's own cursor was used, which may do anything."""
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

    def check(self) -> None:
        """Asks before COMMIT, if anything may have been written."""
        guard, self._of_transaction = self._of_transaction, None
        if guard and self._wrote:
            with self._own_statements():
                guard.check_on(self._connection)

    def raise_with(self, guard: Guard) -> None:
        """Puts the fences into the database, which do not stand there yet."""
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

    def _seen(self, cursor: Any) -> Any:
        if type(cursor).__init__ is CursorWrapper.__init__:
            return _seen(type(cursor))(cursor.cursor, cursor.db)
        self._wrote = True  # It is somebody's own kind, which we do not see through.
        return cursor


def watch(connection: Any, current: Callable[[], Guard | None]) -> Watch:
    """The watch on a connection; it is put there once, and stays."""
    found: Watch | None = watch_on(connection)
    if found is None:
        found = Watch(connection, current)
        setattr(connection, _WATCH, found)
    return found


def watch_on(connection: Any) -> Watch | None:
    """The watch on a connection, if there is one."""
    return getattr(connection, _WATCH, None)


def guarded_databases(only: frozenset[str] | None) -> frozenset[str]:
    """The databases that are to know of leases: those that migrations make the table in."""
    if only is not None:
        return only
    return frozenset(
        alias
        for alias in connections
        if router.allow_migrate(alias, "weblock", model_name="fence")
        and not connections.settings[alias]["TEST"]["MIRROR"]
    )


_WATCH: Final = "weblock_watch"


class _Sees:
    """A cursor that tells when it is used in ways that execute wrappers do not see."""

    db: Any

    def callproc(self, *args: Any, **kwargs: Any) -> Any:
        with self._watch.about_to(Kind.WRITES):
            return super().callproc(*args, **kwargs)  # type: ignore[misc] # CursorWrapper has it

    @property
    def _watch(self) -> Watch:
        found: Watch = getattr(self.db, _WATCH)
        return found


def _goes_behind(name: str) -> property:
    def get(self: Any) -> Any:
        self._watch.went_behind()
        return getattr(super(_Sees, self), name, None) or getattr(self.cursor, name)

    return property(get)


for _name in ("connection", "copy", "copy_expert", "copy_from", "copy_to", "stream"):
    setattr(_Sees, _name, _goes_behind(_name))


@cache
def _seen(kind: type[CursorWrapper]) -> type[CursorWrapper]:
    return type(f"Seen{kind.__name__}", (_Sees, kind), {})


def _is_of_tests(connection: Any) -> bool:
    """Whether the open transaction is that of a ``TestCase``, which stands for none."""
    return bool(connection.atomic_blocks) and all(map(is_of_test_case, connection.atomic_blocks))


@cache
def _dialect(vendor: str, wait: float) -> Dialect:
    """The statements, with placeholders as Django's cursors have them."""
    dialect = dialect_of(vendor, wait=wait)
    texts = {
        name: _PARAMETER.sub(r"%(\1)s", getattr(dialect, name))
        for name in ("raising", "checking", "looking", "sweeping")
    }
    return replace(dialect, **texts)


_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")


def _vendor(connection: Any) -> str:
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:
        return "mariadb"
    return str(connection.vendor)


def _asked(connection: Any, wait: float) -> Callable[[Statement], Any]:
    """What answers the statements of a step."""

    def ask(statement: Statement) -> Any:
        try:
            return _answer(connection, _dialect(_vendor(connection), wait), statement)
        except Error as error:
            trouble = trouble_of(error)
            if trouble is Trouble.CONFLICT:
                raise Conflict from error
            if trouble is Trouble.LOCKED and isinstance(statement, Raise):
                raise FenceLocked(unqualified(statement.mark.key), wait=wait) from error
            if trouble is Trouble.NO_TABLE:
                raise _no_table(connection.alias) from error
            raise

    return ask


def _answer(connection: Any, dialect: Dialect, statement: Statement) -> Any:
    match statement:
        case Raise(mark):
            rows, _ = _execute(connection, dialect.raising, mark)
            return rows in dialect.certain
        case Check(mark):
            return _execute(connection, dialect.checking, mark)[1]
        case Look(mark):
            return _execute(connection, dialect.looking, mark)[1]


def _execute(connection: Any, sql: str, mark: Mark) -> tuple[int, Row | None]:
    values = {
        "digest": mark.digest,
        "lock_key": mark.key,
        "fence": mark.fence,
        "token": mark.token,
    }
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        found = cursor.fetchone() if cursor.description else None
        return cursor.rowcount, Row(*found) if found else None


def _no_table(alias: str) -> ConfigurationError:
    database = "" if alias == DEFAULT_DB_ALIAS else f" --database={alias}"
    return ConfigurationError(
        f"the database {alias!r} has no table {TABLE}, which GUARD needs: run"
        f" manage.py migrate weblock{database}, or name the databases in GUARD_DATABASES"
    )
