"""Connections to a server, each of which serves one request at a time, and is kept for the next.

Drivers have pools, too. Ours keeps the driver's error as the cause of what a caller gets, says at once
that a server does not answer, loses no permit to an exception of a signal handler, closes its
connections before their event loop ends, and serves the keeper first.

A connection is used again only after a request that was answered. After any other error it is closed, and
if that was a ``TimeoutError``, so are those that are not in use: they would wait for the same server.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, as_completed
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from ..._platform.forks import close_in_children
from .failures import Silence, Unfit
from .loops import BeforeLoopEnds, ByLoop
from .sending import READABLE, new_poll, taken_out

T = TypeVar("T")


def turns(count: int) -> queue.SimpleQueue[None]:
    """Return a queue with ``count`` permits, of which none is ever lost.

    A caller takes a permit into a list of its own, inside the ``try`` whose ``finally`` gives it back:

        permits: list[None] = []
        try:
            permits += map(free.get, (True,), (seconds,))  # Raises Empty.
            ...
        finally:
            if permits:
                free.put(None)

    A signal handler can raise an exception after any call, and at the start of any function that is
    written in Python. Both steps are therefore single calls that run in C: the permit is in the list as
    soon as it has left the queue, and nothing runs between the end of the ``try`` block and ``put``.
    The semaphores of ``threading`` are written in Python, and such an exception can take one of their
    permits for good. No permit depends on the garbage collector, because an exception that is kept also
    keeps all variables of the functions that it left.
    """
    free: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(count):
        free.put(None)
    return free


LOAN: Final = 0.2
"""Seconds for which a keeper that can open no connection waits for one of the callers."""

IN_USE: Final = "all {} connections are in use: raise max_connections"


class Connection(Protocol):
    """A driver's connection, as far as a pool knows it."""

    def fileno(self) -> int:
        """Return the number of its socket, which is negative if that is closed."""

    def close(self) -> object: ...


class LoopConnection(Connection, Protocol):
    """One that an event loop uses."""

    async def settled(self) -> None:
        """Wait for the answer to what a caller that was cancelled has asked."""


C = TypeVar("C", bound=Connection)
L = TypeVar("L", bound=LoopConnection)
R = TypeVar("R")


class Pool(Generic[C]):
    """The connections of the threads of this process: at most ``room``, and one for the keeper.

    Those that were used last are used first. A caller waits ``patience`` seconds for one.
    """

    def __init__(
        self, connect: Callable[[], C], silence: Silence, *, room: int, patience: float
    ) -> None:
        self._connect = connect
        self._silence = silence
        self._room = room
        self._patience = patience
        self._free = turns(room)
        """The permits to use a connection."""
        self._idle: list[C] = []
        self._keepers: list[C] = []
        """The keeper's connection while it is idle."""
        self._wanted: list[SimpleQueue[C]] = []
        """Where the next connection goes that comes back: to the keeper, ahead of all callers."""
        self._closed = False

    def use(self, work: Callable[[C], R]) -> R:
        """Return what ``work`` does with a connection.

        Raises its errors, and those of connecting, or ``Unfit`` if no connection was free in time.
        """
        permits: list[None] = []
        try:
            try:
                permits += map(self._free.get, (True,), (self._patience,))
            except Empty:
                raise self._silence.turn_in_vain(IN_USE.format(self._room)) from None
            return self._use(_usable(self._idle) or self._new(), work, self._idle)
        finally:
            if permits:
                self._free.put(None)

    def use_first(self, work: Callable[[C], R]) -> R:
        """Do the same for the keeper, which waits for no caller, because it has one of its own.

        Where none can be opened, the keeper gets the next that a caller has used.
        """
        idle = self._keepers
        try:
            connection = _usable(idle) or self._new()
        except Exception:
            lent = _usable(self._idle) or next_that_comes_back(self._wanted)
            if lent is None:
                raise
            connection, idle = lent, self._idle
        return self._use(connection, work, idle)

    def close(self) -> None:
        """Close the connections, and those in use when they come back."""
        self._closed = True
        _close_all(self._idle)
        _close_all(self._keepers)

    def _use(self, connection: C, work: Callable[[C], R], idle: list[C]) -> R:
        answered = False
        try:
            result = work(connection)
        except self._silence.answers:
            answered = True
            raise
        except TimeoutError as error:
            self._silence.notice(error)
            _close_all(idle)
            raise
        else:
            answered = True
            return result
        finally:
            if answered:
                self._silence.answered_at = monotonic()
                wanted = next(taken_out(self._wanted), None) if self._wanted else None
                wanted.put(connection) if wanted else idle.append(connection)
            else:
                connection.close()
            if self._closed:
                _close_all(idle)

    def _new(self) -> C:
        if self._closed:
            raise Unfit("it was closed")
        with self._silence.connecting():
            connection = self._connect()
        close_in_children(connection)
        return connection


class LoopPool(Generic[L]):
    """The connections of the tasks of one event loop: at most ``room``."""

    def __init__(
        self, connect: Callable[[], Awaitable[L]], silence: Silence, *, room: int, patience: float
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._silence = silence
        self._room = self._free = room
        self._patience = patience
        self._idle: list[L] = []
        self._in_use: set[L] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._settling: set[asyncio.Task[None]] = set()
        self._closed = False
        self._end = BeforeLoopEnds(self._before_loop_ends)

    async def use(self, work: Callable[[L], Awaitable[R]], *, first: bool = False) -> R:
        """Return what ``work`` does with a connection.

        If a caller is cancelled, the connection is used again when it has ``settled``. ``first`` is for
        the keeper, which waits ahead of all callers. Raises what ``Pool.use`` does.
        """
        if self._free and not first:
            self._free -= 1
        else:
            await self._take_turn(first=first)
        connection, task = None, asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        try:
            connection = _usable(self._idle) or await self._new()
            self._in_use.add(connection)
            result = await work(connection)
            if task and task.cancelling() > cancelled:
                # ``asyncio.wait_for``, which drivers use, drops one that comes together with the result.
                raise asyncio.CancelledError
        except asyncio.CancelledError:
            if connection:
                settling = self.loop.create_task(self._settle(connection))
                self._settling.add(settling)  # Else the collector could end it.
                settling.add_done_callback(self._settling.discard)
            else:
                self._end_turn()
            raise
        except BaseException as error:
            self._put_back(connection, error)
            raise
        self._put_back(connection)
        return result

    def close(self) -> None:
        """Close the connections, and those in use when they come back. It must run in the loop."""
        self._closed = True
        self._end.now()
        _close_all(self._idle)  # Those that were made after the loop had closed its generators.
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Unfit("it was closed"))

    async def _settle(self, connection: L) -> None:
        try:
            await connection.settled()
        except BaseException as error:
            self._put_back(connection, error)
            if not isinstance(error, Exception):  # The loop ends.
                raise
        else:
            self._put_back(connection)

    def _put_back(self, connection: L | None, error: BaseException | None = None) -> None:
        if isinstance(error, TimeoutError):
            self._silence.notice(error)
            _close_all(self._idle)
        if connection:
            self._in_use.discard(connection)
        if connection and (error is None or isinstance(error, self._silence.answers)):
            self._silence.answered_at = monotonic()
            self._idle.append(connection)
        elif connection:
            connection.close()
        if self._closed:
            _close_all(self._idle)
        self._end_turn()

    async def _take_turn(self, *, first: bool) -> None:
        if self._free and (self._idle or not first):
            self._free -= 1
            return
        if first and self._free == self._room:
            raise Unfit("no event loop has a connection")
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.insert(0 if first else len(self._waiters), waiter)
        try:
            async with asyncio.timeout(self._patience):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and not waiter.exception():
                self._end_turn()  # It came just when the caller gave up.
            if isinstance(error, TimeoutError):
                raise self._silence.turn_in_vain(IN_USE.format(self._room)) from None
            raise

    def _end_turn(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1

    async def _new(self) -> L:
        """Return a new connection, or the next that comes back if the server takes no more."""
        if self._closed:
            raise Unfit("it was closed")
        try:
            with self._silence.connecting():
                connection = await self._connect()
        except Exception:
            if not self._in_use:
                raise
            await self._take_turn(first=True)
            try:
                return _usable(self._idle) or await self._new()
            finally:
                self._end_turn()  # The second one that we have.
        close_in_children(connection)
        return connection

    def _before_loop_ends(self) -> None:
        _close_all(self._idle)
        for task in list(self._settling):
            task.cancel()


class LoopPools(Generic[L]):
    """The connections of whichever event loop runs."""

    def __init__(
        self, connect: Callable[[], Awaitable[L]], silence: Silence, *, room: int, patience: float
    ) -> None:
        self._loops = ByLoop(lambda: LoopPool(connect, silence, room=room, patience=patience))
        self._patience = patience
        self._closed = False

    def use(self, work: Callable[[L], Awaitable[R]]) -> Awaitable[R]:
        """See ``LoopPool.use``."""
        if self._closed:
            raise Unfit("it was closed")
        return self._loops.here().use(work)

    def use_first(self, work: Callable[[L], Awaitable[R]]) -> R:
        """Do work on a connection of any loop, for the keeper, whose thread has none.

        The work may be done on several: one loop may be busy. Raises ``Unfit`` if no event loop is there.
        """
        answers: list[Future[R]] = []
        for pool in self._loops.all():
            using = pool.use(work, first=True)
            try:
                answers.append(asyncio.run_coroutine_threadsafe(using, pool.loop))
            except RuntimeError:  # The loop has been closed.
                using.close()
        try:
            for answer in as_completed(answers, self._patience):
                with suppress(Unfit):
                    return answer.result()
        finally:
            for answer in answers:
                answer.cancel()
        raise Unfit("no event loop has a connection")

    def close(self) -> None:
        self._closed = True
        self._loops.close()


def next_that_comes_back(wanted: list[SimpleQueue[C]]) -> C | None:
    """Return the next connection that a caller puts into a queue of ``wanted``; ``None`` if none comes."""
    queue: SimpleQueue[C] = SimpleQueue()
    wanted.append(queue)
    with suppress(Empty):
        return queue.get(timeout=LOAN)
    # If a caller has taken the queue, it is about to put its connection there.
    if next(taken_out(wanted), None) is None:
        with suppress(Empty):
            return queue.get(timeout=LOAN)
    return None


def _usable(idle: list[C]) -> C | None:
    """Return an idle connection that the server has not ended, or ``None``."""
    while True:
        try:
            connection = idle.pop()
        except IndexError:
            return None
        poll = new_poll()
        poll.register(connection.fileno(), READABLE)
        if not poll.poll(0):  # Else it is the end: nothing was asked.
            return connection
        connection.close()


def _close_all(idle: list[C]) -> None:
    for connection in taken_out(idle):
        connection.close()
