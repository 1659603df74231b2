"""The database has the last word: no COMMIT of a stale holder succeeds, however long it slept.

A small table has one row for each key, with the fence of the section that began last. A section
writes its own there before it reads anything (``raising``), and reads it again, under a lock that
is kept until COMMIT, before it commits (``checking``). ``docs/guard.md`` has the proof.

``protocol`` decides, and knows no database; ``sql`` says it in each database's words; ``runner``
runs it through an adapter's ``execute``; ``reading`` tells what a statement does. The adapters of
Django and SQLAlchemy call it at the right moments.
"""

from __future__ import annotations

from .errors import FenceLocked, StaleFence
from .kinds import DATABASE_GUARD, GUARDS, LEASE_GUARD, GuardKind, refuse_guard
from .protocol import (
    Check,
    Conflict,
    Look,
    Mark,
    Raise,
    Row,
    checking,
    marks_of,
    raising,
    run,
)
from .reading import Kind, kind_of, refuse_commit
from .runner import Runner, is_due
from .sql import (
    LENGTHS,
    LOCK_WAIT,
    TABLE,
    Dialect,
    Trouble,
    dialect_of,
    trouble_of,
)

__all__ = [
    "DATABASE_GUARD",
    "GUARDS",
    "LEASE_GUARD",
    "LENGTHS",
    "LOCK_WAIT",
    "TABLE",
    "Check",
    "Conflict",
    "Dialect",
    "FenceLocked",
    "GuardKind",
    "Kind",
    "Look",
    "Mark",
    "Raise",
    "Row",
    "Runner",
    "StaleFence",
    "Trouble",
    "checking",
    "dialect_of",
    "is_due",
    "kind_of",
    "marks_of",
    "raising",
    "refuse_commit",
    "refuse_guard",
    "run",
    "trouble_of",
]
