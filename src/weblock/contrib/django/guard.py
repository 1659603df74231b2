"""``"GUARD": "database"``: the database refuses the COMMIT of a holder that slept through its lease.

A request writes the fences of its leases into the databases as soon as it has acquired them, before it
reads anything. ``commits`` has the fences checked before each COMMIT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django.db import DEFAULT_DB_ALIAS, connections, router
from django.db.utils import Error

from ..._face import BaseLease
from ...errors import ConfigurationError
from ...keys import unqualified
from ..kit.guarding import (
    TABLE,
    Conflict,
    Dialect,
    Mark,
    Row,
    Runner,
    StaleFence,
    Trouble,
    dialect_of,
    marks_of,
    trouble_of,
)

if TYPE_CHECKING:
    from ...sync import Locks
    from .settings import GuardSettings


@dataclass
class _GuardedLease:
    """The lease of one key: its databases, how long to wait for each, and the locks it is from."""

    mark: Mark
    databases: frozenset[str]
    wait: float
    locks: Locks
    written_to: set[str] = field(default_factory=set)
    """The databases that have its fence."""

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
        """Have a lease of ``locks`` guarded: see ``write``."""
        databases = guarded_databases(wanted.databases)
        known = {each.mark for each in self.leases()}
        self._leases += [
            _GuardedLease(mark, databases, wanted.wait, locks)
            for mark in marks_of(lease)
            if mark not in known
        ]

    def covers(self, database: str) -> bool:
        """Return whether ``database`` is guarded."""
        return any(database in each.databases for each in self.leases())

    def write(self) -> None:
        """Write the fences that their databases do not have yet, outside of any transaction.

        Raises ``StaleFence`` if a later holder has begun, and ``FenceLocked`` if a former one has
        been about to commit for too long.
        """
        for guarded in self.leases():
            for alias in sorted(guarded.databases - guarded.written_to):
                connection = connections[alias]
                if not connection.settings_dict["AUTOCOMMIT"]:
                    raise ConfigurationError(
                        f"the database {alias!r} has AUTOCOMMIT off: GUARD commits by itself before"
                        " the work begins, and needs it on"
                    )
                may_sweep = not connection.in_atomic_block  # That of a TestCase.
                _runner(connection, guarded).begin(guarded.mark, None, may_sweep=may_sweep)
                guarded.written_to.add(alias)

    def check_on(self, connection: Any) -> None:
        """Raise ``StaleFence`` if another section has begun; keep others out until COMMIT.

        A transaction that turns out to be read-only passes: it commits nothing.
        """
        for guarded in self.leases():
            if connection.alias not in guarded.databases:
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
            for alias in guarded.written_to:
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
