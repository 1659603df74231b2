"""``"GUARD": "database"``: the database refuses the COMMIT of a holder that slept through its lease.

``Guard`` knows the leases of one request, and what of them stands in which database. ``commits`` has
it act at the right moments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django.db import DEFAULT_DB_ALIAS, connections, router
from django.db.utils import Error

from ..._core.holding import Status
from ..._core.ports import LeaseTable
from ..._face import BaseLease
from ..._platform.logs import logger
from ...errors import ConfigurationError
from ...keys import unqualified
from ..guarding import (
    DATABASE,
    TABLE,
    Check,
    Conflict,
    Dialect,
    FenceLocked,
    Look,
    Mark,
    Raise,
    Row,
    StaleFence,
    Statement,
    Trouble,
    checking,
    dialect_of,
    dialect_of_leases,
    lease_table_of,
    marks_of,
    raising,
    remedy_for,
    run,
    still_ours,
    sweep_is_due,
    trouble_of,
)

if TYPE_CHECKING:
    from ...sync import Locks
    from .settings import GuardSettings


@dataclass
class _GuardedLease:
    """One lease: its databases, how long each may keep us waiting, and the locks it is from.

    ``lease_table`` tells the table that it is in, if it is in a database.
    """

    lease: BaseLease
    mark: Mark
    databases: frozenset[str]
    wait: float
    locks: Locks
    lease_table: Callable[[], LeaseTable] | None
    known_to: set[str] = field(default_factory=set)

    def is_given_up(self) -> bool:
        """Return whether the request itself has released the lease, or handed it over.

        Its work is done, and nothing more of it is committed: if it wrote its fence now, it would take
        the place of the holder that continues the lease.
        """
        return any(
            each.fence == self.mark.fence and each.status is Status.RELEASED
            for each in self.lease._leased  # noqa: SLF001 - the adapters know what a lease is made of
        )

    def holds(self) -> bool:
        """Return whether the engine says that the key is still ours."""
        found = self.locks.inspect(unqualified(self.mark.key))
        return found is not None and found.fence == self.mark.fence


class Guard:
    """The leases of one request, and their fences in its databases."""

    def __init__(self, outer: Guard | None = None) -> None:
        self._outer = outer
        self._leases: list[_GuardedLease] = []

    def add(self, lease: BaseLease, wanted: GuardSettings, locks: Locks) -> None:
        """Write a lease of ``locks`` into the databases, before any other statement."""
        databases = guarded_databases(wanted.databases)
        known = {each.mark for each in self.leases()}
        self._leases += [
            _GuardedLease(lease, mark, databases, wanted.wait, locks, lease_table_of(lease))
            for mark in marks_of(lease)
            if mark not in known
        ]

    def covers(self, database: str) -> bool:
        """Return whether ``database`` is guarded."""
        return any(database in each.databases for each in self.leases())

    def raise_on(self, connection: Any) -> None:
        """Write the fences that a database does not know yet. Raises ``StaleFence``, ``FenceLocked``.

        Outside of any transaction: each is committed by itself.
        """
        for guarded in self.leases():
            if guarded.is_given_up():
                continue
            if connection.alias in guarded.databases - guarded.known_to:
                _raise(connection, guarded)
                guarded.known_to.add(connection.alias)

    def check_on(self, connection: Any) -> None:
        """Raise ``StaleFence`` if another section has begun; keep others out until COMMIT.

        A transaction that turns out to be read-only passes: it commits nothing.
        """
        for guarded in self.leases():
            if connection.alias not in guarded.known_to:
                continue
            asked = _asked(connection, guarded)
            try:
                run(checking(guarded.mark), asked)
            except Conflict as conflict:
                _refuse_or_tell(connection, guarded.mark, asked)
                raise conflict.error from None
            except Error as error:
                if trouble_of(error) is not Trouble.READ_ONLY:
                    raise
                connection.connection.rollback()
                return

    def reason_of(self, error: Exception) -> Exception:
        """Return the error to respond with for a view that failed: ``StaleFence``, if that was why.

        A database may itself refuse a statement of a holder that another has followed.
        """
        if trouble_of(error) is not Trouble.CONFLICT:
            return error
        for guarded in self.leases():
            for alias in guarded.known_to:
                try:
                    run(still_ours(guarded.mark), _asked(connections[alias], guarded))
                except StaleFence as stale:
                    stale.__cause__ = error
                    return stale
                except Error:
                    return error
        return error

    def leases(self) -> Iterator[_GuardedLease]:
        """Return the leases of the request, and of one that waits for it."""
        if self._outer:
            yield from self._outer.leases()
        yield from tuple(self._leases)


def _raise(connection: Any, guarded: _GuardedLease) -> None:
    mark, asked, dialect = (
        guarded.mark,
        _asked(connection, guarded),
        _dialect_at(connection, guarded),
    )
    if not dialect.raising:
        return  # The engine has written it there.
    try:
        run(raising(mark), asked)
    except StaleFence as stale:
        if stale.newest is None or not guarded.holds():
            raise
        if stale.newest > mark.fence:
            logger.warning(
                "the engine's fence of %.200r is %d, but the database %r knows fence %d: the engine"
                " was set back, by a flush or an older backup. The database continues from its own",
                *(unqualified(mark.key), mark.fence, connection.alias, stale.newest),
            )
        run(raising(mark.after(stale.newest)), asked)
    if sweep_is_due() and not connection.in_atomic_block:
        _execute(connection, dialect.sweeping, mark)


def _refuse_or_tell(connection: Any, mark: Mark, asked: Callable[[Statement], Any]) -> None:
    """After a rollback, raise ``StaleFence`` if another section of the key was the reason."""
    connection.rollback()
    try:
        run(still_ours(mark), asked)
    finally:
        connection.rollback()


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
def _dialect(vendor: str, wait: float, leases: LeaseTable | None) -> Dialect:
    """Return the statements, with placeholders of Django's cursors."""
    dialect = dialect_of_leases(leases) if leases else dialect_of(vendor, wait=wait)

    def placed(sql: str) -> str:
        return _PARAMETER.sub(r"%(\1)s", sql)

    return replace(
        dialect,
        raising=placed(dialect.raising),
        checking=placed(dialect.checking),
        looking=placed(dialect.looking),
        sweeping=placed(dialect.sweeping),
    )


def _dialect_at(connection: Any, guarded: _GuardedLease) -> Dialect:
    """Return the statements for a database, which differ where the leases are in it, too."""
    return _dialect(
        _vendor(connection), guarded.wait, _lease_table_at(connection, guarded.lease_table)
    )


_lease_tables: Final[dict[tuple[object, ...], LeaseTable | None]] = {}
"""The tables of leases that are in a database, or ``None`` if they are elsewhere; each is asked once."""


def _lease_table_at(connection: Any, asked: Callable[[], LeaseTable] | None) -> LeaseTable | None:
    """Return the table of a lease, if it is in this database."""
    if asked is None or connection.vendor != "postgresql":
        return None
    settings = connection.settings_dict
    place = (asked, *(settings[name] for name in ("HOST", "PORT", "NAME")))
    if place not in _lease_tables:
        there = asked()
        _lease_tables[place] = there if there.database == _database(connection) else None
    return _lease_tables[place]


def has_the_leases(connection: Any, locks: Locks) -> bool:
    """Return whether the leases of ``locks`` are in this database. Raises as both servers do."""
    return _lease_table_at(connection, locks._locker.lease_table) is not None  # noqa: SLF001


def _database(connection: Any) -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute(DATABASE)
            return str(cursor.fetchone()[0])
    except Error as error:
        if trouble_of(error) is Trouble.NO_RIGHT:
            raise ConfigurationError(
                "the guard must know whether the leases are in the database"
                f" {connection.alias!r}: GRANT EXECUTE ON FUNCTION pg_control_system() to its user"
            ) from error
        raise


_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")


def _vendor(connection: Any) -> str:
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:
        return "mariadb"
    return str(connection.vendor)


def _asked(connection: Any, guarded: _GuardedLease) -> Callable[[Statement], Any]:
    """Return a function that runs the statements of a step."""
    dialect, wait = _dialect_at(connection, guarded), guarded.wait

    def ask(statement: Statement) -> Any:
        try:
            return _answer(connection, dialect, statement)
        except Error as error:
            trouble = trouble_of(error)
            if trouble is Trouble.CONFLICT:
                raise Conflict(error) from error
            if trouble is Trouble.LOCKED and isinstance(statement, Raise):
                raise FenceLocked(unqualified(statement.mark.key), wait=wait) from error
            if trouble is Trouble.NO_TABLE:
                raise _no_table(connection.alias) from error
            if remedy := remedy_for(trouble, dialect):
                raise ConfigurationError(remedy) from error
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
    with connection.cursor() as cursor:
        cursor.execute(sql, mark.values())
        found = cursor.fetchone() if cursor.description else None
        return cursor.rowcount, Row(*found) if found else None


def _no_table(alias: str) -> ConfigurationError:
    database = "" if alias == DEFAULT_DB_ALIAS else f" --database={alias}"
    return ConfigurationError(
        f"the database {alias!r} has no table {TABLE}, which GUARD needs: run"
        f" manage.py migrate weblock{database}, or name the databases in GUARD_DATABASES"
    )
