"""Connections for threads: a thread has one for the length of a statement."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeVar

import psycopg

from ..._platform.forks import close_in_children
from ..._platform.polling import READABLE, new_poll
from ..._platform.turns import Empty, taken_out, turns
from .dialogue import Dialogue, Outcome, Parameter
from .failures import HARMLESS, TOO_MANY, Unfit
from .rows import Row
from .silence import Silence
from .statements import Statement

T = TypeVar("T")

STRIPES: Final = 64
"""Keys that can be changed at the same time by one world of a process."""

LOAN: Final = 0.2
"""Seconds for which a keeper that can open no connection waits for one of the callers."""


class BlockingLink:
    """One connection, which one thread uses at a time."""

    def __init__(self, connection: psycopg.Connection, *, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self.dialogue = Dialogue(connection.pgconn)
        self.alive = True
        """Whether nothing has gone wrong on it, and no result is on its way."""
        self._poll = new_poll()
        self._poll.register(connection.pgconn.socket, READABLE)
        close_in_children(self)

    def ask(self, statement: Statement, *parameters: Parameter) -> list[Row]:
        """Return the rows that a statement results in. Raises psycopg's errors."""
        self.alive = False  # A result that is left here would be taken for another's.
        try:
            outcome = self._exchange(statement, parameters)
        except BaseException:
            self.close()
            raise
        self.alive = not isinstance(outcome, psycopg.Error) or isinstance(outcome, HARMLESS)
        if isinstance(outcome, psycopg.Error):
            if not self.alive:
                self.close()
            raise outcome
        return outcome

    def heard(self, timeout: float) -> list[tuple[str, str]]:
        """Return the notifications that have come, after waiting so many seconds for the first."""
        heard = list(self.dialogue.notifications())
        if not heard and self._poll.poll(1000 * timeout):
            for _ in self.dialogue.arrived():
                pass
            heard = list(self.dialogue.notifications())
        return heard

    def usable(self) -> bool:
        """Return whether the server has left it open since it was last used."""
        if self.alive and self._poll.poll(0):  # The end: nothing was asked.
            self.close()
        return self.alive

    def wake(self) -> None:
        """Make the thread that waits for notifications here find that the connection has ended."""
        with (
            suppress(OSError, psycopg.Error),  # It may have ended just now.
            socket.socket(fileno=os.dup(self.dialogue.pgconn.socket)) as copy,
        ):
            copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.alive = False
        self._connection.close()

    def fileno(self) -> int:
        """Return the number of its socket, which is negative if that is closed."""
        try:
            return self._connection.pgconn.socket
        except psycopg.Error:
            return -1

    def _exchange(self, statement: Statement, parameters: tuple[Parameter, ...]) -> Outcome:
        give_up_at = time.monotonic() + self._timeout
        self.dialogue.send(statement, parameters)
        unsent = self.dialogue.pgconn.flush()
        while True:
            left = give_up_at - time.monotonic()
            if left <= 0:
                raise TimeoutError
            # What is too long for the socket's buffer is sent piece by piece.
            if not self._poll.poll(1000 * (min(left, 0.002) if unsent else left)) and not unsent:
                continue
            for outcome in self.dialogue.arrived():
                return outcome
            unsent = self.dialogue.pgconn.flush()


class Lent(NamedTuple):
    """A connection of the callers that the keeper uses once."""

    ask: Callable[..., list[Row]]
    end: Callable[[], object]


class BlockingLinks:
    """A pool: one connection for each thread that asks at the same time, at most ``room``."""

    def __init__(
        self,
        connect: Callable[[], BlockingLink],
        silence: Silence,
        *,
        room: int,
        patience: float,
        borrow: Callable[[], Lent | None] | None = None,
    ) -> None:
        self._connect = connect
        self._borrow = borrow
        """Returns a connection of another pool, where this one can open none."""
        self._silence = silence
        self._room = room
        self._patience = patience
        self._closed = False
        self._idle: list[BlockingLink] = []
        self._wanted: list[SimpleQueue[BlockingLink]] = []
        """Where the next connection goes that comes back, ahead of all callers that wait for one."""
        self._free = turns(room)
        """The permits to use a connection."""
        self._free_of_keys = [turns(1) for _ in range(STRIPES)]

    async def ask(self, statement: Statement, *parameters: Parameter) -> list[Row]:
        """Return the rows that a statement results in. Raises psycopg's errors."""
        permits: list[None] = []
        try:
            reason = f"all {self._room} connections are in use: raise max_connections"
            self._take(self._free, permits, reason)
            return self._ask(statement, parameters)
        finally:
            if permits:
                self._free.put(None)

    async def in_turn(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        free = self._free_of_keys[hash(key) % STRIPES]
        permits: list[None] = []
        try:
            self._take(free, permits, TOO_MANY)
            return await work()
        finally:
            if permits:
                free.put(None)

    def _take(self, free: SimpleQueue[None], permits: list[None], reason: str) -> None:
        """Take one of the ``free`` permits. Raises ``Unfit`` for this ``reason``, or a silent server."""
        try:
            permits += map(free.get, (True,), (self._patience,))
        except Empty:
            raise self._silence.turn_in_vain(reason) from None

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _ask(self, statement: Statement, parameters: tuple[Parameter, ...]) -> list[Row]:
        """Ask on one of the connections, for a caller that has a permit."""
        try:
            link = self._idle_link() or self._new_link()
        except (psycopg.Error, OSError):
            lent = self._borrow() if self._borrow else None
            if lent is None:
                raise
            try:
                return lent.ask(statement, *parameters)
            finally:
                lent.end()
        try:
            with self._silence:
                return link.ask(statement, *parameters)
        finally:
            self.take_back(link)

    def take_back(self, link: BlockingLink) -> None:
        if link.alive:
            wanted = next(taken_out(self._wanted), None) if self._wanted else None
            wanted.put(link) if wanted else self._idle.append(link)
        # The others have probably lost the same server.
        if self._closed or not link.alive:
            self._close_idle()

    def lend(self) -> Lent | None:
        if self._borrow:  # This is the pool of the keeper itself.
            return None
        link = self._idle_link()
        if link is None:
            wanted: SimpleQueue[BlockingLink] = SimpleQueue()
            self._wanted.append(wanted)
            with suppress(Empty):
                link = wanted.get(timeout=LOAN)
            # If a caller has taken the queue, it is about to put its connection there.
            if link is None and next(taken_out(self._wanted), None) is None:
                with suppress(Empty):
                    link = wanted.get(timeout=LOAN)
        return Lent(link.ask, partial(self.take_back, link)) if link else None

    def _idle_link(self) -> BlockingLink | None:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return None
            if link.usable():
                return link

    def _new_link(self) -> BlockingLink:
        if self._closed:
            raise Unfit("it was closed")
        with self._silence.connecting():
            return self._connect()

    def _close_idle(self) -> None:
        for link in taken_out(self._idle):
            link.close()
