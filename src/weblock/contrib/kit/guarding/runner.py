"""The two steps on one database, through the ``execute`` of an adapter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ....errors import ConfigurationError, WeblockError
from ....keys import unqualified
from . import sql
from .protocol import (
    Check,
    Confirm,
    Conflict,
    FenceLocked,
    Look,
    Mark,
    Raise,
    Row,
    Statement,
    beginning,
    checking,
    continuing,
)
from .sql import Dialect, Trouble, dialect_of, trouble_of


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
        """Take the first step, committed by itself, and return when: see ``is_due``."""
        now = time.monotonic()
        self.run(beginning(mark) if written is None else continuing(mark))
        if may_sweep and random.random() < sql.SWEEPS:
            self.execute(self.dialect.sweeping, {})
        return now

    def check(self, mark: Mark) -> bool:
        """Take the second step, in the transaction of the work; return whether it may write at all.

        Raises ``StaleFence`` if another section has begun, and what the database raised: after a
        conflict, ``look`` tells whether that is why.
        """
        try:
            self.run(checking(mark))
        except Conflict as conflict:
            refused = conflict.error
        except Exception as error:
            if trouble_of(error) is not Trouble.READ_ONLY:
                raise
            return False
        else:
            return True
        raise refused  # With its cause, by which ``trouble_of`` knows it.

    def look(self, mark: Mark) -> None:
        """Raise ``StaleFence`` if the row is no longer ours, after a conflict and a rollback."""
        self.run(checking(mark, Look))

    def run(self, steps: Generator[Statement, Any, None]) -> None:
        """Take a step, one statement after the other."""
        try:
            statement = next(steps)
            while True:
                try:
                    answered = self._answer(statement)
                except Conflict as conflict:
                    statement = steps.throw(conflict)
                else:
                    statement = steps.send(answered)
        except StopIteration:
            return

    def _answer(self, statement: Statement) -> Any:
        mark = statement.mark
        try:
            match statement:
                case Confirm():
                    return self.is_held(mark)
                case Raise():
                    rows, _ = self.execute(self.dialect.raising, mark.values())
                    return rows in self.dialect.certain
                case Check():
                    return self.execute(self.dialect.checking, mark.values())[1]
                case Look():
                    return self.execute(sql.LOOKING, mark.values())[1]
        except WeblockError:  # It is explained already.
            raise
        except Exception as error:
            trouble = trouble_of(error)
            if trouble is Trouble.CONFLICT:
                raise Conflict(error) from error
            if trouble is Trouble.LOCKED and isinstance(statement, Raise):
                raise FenceLocked(unqualified(mark.key), wait=self.wait) from error
            remedies = {Trouble.NO_TABLE: self.no_table, Trouble.NO_RIGHT: sql.NO_RIGHT}
            if trouble in remedies:
                raise ConfigurationError(remedies[trouble], code="missing_table") from error
            raise
