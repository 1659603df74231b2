"""``"GUARD": "database"``: the database refuses the COMMIT of a holder that slept through its lease.

``Guard`` knows the leases of one request, and what of them stands in which database. ``commits`` has
it act at the right moments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django.db import DEFAULT_DB_ALIAS, connections, router
from django.db.utils import Error

from ..._core.holding import Status
from ..._face import BaseLease
from ...keys import unqualified
from ..guarding import (
    TABLE,
    Conflict,
    Dialect,
    Mark,
    Row,
    Runner,
    StaleFence,
    Trouble,
    dialect_of,
    is_due,
    marks_of,
    trouble_of,
)

if TYPE_CHECKING:
    from ...sync import Locks
    from .settings import GuardSettings


@dataclass
class _GuardedLease:
    """One lease: its databases, how long each may keep us waiting, and the locks it is from."""

    lease: BaseLease
    mark: Mark
    databases: frozenset[str]
    wait: float
    locks: Locks
    known_to: dict[str, float] = field(default_factory=dict)
    """The databases that know of it, and since when: see ``is_due``."""

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
            _GuardedLease(lease, mark, databases, wanted.wait, locks)
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
            alias, written = connection.alias, guarded.known_to.get(connection.alias)
            if alias not in guarded.databases or not is_due(written) or guarded.is_given_up():
                continue
            runner, may_sweep = _runner(connection, guarded), not connection.in_atomic_block
            guarded.known_to[alias] = runner.begin(guarded.mark, written, may_sweep=may_sweep)

    def check_on(self, connection: Any) -> None:
        """Raise ``StaleFence`` if another section has begun; keep others out until COMMIT.

        A transaction that turns out to be read-only passes: it commits nothing.
        """
        for guarded in self.leases():
            if connection.alias not in guarded.known_to:
                continue
            runner = _runner(connection, guarded)
            try:
                runner.check(guarded.mark)
            except Conflict as conflict:
                connection.rollback()
                try:
                    runner.look(guarded.mark)
                finally:
                    connection.rollback()
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
                    _runner(connections[alias], guarded).look(guarded.mark)
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
def _dialect(vendor: str, wait: float) -> Dialect:
    return dialect_of(vendor, wait=wait)


@cache
def _placed(sql: str) -> str:
    """Return a statement with the placeholders of Django's cursors."""
    return _PARAMETER.sub(r"%(\1)s", sql)


_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")


def _vendor(connection: Any) -> str:
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:
        return "mariadb"
    return str(connection.vendor)


def _runner(connection: Any, guarded: _GuardedLease) -> Runner:
    def execute(sql: str, parameters: dict[str, Any]) -> tuple[int, Row | None]:
        with connection.cursor() as cursor:
            cursor.execute(_placed(sql), parameters)
            found = cursor.fetchone() if cursor.description else None
            return cursor.rowcount, Row(*found) if found else None

    alias = connection.alias
    database = "" if alias == DEFAULT_DB_ALIAS else f" --database={alias}"
    no_table = (
        f"the database {alias!r} has no table {TABLE}, which GUARD needs: run manage.py migrate"
        f" weblock{database}, or name the databases in GUARD_DATABASES"
    )
    dialect = _dialect(_vendor(connection), guarded.wait)
    return Runner(dialect, guarded.wait, execute, guarded.holds, no_table)
