"""The database has the last word: no COMMIT of a stale holder succeeds, however long it slept.

A small table has one row for each key, with the fence of the section that began last. A section
writes its own there before it reads anything (``Runner.begin``), and reads it again, under a lock that
is kept until COMMIT, before it commits (``Runner.check``). ``docs/guard.md`` has the proof.

``Runner`` takes these two steps through an adapter's ``execute``, in the words that ``sql`` has for each
database. The adapters of Django and SQLAlchemy call it at the right moments.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from ..._adapting import holdings_of
from ..._api import BaseLease
from ..._platform.logs import logger
from ...errors import ConfigurationError, LeaseLost, LockTimeout, WeblockError
from ...keys import unqualified
from . import sql
from .sql import LENGTHS, Dialect, Trouble, dialect_of, trouble_of

GuardKind = Literal["lease", "database"]
"""What is checked before a COMMIT, as settings and locks name it."""

LEASE_GUARD: Final = "lease"
"""Only that the lease has not ended, as far as its holder knows."""

DATABASE_GUARD: Final = "database"
"""Also the fence, by the database itself."""

GUARDS: Final = (LEASE_GUARD, DATABASE_GUARD)


def refuse_guard(guard: object, options: Mapping[str, object]) -> None:
    """Raise ``ConfigurationError`` for what is no ``guard=`` of a lock with these options."""
    if guard is not None and guard not in GUARDS:
        raise ConfigurationError(f"guard={guard!r:.80}: give 'lease', 'database' or None")
    if guard == DATABASE_GUARD and (options.get("shared") or options.get("limit", 1) != 1):
        raise ConfigurationError(
            "the guard in the database needs an exclusive lease: leave out limit= and shared=, or"
            " the guard",
            code="unsuitable_guard",
        )


ATTEMPTS: Final = 5
"""How often to try to raise a fence while others do so at the same time."""

SALT: Final = "weblock guard "


class StaleFence(LeaseLost):
    """The database refused a holder, because another with a larger fence has come since.

    ``newest`` is the larger fence; ``None`` if the database no longer knows of this holder.
    """

    def __init__(self, key: str, fence: int, newest: int | None) -> None:
        if newest is None:
            reason = (
                "the database has no record of it: its row was deleted, or the search_path has"
                " changed"
            )
        else:
            reason = f"fence {newest} has begun since"
        super().__init__(key, fence, reason)
        self.args = key, fence, newest
        self.newest = newest


class FenceLocked(LockTimeout):
    """The lock was acquired, but a former holder's transaction is still open and was checked.

    Such a holder was stopped between its check and its COMMIT. Its work may yet be committed, so
    nothing may begin before: the database was waited for, up to the guard's limit.
    """

    code = "fence_locked"

    def __init__(self, key: str, wait: float) -> None:
        super().__init__(key, wait)
        self.args = key, wait
        self.message = (
            f"lock {key!r} was acquired, but a former holder's transaction in the database has not"
            f" ended within {wait:g} s: its process may have been stopped just before its COMMIT."
            " Retry later, or end that session in the database"
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """What a section writes into the row of its key.

    ``digest`` names the row: a digest has no letter case, accents or trailing blanks that a
    collation could take for equal. ``token`` tells sections apart even where an engine that was
    set back gives a fence twice; it is made of the owner, and does not tell it.

    ``continues`` a lease that was handed over: it takes the place of a section with its own fence.
    """

    digest: str
    key: str
    fence: int
    token: str
    continues: bool = False

    @property
    def below(self) -> int:
        """The fence below which all sections give way to this one."""
        return self.fence + self.continues

    def values(self) -> dict[str, Any]:
        """Return the parameters of the statements.

        ``lock_key`` is the key for people who look at the table, whose encoding can lack characters.
        """
        key = self.key.encode("ascii", "backslashreplace").decode()
        return {
            "digest": self.digest,
            "lock_key": key[: LENGTHS["lock_key"]],
            "fence": self.fence,
            "token": self.token,
            "below": self.below,
        }

    def after(self, newest: int) -> Mark:
        """Return the section as it follows another that the engine no longer knows of.

        One with the same fence had the lease before it was handed over. If it has a larger fence, the
        engine was set back, and the section gets one above that.
        """
        if newest == self.fence:
            return replace(self, continues=True)
        return replace(self, fence=newest + 1)


class Row(NamedTuple):
    """The row of a key."""

    fence: int
    token: str


def marks_of(lease: BaseLease) -> list[Mark]:
    """Return the marks of a lease's keys in a fixed order; none for a key without a lease.

    Raises ``ConfigurationError`` for a lease that is not exclusive: of several holders, each would
    be refused as soon as one with a larger fence has begun.
    """
    holdings = holdings_of(lease)
    for each in holdings:
        if each.terms.limit > 1:
            raise ConfigurationError(
                "the guard in the database needs an exclusive lease, and"
                f" {unqualified(each.key)!r:.200} is held with limit= or shared=True: leave that"
                " out, or the guard (guard=, fence=True)",
                code="unsuitable_guard",
            )
    marks = [
        Mark(
            hashlib.sha256(each.key.encode()).hexdigest(),
            each.key,
            each.fence,
            hashlib.sha256(f"{SALT}{each.owner}".encode()).hexdigest()[:32],
        )
        for each in holdings
    ]
    return sorted(marks, key=lambda mark: mark.digest)


def _stale(mark: Mark, row: Row | None) -> StaleFence:
    return StaleFence(unqualified(mark.key), fence=mark.fence, newest=row.fence if row else None)


def is_due(written: float | None) -> bool:
    """Return whether a mark is to be written that was written last at this time of the monotonic clock."""
    return written is None or time.monotonic() - written > sql.REFRESH


@dataclass(frozen=True)
class Runner:
    """What runs the guard's steps on a connection to ``database``, such as ``"postgresql"``.

    ``execute`` runs one statement with parameters such as ``:digest``, and returns the number of rows
    and the row that it found. ``is_held`` asks the engine whether it still knows the lease of a mark.
    ``no_table`` tells what to do where the table is missing.
    """

    database: str
    wait: float
    execute: Callable[[str, dict[str, Any]], tuple[int, Row | None]]
    is_held: Callable[[Mark], bool]
    no_table: str

    @cached_property
    def dialect(self) -> Dialect:
        """The words of its database."""
        return dialect_of(self.database, wait=self.wait)

    def begin(self, mark: Mark, written: float | None, *, may_sweep: bool = True) -> float:
        """Take the first step, committed by itself, and return when: see ``is_due``.

        Before anything is read: from now on no section before this one commits. Raises ``StaleFence`` if a
        section with a larger fence has begun, unless the engine still knows the lease: then its fences went
        back, and the database continues its own.
        """
        now = time.monotonic()
        if written is not None:
            self._begin_again(mark)
        else:
            try:
                self._raise(mark)
            except StaleFence as stale:
                if stale.newest is None or not self.is_held(mark):
                    raise
                if stale.newest > mark.fence:
                    logger.warning(
                        "the engine's fence of %.200r is %d, but the database has fence %d: the"
                        " engine lost its data, or was restored from an older backup. The database"
                        " continues with its own fences [weblock.fence_behind]",
                        *(unqualified(mark.key), mark.fence, stale.newest),
                    )
                self._raise(mark.after(stale.newest))
        if may_sweep and random.random() < sql.SWEEPS:
            self.execute(self.dialect.sweeping, {})
        return now

    def _begin_again(self, mark: Mark) -> None:
        """Take the first step of a section that began long ago: its row may be deleted soon, or has been.

        A row that is gone does not tell whether another section has written it meanwhile. The engine does:
        it is asked before the row is written again, and after it.
        """
        _, row = self._ask(sql.LOOKING, mark)
        if row and row.token != mark.token:
            raise _stale(mark, row)
        if row is None and not self.is_held(mark):
            raise _stale(mark, None)
        self._raise(mark)
        if row is None and not self.is_held(mark):
            raise _stale(mark, None)

    def _raise(self, mark: Mark) -> None:
        """Write the mark. Raises ``StaleFence`` if a larger fence stands there."""
        for _ in range(ATTEMPTS):
            try:
                rows, _row = self._ask(self.dialect.raising, mark)
                if rows in self.dialect.certain:
                    return
                _, row = self._ask(sql.LOOKING, mark)
            except Exception as error:
                if trouble_of(error) is not Trouble.CONFLICT:
                    raise
                continue  # Another process wrote at the same time: read again.
            if row is None:
                continue  # It was cleaned up in between.
            if row.token == mark.token:
                return
            raise _stale(mark, row)
        raise _stale(mark, None)

    def check(self, mark: Mark) -> bool:
        """Take the second step, in the transaction of the work; return whether it may write at all.

        The row is read under a lock that is kept until COMMIT. Raises ``StaleFence`` if another section has
        begun, and what the database raised: after a conflict, of another statement of the work, too, ``look``
        tells whether that is why.
        """
        try:
            self._compare(self.dialect.checking, mark)
        except Exception as error:
            if trouble_of(error) is not Trouble.READ_ONLY:
                raise
            return False
        return True

    def look(self, mark: Mark) -> None:
        """Raise ``StaleFence`` if the row is no longer ours, after a conflict and a rollback."""
        self._compare(sql.LOOKING, mark)

    def _compare(self, statement: str, mark: Mark) -> None:
        _, row = self._ask(statement, mark)
        if row is None or row.token != mark.token:
            raise _stale(mark, row)

    def _ask(self, statement: str, mark: Mark) -> tuple[int, Row | None]:
        try:
            return self.execute(statement, mark.values())
        except WeblockError:  # It is explained already.
            raise
        except Exception as error:
            trouble = trouble_of(error)
            if trouble is Trouble.LOCKED and statement is self.dialect.raising:
                raise FenceLocked(unqualified(mark.key), wait=self.wait) from error
            remedies = {Trouble.NO_TABLE: self.no_table, Trouble.NO_RIGHT: sql.NO_RIGHT}
            if trouble in remedies:
                raise ConfigurationError(remedies[trouble], code="missing_table") from error
            raise
