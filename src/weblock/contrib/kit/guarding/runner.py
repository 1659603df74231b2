"""The two steps on one database, through the ``execute`` of an adapter."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from ....errors import ConfigurationError, WeblockError
from ....keys import unqualified
from . import sql
from .errors import FenceLocked
from .protocol import (
    Check,
    Confirm,
    Conflict,
    Look,
    Mark,
    Raise,
    Row,
    Statement,
    beginning,
    checking,
    continuing,
    run,
    still_ours,
)
from .sql import Dialect, Trouble, sweep_is_due, trouble_of


def is_due(written: float | None) -> bool:
    """Return whether a mark is to be written that was written last at this time of the monotonic clock."""
    return written is None or time.monotonic() - written > sql.REFRESH


@dataclass(frozen=True)
class Runner:
    """What runs the guard's steps on a connection.

    ``execute`` runs one statement with parameters such as ``:digest``, and returns the number of rows
    and the row that it found. ``is_held`` asks the engine whether it still knows the lease.
    ``no_table`` tells what to do where the table is missing.
    """

    dialect: Dialect
    wait: float
    execute: Callable[[str, dict[str, Any]], tuple[int, Row | None]]
    is_held: Callable[[], bool]
    no_table: str

    def begin(self, mark: Mark, written: float | None, *, may_sweep: bool = True) -> float:
        """Take the first step, committed by itself, and return when: see ``is_due``."""
        now = time.monotonic()
        self._run(beginning(mark) if written is None else continuing(mark))
        if may_sweep and sweep_is_due():
            self.execute(self.dialect.sweeping, {})
        return now

    def check(self, mark: Mark) -> None:
        """Take the second step, in the transaction of the work. Raises ``Conflict`` as well."""
        self._run(checking(mark))

    def look(self, mark: Mark) -> None:
        """Raise ``StaleFence`` if the row is no longer ours, after a conflict and a rollback."""
        self._run(still_ours(mark))

    def _run(self, steps: Generator[Statement, Any, None]) -> None:
        run(steps, self._answer)

    def _answer(self, statement: Statement) -> Any:
        dialect, mark = self.dialect, statement.mark
        try:
            match statement:
                case Confirm():
                    return self.is_held()
                case Raise():
                    return self.execute(dialect.raising, mark.values())[0] in dialect.certain
                case Check():
                    return self.execute(dialect.checking, mark.values())[1]
                case Look():
                    return self.execute(dialect.looking, mark.values())[1]
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
                raise ConfigurationError(remedies[trouble]) from error
            raise
