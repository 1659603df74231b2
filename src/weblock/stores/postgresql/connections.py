"""What one process has open of a server: connections of threads and event loops, and the receiver's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import psycopg
from psycopg import errors

from ..._core.ports import Switchboard
from ..._platform.loops import in_thread
from ..cells import PATIENCE, TOO_MANY
from ..transport.loops import ByLoop
from ..transport.pool import LoopPools, Pool
from ..transport.turns import Empty, turns
from ..transport.unfit import Silence, Unfit
from .failures import ABOUT_THE_TABLE, HARMLESS, OtherFormat, explained
from .links import AsyncioLink, BlockingLink, Link, Parameter
from .receiver import Receiver
from .rows import Row
from .settings import Settings
from .statements import FORMAT, Statements

T = TypeVar("T")

LEAST_SERVER: Final = 120000

STRIPES: Final = 64
"""Keys that can be changed at the same time by the threads, or by the tasks of a loop."""


class Connections:
    """Makes connections, and ends them all."""

    def __init__(self, settings: Settings, switchboard: Switchboard) -> None:
        self.settings = settings
        recovery = settings.recovery
        self.statements = Statements(settings.table, recovery.seconds)
        recovery.on_longer = lambda: self.statements.ask_for(recovery.seconds)
        self.silence = silence = Silence(
            partial(explained, settings),
            timeout=settings.timeout,
            answers=(*HARMLESS, *ABOUT_THE_TABLE),
        )
        room, patience = settings.max_connections, settings.timeout
        self.pool = Pool(self.open, silence, room=room, patience=patience)
        self.loops = LoopPools(self._open_in_loop, silence, room=room, patience=patience)
        self.receiver = Receiver(settings, switchboard, self.open)
        self._created = not settings.create

    def links(self, *, suspends: bool, renews: bool = False) -> OfThreads | OfLoops:
        """Return the connections for one runtime, of which that of the keeper ``renews``."""
        return OfLoops(self) if suspends else OfThreads(self, renews=renews)

    def open(self) -> BlockingLink:
        """Return a new connection for a thread. Raises psycopg's errors, or ``Unfit``."""
        self._create_table()
        link = BlockingLink(self.settings)
        try:
            self._check(link, link.ask(self.statements.format))
        except BaseException:
            link.close()
            raise
        return link

    async def _open_in_loop(self) -> AsyncioLink:
        try:
            if not self._created:
                await in_thread(None, self._create_table)
            link = await AsyncioLink.open(self.settings)
        except RuntimeError as error:  # No thread could be started: names of hosts need one, too.
            raise Unfit(f"it could not be connected: {error}") from error
        try:
            self._check(link, await link.ask(self.statements.format))
        except BaseException:
            link.close()
            raise
        return link

    def _check(self, link: Link, first_row: list[Row]) -> None:
        """Raise ``Unfit`` if the server or the table is not what the engine needs."""
        if link.info.server_version < LEAST_SERVER:
            raise Unfit("PostgreSQL is older than 12: upgrade it")
        encoding = link.info.parameter_status("server_encoding")
        if encoding not in {"UTF8", "SQL_ASCII"}:
            raise Unfit(
                f"its database is encoded in {encoding}, which not every key fits: use UTF8"
            )
        for (found,) in first_row:
            if found != FORMAT:
                raise OtherFormat(
                    f"the table {self.settings.table} has the format {found!r:.20}, and this version of"
                    f" weblock reads and writes the format {FORMAT!r}: stop all that lock here for the"
                    " longest ttl, drop it, and create it anew"
                )

    def _create_table(self) -> None:
        """Create the table if that was asked for, and it is missing."""
        if self._created:
            return
        link = BlockingLink(self.settings)
        try:
            if link.ask(self.statements.exists, self.settings.table) == [(False,)]:
                link.ask(self.statements.ddl.encode())
        except (errors.DuplicateTable, errors.UniqueViolation):
            pass  # Another process has just created it.
        finally:
            link.close()
        self._created = True

    def close(self) -> None:
        self.receiver.close()
        self.pool.close()
        self.loops.close()


class OfThreads:
    """The connections of the threads, and the keeper's."""

    def __init__(self, connections: Connections, *, renews: bool) -> None:
        self._pool = connections.pool
        self._loops = connections.loops
        self._silence = connections.silence
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

    def __init__(self, connections: Connections) -> None:
        self._loops = connections.loops
        self._silence = connections.silence
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
