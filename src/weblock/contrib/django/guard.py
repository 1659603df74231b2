"""``"GUARD": "database"``: the database refuses the COMMIT of a holder that slept through its lease.

``Guard`` knows the leases of one request, and what of them stands in which database. A ``Watch`` on
each connection has it act at the right moments: before the first statement, before each
transaction, and before each COMMIT.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from ...sync import Locks
    from .settings import GuardSettings


@dataclass
class _Section:
    """One lease: who is to know of it, how long a database may keep us waiting, and who granted it."""

    mark: Mark
    databases: frozenset[str]
    wait: float
    locks: Locks
    known_to: set[str] = field(default_factory=set)

    def holds(self) -> bool:
        """Whether the engine says that the key is still ours."""
        found = self.locks.inspect(unqualified(self.mark.key))
        return found is not None and found.fence == self.mark.fence


class Guard:
    """The leases of one request, as its databases are to know them."""

    def __init__(self, outer: Guard | None = None) -> None:
        self._outer = outer
        self._sections: list[_Section] = []

    def add(self, lease: BaseLease, wanted: GuardSettings, locks: Locks) -> None:
        """Write a lease of ``locks`` into the databases, before any other statement."""
        databases = guarded_databases(wanted.databases)
        self._sections += [
            _Section(mark, databases, wanted.wait, locks) for mark in marks_of(lease)
        ]

    def covers(self, database: str) -> bool:
        """Whether there is anything that ``database`` is to know."""
        return any(database in each.databases for each in self.sections())

    def raise_on(self, connection: Any) -> None:
        """Writes the fences that a database does not know yet. Raises ``StaleFence``, ``FenceLocked``.

        Outside of any transaction: each is committed by itself.
        """
        for section in self.sections():
            if connection.alias in section.databases - section.known_to:
                _raise(connection, section)
                section.known_to.add(connection.alias)

    def check_on(self, connection: Any) -> None:
        """Raises ``StaleFence`` if another section has begun; keeps others out until COMMIT.

        A transaction that turns out to be read-only passes: it commits nothing.
        """
        for section in self.sections():
            if connection.alias not in section.known_to:
                continue
            asked = _asked(connection, section.wait)
            try:
                run(checking(section.mark), asked)
            except Conflict as conflict:
                _refuse_or_tell(connection, section.mark, asked)
                raise conflict.error from None
            except Error as error:
                if trouble_of(error) is not Trouble.READ_ONLY:
                    raise
                connection.connection.rollback()
                return

    def reason_of(self, error: Exception) -> Exception:
        """What a view that failed is to be answered with: ``StaleFence``, if that was the reason.

        A database may itself refuse a statement of a holder that another has followed.
        """
        if trouble_of(error) is not Trouble.CONFLICT:
            return error
        for section in self.sections():
            for alias in section.known_to:
                try:
                    run(still_ours(section.mark), _asked(connections[alias], section.wait))
                except StaleFence as stale:
                    stale.__cause__ = error
                    return stale
                except Error:
                    return error
        return error

    def sections(self) -> Iterator[_Section]:
        """Return the sections of the request, and of one that waits for it."""
        if self._outer:
            yield from self._outer.sections()
        yield from tuple(self._sections)


def _raise(connection: Any, section: _Section) -> None:
    mark, asked = section.mark, _asked(connection, section.wait)
    try:
        run(raising(mark), asked)
    except StaleFence as stale:
        if stale.newest is None or not section.holds():
            raise
        logger.warning(
            "the engine's fence of %.200r is %d, but the database %r knows fence %d: the engine was"
            " set back, by a flush or an older backup. The database counts on from its own",
            *(unqualified(mark.key), mark.fence, connection.alias, stale.newest),
        )
        run(raising(mark.above(stale.newest)), asked)
    if sweep_is_due() and not connection.in_atomic_block:
        _execute(connection, _dialect(_vendor(connection), section.wait).sweeping, mark)


def _refuse_or_tell(connection: Any, mark: Mark, asked: Callable[[Statement], Any]) -> None:
    """Raises ``StaleFence`` if a conflict was about us, after a rollback."""
    connection.rollback()
    try:
        run(still_ours(mark), asked)
    finally:
        connection.rollback()


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
        connection.execute_wrappers.insert(0, self.execute)  # It sees a write before others do.

    def opened(self) -> None:
        """Hears of a connection that has just been opened, maybe because a transaction begins."""
        if guard := self.guard:
            self._of_transaction, self._wrote = guard, True
            self.raise_with(guard)

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
        if autocommit and not self._busy:
            self._of_transaction = None

    def execute(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        """Runs a statement that came through Django's cursors."""
        kind = kind_of(sql) if isinstance(sql, str) else Kind.WRITES
        with self.about_to(kind):
            return execute(sql, params, many, context)

    @contextmanager
    def about_to(self, kind: Kind) -> Iterator[None]:
        """Runs what does ``kind``: in a transaction of its own, which is checked, if it commits itself."""
        if self._busy or kind in (Kind.CONTROLS, Kind.COMMITS):  # Those are checked as COMMITs are.
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
        guard = self._of_transaction
        if guard and self._wrote and not self._busy:
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
            kind: Any = type(cursor)
            return _seen(kind)(cursor.cursor, cursor.db)
        self._wrote = True  # It is a custom kind, whose statements are unknown.
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
def _seen(kind: Any) -> Any:
    return type(f"Seen{kind.__name__}", (_Sees, kind), {})


def _is_of_tests(connection: Any) -> bool:
    """Whether the open transaction is that of a ``TestCase``, which stands for none."""
    return bool(connection.atomic_blocks) and all(map(is_of_test_case, connection.atomic_blocks))


@cache
def _dialect(vendor: str, wait: float) -> Dialect:
    """The statements, with placeholders as Django's cursors have them."""
    dialect = dialect_of(vendor, wait=wait)

    def placed(sql: str) -> str:
        return _PARAMETER.sub(r"%(\1)s", sql)

    return Dialect(
        placed(dialect.raising),
        dialect.certain,
        placed(dialect.checking),
        placed(dialect.looking),
        placed(dialect.sweeping),
    )


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
                raise Conflict(error) from error
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
