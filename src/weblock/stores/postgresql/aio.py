"""The connection of an event loop: all its tasks share it, and their statements follow each other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import psycopg

from ..._platform.forks import close_in_children
from ..._platform.loops import BeforeLoopEnds, ByLoop, made_for_all
from .blocking import STRIPES, Lent
from .dialogue import Dialogue, Outcome, Parameter
from .failures import HARMLESS, TOO_MANY, Unfit
from .rows import Row
from .silence import Silence
from .statements import Statement

T = TypeVar("T")

PATIENCE: Final = 5.0
"""Seconds that a task waits for its turn at a key: many may join its queue, and each waits for a disk."""


class AsyncioLink:
    """One connection. A caller that is cancelled leaves its statement to run to its end."""

    def __init__(self, connection: psycopg.AsyncConnection, *, timeout: float) -> None:
        self.dialogue = Dialogue(connection.pgconn)
        self.alive = True
        self._connection = connection
        self._socket = connection.pgconn.socket
        self.timeout = timeout
        self._pending: deque[asyncio.Future[Outcome]] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)
        close_in_children(self)

    async def ask(self, statement: Statement, *parameters: Parameter) -> list[Row]:
        """Return the rows that a statement results in. Raises psycopg's errors."""
        if not self.alive:
            raise psycopg.OperationalError("the connection was lost")
        waiter: asyncio.Future[Outcome] = self._loop.create_future()
        try:
            self.dialogue.send(statement, parameters)
            self._pending.append(waiter)
            self._flush()
            async with asyncio.timeout(self.timeout):
                outcome = await waiter
        except (psycopg.Error, TimeoutError) as error:
            self._end(error)
            raise
        if isinstance(outcome, psycopg.Error):
            raise outcome
        return outcome

    def close(self) -> None:
        """End the connection. It must run in the loop."""
        self._end(psycopg.OperationalError("the connection was closed"))

    def fileno(self) -> int:
        """Return the number of its socket, which is negative if that is closed."""
        try:
            return self._connection.pgconn.socket
        except psycopg.Error:
            return -1

    def _read(self) -> None:
        try:
            for outcome in self.dialogue.arrived():
                self._take(outcome)
            self._flush()
        except psycopg.Error as error:
            self._end(error)

    def _take(self, outcome: Outcome) -> None:
        waiter = self._pending.popleft()
        if not waiter.done():
            waiter.set_result(outcome)
        if isinstance(outcome, psycopg.Error) and not isinstance(outcome, HARMLESS):
            raise outcome

    def _flush(self) -> None:
        """Send what has not been sent; the rest goes when the socket can take it."""
        if self.alive and self.dialogue.pgconn.flush():
            self._loop.add_writer(self._socket, self._flush_on)

    def _flush_on(self) -> None:
        self._loop.remove_writer(self._socket)
        try:
            self._flush()
        except psycopg.Error as error:
            self._end(error)

    def _end(self, failure: Exception) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._connection.pgconn.finish()
        for waiter in self._pending:
            if not waiter.done():
                waiter.set_exception(failure)
                waiter.exception()  # Its caller may have been cancelled.


def _ask_from_thread(
    link: AsyncioLink, loop: asyncio.AbstractEventLoop, statement: Statement, *parameters: Parameter
) -> list[Row]:
    asking = link.ask(statement, *parameters)
    try:
        rows = asyncio.run_coroutine_threadsafe(asking, loop)
    except RuntimeError as error:
        asking.close()
        raise psycopg.OperationalError("the event loop has been closed") from error
    try:
        return rows.result(link.timeout)
    except TimeoutError:
        rows.cancel()
        raise


class LoopLink:
    """The link of one event loop, made when it is first needed, and again when it was lost."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncioLink]]) -> None:
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._link: asyncio.Task[AsyncioLink] | None = None
        self._end = BeforeLoopEnds(self._discard)
        self.turns = [asyncio.Lock() for _ in range(STRIPES)]

    async def take(self) -> AsyncioLink:
        """Return the link; the first caller makes it, and the others wait for that."""
        link = self._link
        if link is None or (link.done() and not _alive(link)):
            link = self._link = self.loop.create_task(self._new())
            link.add_done_callback(
                _alive
            )  # Its failure is looked at, also where nobody waits any more.
        return link.result() if link.done() else await made_for_all(link, _closed)

    def open_link(self) -> AsyncioLink | None:
        return self._link.result() if self._link and _alive(self._link) else None

    def close(self) -> None:
        """End the connection. It must run in the loop."""
        self._end.now()
        self._discard()  # One that was made after the loop had closed its generators.

    async def _new(self) -> AsyncioLink:
        return await self._connect()

    def _discard(self) -> None:
        link, self._link = self._link, None
        if link and _alive(link):
            link.result().close()
        elif link:
            link.cancel()


class AsyncioLinks:
    """The links of whichever event loop runs."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncioLink]], silence: Silence) -> None:
        self._connect = connect
        self._silence = silence
        self._closed = False
        self._loops = ByLoop(lambda: LoopLink(self._new_link))

    async def ask(self, statement: Statement, *parameters: Parameter) -> list[Row]:
        """Return the rows that a statement results in. Raises psycopg's errors."""
        if self._closed:
            raise _closed()
        link = await self._loops.here().take()
        with self._silence:
            return await link.ask(statement, *parameters)

    async def in_turn(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        turn = self._loops.here().turns[hash(key) % STRIPES]
        try:
            async with asyncio.timeout(PATIENCE):
                await turn.acquire()
        except TimeoutError:
            raise self._silence.turn_in_vain(TOO_MANY) from None
        try:
            return await work()
        finally:
            turn.release()

    def lend(self) -> Lent | None:
        for each in self._loops.all():
            if link := each.open_link():
                return Lent(partial(_ask_from_thread, link, each.loop), bool)
        return None

    def close(self) -> None:
        self._closed = True
        self._loops.close()

    async def _new_link(self) -> AsyncioLink:
        with self._silence.connecting():
            return await self._connect()


def _closed() -> Unfit:
    return Unfit("it was closed")


def _alive(made: asyncio.Task[AsyncioLink]) -> bool:
    return made.done() and not made.cancelled() and not made.exception() and made.result().alive
