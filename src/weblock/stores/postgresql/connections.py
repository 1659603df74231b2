"""How statements reach a connection: those of threads and of the keeper, and those of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import psycopg

from ..cells import PATIENCE, TOO_MANY
from ..transport.loops import ByLoop
from ..transport.turns import Empty, turns
from ..transport.unfit import Unfit
from .links import Parameter
from .rows import Row

if TYPE_CHECKING:
    from .engine import PostgreSQLEngine

T = TypeVar("T")

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

    def close(self) -> None:
        pass
