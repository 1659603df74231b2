"""Connections of psycopg, for threads and for event loops, whose statements have a time limit.

A statement is a transaction of its own, and is prepared where it is first used. Behind a pooler none is
prepared, because each transaction gets another session there.
"""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import waiting

from .rows import Row
from .settings import Settings
from .statements import INTRODUCE

if TYPE_CHECKING:
    from psycopg.abc import PQGen

R = TypeVar("R")

Parameter = str | float | None

INTERVAL: Final = 0.1
"""Seconds between two looks whether a statement has reached its limit."""


def limited(work: PQGen[R], seconds: float) -> PQGen[R]:
    """Return psycopg's generator with a limit: it raises ``TimeoutError`` if the server says nothing."""
    give_up_at = monotonic() + seconds
    try:
        awaited = next(work)
        while True:
            ready = yield awaited
            if not ready and monotonic() > give_up_at:
                raise TimeoutError
            awaited = work.send(ready)
    except StopIteration as end:
        result: R = end.value
        return result


class _BlockingConnection(psycopg.Connection[Row]):
    limit: float

    def wait(self, gen: PQGen[R], interval: float = INTERVAL, timeout: float | None = None) -> R:
        # psycopg's own would answer Ctrl-C with a cancel request, on another connection.
        return waiting.wait(limited(gen, self.limit), self.fileno(), interval)


class _AsyncioConnection(psycopg.AsyncConnection[Row]):
    limit: float
    _waited_with: PQGen[Any] | None = None

    async def wait(
        self, gen: PQGen[R], interval: float = INTERVAL, timeout: float | None = None
    ) -> R:
        # So would it answer a cancellation.
        self._waited_with = gen = limited(gen, self.limit)
        try:
            return await waiting.wait_async(gen, self.fileno(), interval)
        except psycopg.OperationalError as error:
            # psycopg takes any ``OSError``, of which ``TimeoutError`` is one, for a closed socket.
            if isinstance(error.__cause__, TimeoutError):
                raise error.__cause__ from None
            raise

    async def settled(self) -> None:
        if self._waited_with:
            await self.wait(self._waited_with)


class Link:
    """A connection, and the cursor that all its statements use."""

    pooled = False
    """Whether a pooler stands in front of the server: no two statements need meet one session."""

    def __init__(
        self, connection: _BlockingConnection | _AsyncioConnection, settings: Settings
    ) -> None:
        connection.limit = settings.timeout
        self.info = connection.info
        self._any_connection = connection
        # The server gives up before, so that its answer still arrives in time.
        self._introduction = (self.info.backend_pid, f"{750 * settings.timeout:.0f}ms")

    def fileno(self) -> int:
        """Return the number of its socket, which is negative if that is closed."""
        try:
            return self._any_connection.fileno()
        except psycopg.OperationalError:
            return -1

    def close(self) -> None:
        # ``AsyncConnection.close`` is a coroutine, which cannot be awaited where a loop ends.
        self._any_connection.pgconn.finish()

    def _introduced(self, answer: list[Row]) -> None:
        self.pooled = not answer
        if not self.pooled:
            self._any_connection.prepare_threshold = 0


class BlockingLink(Link):
    """One for a thread."""

    def __init__(self, settings: Settings) -> None:
        """Connect. Raises psycopg's errors."""
        self._connection = _BlockingConnection.connect(
            **settings.libpq,
            autocommit=True,
            prepare_threshold=None,
            cursor_factory=psycopg.RawCursor,
        )
        super().__init__(self._connection, settings)
        self._cursor = self._connection.cursor()
        try:
            self._introduced(self.ask(INTRODUCE, *self._introduction))
        except BaseException:
            self.close()
            raise

    def ask(self, statement: bytes, *parameters: Parameter) -> list[Row]:
        """Return the rows that a statement results in. Raises psycopg's errors, or ``TimeoutError``."""
        cursor = self._cursor
        # What has no parameters is rare, or several statements.
        cursor.execute(statement, parameters or None, prepare=None if parameters else False)
        return [] if cursor.rownumber is None else cursor.fetchall()

    def heard(self, seconds: float) -> Generator[str]:
        """Yield the payloads of notifications, until so many seconds pass without one."""
        limit, self._connection.limit = self._connection.limit, 2 * seconds
        try:
            for notification in self._connection.notifies(timeout=seconds, stop_after=1):
                yield notification.payload
        finally:
            self._connection.limit = limit


class AsyncioLink(Link):
    """One for the tasks of an event loop."""

    def __init__(self, connection: _AsyncioConnection, settings: Settings) -> None:
        super().__init__(connection, settings)
        self._cursor = connection.cursor()
        self.settled = connection.settled

    @classmethod
    async def open(cls, settings: Settings) -> AsyncioLink:
        """Connect. Raises psycopg's errors."""
        connection = await _AsyncioConnection.connect(
            **settings.libpq,
            autocommit=True,
            prepare_threshold=None,
            cursor_factory=psycopg.AsyncRawCursor,
        )
        link = cls(connection, settings)
        try:
            link._introduced(await link.ask(INTRODUCE, *link._introduction))
        except BaseException:
            link.close()
            raise
        return link

    async def ask(self, statement: bytes, *parameters: Parameter) -> list[Row]:
        """See ``BlockingLink.ask``."""
        cursor = self._cursor
        await cursor.execute(statement, parameters or None, prepare=None if parameters else False)
        return [] if cursor.rownumber is None else await cursor.fetchall()
