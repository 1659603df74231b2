"""Statements on one connection, and their results in the order in which they were sent.

psycopg connects and authenticates; from then on libpq's pipeline mode is used as it is. Each
statement is a transaction of its own, is prepared where it is used first, and has its result within
a bounded time, or the connection ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from .rows import Row
from .statements import Statement

Parameter = str | float | None

Outcome = list[Row] | psycopg.Error
"""The rows of a statement's result, or why there are none."""

_FAILED: Final = {ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE, ExecStatus.NONFATAL_ERROR}

LEAST_LIBPQ: Final = 140000
"""The first libpq that has the pipeline mode."""


class Dialogue:
    """One connection that psycopg has opened. Nothing here waits."""

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn
        self.pooled = False
        """Whether a pooler stands in front of the server: no two statements need meet one session."""
        self._prepared: set[str] = set()
        self._rows: list[Row] = []
        self._failure: psycopg.Error | None = None
        pgconn.enter_pipeline_mode()

    def send(self, statement: Statement, parameters: Sequence[Parameter]) -> None:
        """Send a statement. Raises psycopg's errors."""
        text = statement.text.encode()
        values = [None if each is None else str(each).encode() for each in parameters]
        name = b"" if self.pooled else statement.name.encode()
        if not name:
            self.pgconn.send_query_params(text, values)
        else:
            if statement.name not in self._prepared:
                self.pgconn.send_prepare(name, text)
            self.pgconn.send_query_prepared(name, values)
        self.pgconn.pipeline_sync()
        if name:
            self._prepared.add(statement.name)

    def arrived(self) -> Iterator[Outcome]:
        """Take what has come, and return the outcomes that are complete. Raises psycopg's errors."""
        pgconn = self.pgconn
        pgconn.consume_input()
        blanks = 0
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                # One ends the results of each statement; a second says that there are no more.
                blanks += 1
                if blanks > 1:
                    break
                continue
            blanks = 0
            if result.status == ExecStatus.PIPELINE_SYNC:
                outcome: Outcome = self._failure or self._rows
                self._rows, self._failure = [], None
                yield outcome
            else:
                self._take(result)
        if pgconn.status != ConnStatus.OK:
            raise self._failure or psycopg.OperationalError("the connection was lost")

    def notifications(self) -> Iterator[tuple[str, str]]:
        """Return the channel and the payload of each notification that has arrived."""
        while notification := self.pgconn.notifies():
            yield notification.relname.decode(), notification.extra.decode(errors="replace")

    def _take(self, result: PGresult) -> None:
        if result.status == ExecStatus.TUPLES_OK:
            columns = range(result.nfields)
            self._rows = [
                [result.get_value(row, column) for column in columns]
                for row in range(result.ntuples)
            ]
        elif result.status in _FAILED and self._failure is None:
            self._failure = _error_of(result)


def _error_of(result: PGresult) -> psycopg.Error:
    state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    try:
        kind: type[psycopg.Error] = psycopg.errors.lookup(state)
    except KeyError:
        kind = psycopg.OperationalError
    return kind(message.decode(errors="replace").strip())
