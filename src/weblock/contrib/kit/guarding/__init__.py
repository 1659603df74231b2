"""The database has the last word: no COMMIT of a stale holder succeeds, however long it slept.

A small table has one row for each key, with the fence of the section that began last. A section
writes its own there before it reads anything (``raising``), and reads it again, under a lock that
is kept until COMMIT, before it commits (``checking``). ``docs/guard.md`` has the proof.

``protocol`` decides, and knows no database; ``sql`` says it in each database's words; ``runner``
runs it through an adapter's ``execute``; ``reading`` tells what a statement does. The adapters of
Django and SQLAlchemy call it at the right moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from ....errors import ConfigurationError
from .protocol import FenceLocked, Mark, Row, StaleFence, marks_of
from .reading import Kind, kind_of, refuse_commit
from .runner import Runner, is_due
from .sql import LENGTHS, LOCK_WAIT, TABLE, Trouble, trouble_of

__all__ = [
    "DATABASE_GUARD",
    "GUARDS",
    "LEASE_GUARD",
    "LENGTHS",
    "LOCK_WAIT",
    "TABLE",
    "FenceLocked",
    "GuardKind",
    "Kind",
    "Mark",
    "Row",
    "Runner",
    "StaleFence",
    "Trouble",
    "is_due",
    "kind_of",
    "marks_of",
    "refuse_commit",
    "refuse_guard",
    "trouble_of",
]

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
            "the guard in the database needs an exclusive lease: leave out limit= and shared=, or the guard",
            code="unsuitable_guard",
        )
