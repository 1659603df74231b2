"""The two steps of a guarded section, without any database.

They are generators of statements: the caller sends in what the database answered, or throws
``Conflict`` where it refused a statement because of another transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ...._adapting import holdings_of
from ...._api import BaseLease
from ...._platform.logs import logger
from ....errors import ConfigurationError, LeaseLost, LockTimeout
from ....keys import unqualified

ATTEMPTS: Final = 5
"""How often to try to raise a fence while others do so at the same time."""

SHOWN: Final = 600
"""The length of the column of keys; a key with its namespace has up to 577 characters."""

SALT: Final = "weblock guard "


class StaleFence(LeaseLost):
    """The database refused a holder, because another with a larger fence has come since.

    ``newest`` is the larger fence; ``None`` if the database no longer knows of this holder.
    """

    def __init__(self, key: str, *, fence: int, newest: int | None) -> None:
        if newest is None:
            reason = "the database has no record of it: its row was deleted, or the search_path has changed"
        else:
            reason = f"fence {newest} has begun since"
        super().__init__(key, fence=fence, reason=reason)
        self.newest = newest


class FenceLocked(LockTimeout):
    """The lock was acquired, but a former holder's transaction is still open and was checked.

    Such a holder was stopped between its check and its COMMIT. Its work may yet be committed, so
    nothing may begin before: the database was waited for, up to the guard's limit.
    """

    code = "fence_locked"

    def __init__(self, key: str, *, wait: float) -> None:
        super().__init__(key, wait=wait)
        self.args = (
            (
                f"lock {key!r} was acquired, but a former holder's transaction in the database has not"
                f" ended within {wait:g} s: its process may have been stopped just before its COMMIT."
                " Retry later, or end that session in the database"
            ),
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

    @property
    def shown(self) -> str:
        """The key for people who look at the table, whose encoding can lack characters."""
        return self.key.encode("ascii", "backslashreplace").decode()[:SHOWN]

    def values(self) -> dict[str, Any]:
        """Return the parameters of the statements."""
        return {
            "digest": self.digest,
            "key": self.key,
            "lock_key": self.shown,
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


class Raise(NamedTuple):
    """Write the mark, if no larger fence stands there; committed by itself.

    The answer is whether it is certain that the row is ours.
    """

    mark: Mark


class Look(NamedTuple):
    """Read the row, outside of the work's transaction; ``None`` if there is none."""

    mark: Mark


class Check(NamedTuple):
    """Read the row inside the work's transaction, under a lock that is kept until its end."""

    mark: Mark


class Confirm(NamedTuple):
    """Ask the engine whether the lease is still held; false if it cannot be asked."""

    mark: Mark


Statement = Raise | Look | Check | Confirm


class Conflict(Exception):
    """The database refused a statement because of another transaction, by ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def marks_of(lease: BaseLease) -> list[Mark]:
    """Return the marks of a lease's keys in a fixed order; none for a key without a lease.

    Raises ``ConfigurationError`` for a lease that is not exclusive: of several holders, each would
    be refused as soon as one with a larger fence has begun.
    """
    holdings = holdings_of(lease)
    for each in holdings:
        if each.terms.limit > 1:
            raise ConfigurationError(
                f"the guard in the database needs an exclusive lease, and"
                f" {unqualified(each.key)!r:.200} is held with limit= or shared=True: leave that out, or"
                " the guard (guard=, fence=True)",
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


def raising(mark: Mark) -> Generator[Statement, Any, None]:
    """The first step, before anything is read: from now on no section before us commits.

    Raises ``StaleFence`` if a section with a larger fence has begun already.
    """
    for _ in range(ATTEMPTS):
        try:
            if (yield Raise(mark)):
                return
            row: Row | None = yield Look(mark)
        except Conflict:
            continue  # Another process wrote at the same time: read again.
        if row is None:
            continue  # It was cleaned up in between.
        if row.token == mark.token:
            return
        raise _stale(mark, row)
    raise _stale(mark, None)


def beginning(mark: Mark) -> Generator[Statement, Any, None]:
    """The first step, also where the engine's fences went back: then the database continues its own."""
    try:
        yield from raising(mark)
    except StaleFence as stale:
        if stale.newest is None or not (yield Confirm(mark)):
            raise
        if stale.newest > mark.fence:
            logger.warning(
                "the engine's fence of %.200r is %d, but the database has fence %d: the engine lost its"
                " data, or was restored from an older backup. The database continues with its own"
                " fences [weblock.fence_behind]",
                *(unqualified(mark.key), mark.fence, stale.newest),
            )
        yield from raising(mark.after(stale.newest))


def continuing(mark: Mark) -> Generator[Statement, Any, None]:
    """The first step of a section that began long ago: its row may be deleted soon, or has been.

    A row that is gone does not tell whether another section has written it meanwhile. The engine does:
    it is asked before the row is written again, and after it.
    """
    row: Row | None = yield Look(mark)
    if row and row.token != mark.token:
        raise _stale(mark, row)
    if row is None and not (yield Confirm(mark)):
        raise _stale(mark, None)
    yield from raising(mark)
    if row is None and not (yield Confirm(mark)):
        raise _stale(mark, None)


def checking(mark: Mark, ask: type[Check | Look] = Check) -> Generator[Statement, Any, None]:
    """The second step, before COMMIT: raises ``StaleFence`` if another section has begun since.

    If it meets a conflict, or another statement of the work did, the same is asked by ``Look`` after the
    rollback. If the row is still ours then, the conflict was about other data.
    """
    row: Row | None = yield ask(mark)
    if row is None or row.token != mark.token:
        raise _stale(mark, row)


def _stale(mark: Mark, row: Row | None) -> StaleFence:
    return StaleFence(unqualified(mark.key), fence=mark.fence, newest=row.fence if row else None)
