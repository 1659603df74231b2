"""How statements reach a connection of psycopg: those of threads, of the keeper, and of event loops.

A statement has a time limit. It is a transaction of its own, and is prepared where it is first used.
Behind a pooler none is prepared, because each transaction gets another session there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import waiting

from ..cells import PATIENCE, TOO_MANY
from ..transport.failures import Unfit
from ..transport.loops import ByLoop
from ..transport.pool import turns
from .settings import Settings
from .statements import INTRODUCE

if TYPE_CHECKING:
    from psycopg.abc import PQGen

    from .cells import Caller
    from .engine import PostgreSQLEngine

T = TypeVar("T")

Row = tuple[Any, ...]
"""A row of a result."""

STRIPES: Final = 64
"""Keys that can be changed at the same time by the threads, or by the tasks of a loop."""


class OfThreads:
    """The connections of the threads, and the keeper's."""

    def __init__(self, engine: PostgreSQLEngine, *, renews: bool) -> None:
        self._pool = engine.pool
        self._loops = engine.loops
        self._silence = engine.silence
        self._answered: tuple[type[BaseException], ...] = (TimeoutError, *self._silence.answers)
        """Errors that another connection would not change."""
        self._renews = renews
        self._turns = [turns(1) for _ in range(STRIPES)]
        self.callers: list[Caller] = []
        """Those that acquire keys now, or wait for their turn: all threads, or the tasks of a loop."""

    async def ask(self, statement: bytes, *parameters: Parameter) -> list[Row]:
        """Return the rows that a statement results in. Raises psycopg's errors, or ``Unfit``."""
        if not self._renews:
            return self._pool.use(lambda link: link.ask(statement, *parameters))
        try:
            return self._pool.use_first(lambda link: link.ask(statement, *parameters))
        except self._answered:
            raise
        except (psycopg.OperationalError, OSError, Unfit):
            try:
                return self._loops.use_first(lambda link: link.ask(statement, *parameters))
            except Unfit:
                pass  # There is no event loop.
            raise

    async def in_turn(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``, during which no other caller here changes the key.

        A few other keys share its turn. Raises ``Unfit`` if the turn does not come in time.
        """
        free = self._turns[hash(key) % STRIPES]
        permits: list[None] = []
        try:
            try:
                permits += map(free.get, (True,), (PATIENCE,))
            except Empty:
                raise self._silence.turn_in_vain(TOO_MANY) from None
            return await work()
        finally:
            if permits:
                free.put(None)


class OfLoops:
    """The connections of whichever event loop runs."""

    def __init__(self, engine: PostgreSQLEngine) -> None:
        self._loops = engine.loops
        self._silence = engine.silence
        self._turns = ByLoop(_Turns)

    @property
    def callers(self) -> list[Caller]:
        return self._turns.here().callers

    def ask(self, statement: bytes, *parameters: Parameter) -> Awaitable[list[Row]]:
        return self._loops.use(lambda link: link.ask(statement, *parameters))

    async def in_turn(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        turn = self._turns.here().locks[hash(key) % STRIPES]
        if not turn.locked():
            await turn.acquire()
        else:
            try:
                async with asyncio.timeout(PATIENCE):
                    await turn.acquire()
            except TimeoutError:
                raise self._silence.turn_in_vain(TOO_MANY) from None
        try:
            return await work()
        finally:
            turn.release()


class _Turns:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.locks = [asyncio.Lock() for _ in range(STRIPES)]
        self.callers: list[Caller] = []

    def close(self) -> None:
        pass


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
