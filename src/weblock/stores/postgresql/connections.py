"""What one process has open of a server: connections of both worlds, and the receiver's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import psycopg
from psycopg import errors

from ..._core.ports import Switchboard
from ..._platform.loops import in_thread
from .aio import AsyncioLink, AsyncioLinks
from .blocking import BlockingLink, BlockingLinks, Lent
from .dialogue import LEAST_LIBPQ, Parameter
from .failures import OtherFormat, Unfit
from .receiver import Receiver
from .rows import Row, text_of
from .settings import Settings
from .silence import Silence
from .statements import FORMAT, INTRODUCE, Statement, Statements

T = TypeVar("T")

LEAST_SERVER: Final = 120000


class Links(Protocol):
    """The connections of one world."""

    async def ask(self, statement: Statement, *parameters: Parameter) -> list[Row]:
        """Return the rows that a statement results in. Raises psycopg's errors."""

    async def in_turn(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``, during which no other caller here changes the key.

        A few other keys share its turn. Raises psycopg's errors if the turn does not come in time.
        """

    def lend(self) -> Lent | None:
        """Return the next connection that is free, for the keeper, which gives it back soon."""

    def close(self) -> None: ...


class Connections:
    """Makes connections, and ends them all."""

    def __init__(self, settings: Settings, switchboard: Switchboard) -> None:
        self.settings = settings
        self.statements = Statements(settings.table, settings.recovery)
        self.receiver = Receiver(settings, switchboard, self.blocking)
        self._created = not settings.create
        self._links: list[Links] = []

    def links(self, *, suspends: bool, renews: bool = False) -> Links:
        """Return the connections for one world.

        One that ``renews`` borrows a connection of the others where it can open none.
        """
        settings, silence = self.settings, Silence(self.settings)
        links: Links
        if suspends:
            links = AsyncioLinks(self._asyncio, silence)
        else:
            links = BlockingLinks(
                self.blocking,
                silence,
                room=settings.max_connections,
                patience=settings.timeout,
                borrow=self._lent if renews else None,
            )
        self._links.append(links)
        return links

    def blocking(self) -> BlockingLink:
        """Return a new connection for a thread. Raises psycopg's errors."""
        self._create_table()
        link = self._blocking()
        try:
            check_format(self.settings.table, link.ask(self.statements.format))
        except BaseException:
            link.close()
            raise
        return link

    def _lent(self) -> Lent | None:
        """Return a connection of the callers for the keeper, ahead of all of them, if they have one."""
        for links in self._links:
            if lent := links.lend():
                return lent
        return None

    def _blocking(self) -> BlockingLink:
        connection = psycopg.Connection[tuple[object, ...]].connect(
            **self.settings.libpq, autocommit=True
        )
        try:
            check(connection)
            link = BlockingLink(connection, timeout=self.settings.timeout)
            backend = connection.pgconn.backend_pid
            link.dialogue.pooled = not link.ask(INTRODUCE, backend, self._limit)
        except BaseException:
            connection.close()
            raise
        return link

    def close(self) -> None:
        self.receiver.close()
        for links in self._links:
            links.close()

    async def _asyncio(self) -> AsyncioLink:
        try:
            if not self._created:
                await in_thread(None, self._create_table)
            connection = await psycopg.AsyncConnection[tuple[object, ...]].connect(
                **self.settings.libpq, autocommit=True
            )
        except RuntimeError as error:  # No thread could be started: names of hosts need one, too.
            raise Unfit(f"it could not be connected: {error}") from error
        try:
            check(connection)
        except Unfit:
            connection.pgconn.finish()
            raise
        link = AsyncioLink(connection, timeout=self.settings.timeout)
        try:
            backend = connection.pgconn.backend_pid
            link.dialogue.pooled = not await link.ask(INTRODUCE, backend, self._limit)
            check_format(self.settings.table, await link.ask(self.statements.format))
        except BaseException:
            link.close()  # Its loop must not look at a socket that is closed.
            raise
        return link

    def _create_table(self) -> None:
        """Create the table if that was asked for, and it is missing."""
        if self._created:
            return
        link = self._blocking()
        try:
            if link.ask(self.statements.exists, self.settings.table) == [[b"f"]]:
                for statement in self.statements.creation:
                    link.ask(statement)
        except (errors.DuplicateTable, errors.UniqueViolation):
            pass  # Another process has just created it.
        finally:
            link.close()
        self._created = True

    @property
    def _limit(self) -> str:
        """The time after which the server gives up, so that its answer still arrives in time."""
        return f"{750 * self.settings.timeout:.0f}ms"


def check(connection: psycopg.Connection | psycopg.AsyncConnection) -> None:
    """Raise ``Unfit`` if the server or libpq lacks what the engine needs."""
    if psycopg.pq.version() < LEAST_LIBPQ:
        raise Unfit("libpq is older than 14: pip install 'psycopg[binary]'")
    if connection.info.server_version < LEAST_SERVER:
        raise Unfit("PostgreSQL is older than 12: upgrade it")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in {"UTF8", "SQL_ASCII"}:
        raise Unfit(f"its database is encoded in {encoding}, which not every key fits: use UTF8")


def check_format(table: str, rows: list[Row]) -> None:
    """Raise ``OtherFormat`` if another version of weblock has made the table."""
    for (found,) in rows:
        if text_of(found) != FORMAT:
            raise OtherFormat(
                f"the table {table} has the format {text_of(found)!r:.20}, and this version of weblock"
                f" reads and writes the format {FORMAT!r}"
            )
