"""What one process has of a server: connections of threads and event loops, and the receiver's."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import psycopg
from psycopg import errors

from ..._core.ports import CheckAgain, Runtime, Store, Switchboard
from ..._platform.logs import logger
from ..._platform.threads import in_thread
from ..cells import LocalNotifier
from ..findings import Finding
from ..transport.failures import Silence, Unfit
from ..transport.listener import Listener, from_notification
from ..transport.pool import LoopPools, Pool
from ..transport.settings import ServerEngine
from .cells import RowStore
from .diagnosis import diagnose
from .failures import ABOUT_THE_TABLE, HARMLESS, NotCreated, OtherFormat, explained
from .links import AsyncioLink, BlockingLink, Link, Row
from .settings import Settings
from .statements import FORMAT, PING, Statements

LEAST_SERVER: Final = 120000

LISTENED_IN: Final = 5.0
"""Seconds of silence after which a connection is asked whether it lives."""


class PostgreSQLEngine(ServerEngine):
    """The leases in one table, as this process sees them."""

    settings: Settings

    tidy_at = 0.0
    """When rows that nobody uses are removed next, by the clock of any runtime."""

    def after_fork(self) -> None:
        """Begin with nothing open."""
        super().after_fork()
        settings, recovery = self.settings, self.settings.recovery
        self.renewing = set[str]()
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
        self.receiver = Receiver(settings, self.switchboard, self.open)
        self._created = not settings.create

    def connect(self, runtime: Runtime) -> Store:
        return RowStore(self, runtime)

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
                    f"the table {self.settings.table} has the format {found!r:.20}, and this"
                    f" version of weblock reads and writes the format {FORMAT!r}: stop all that"
                    " lock here for the longest ttl, drop it, and create it anew"
                )

    def _create_table(self) -> None:
        """Create the table if that was asked for, and it is missing."""
        if self._created:
            return
        link = BlockingLink(self.settings)
        try:
            if link.ask(self.statements.exists, self.settings.table) == [(False,)]:
                link.ask(self.statements.ddl.encode())
        except (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
            pass  # Another process is just creating it: IF NOT EXISTS looks before it creates.
        except errors.InsufficientPrivilege as error:
            raise NotCreated(
                f"its user has no right to create the table {self.settings.table}"
                f" ({error.diag.message_primary}): create it with what 'weblock ddl' prints, or"
                " GRANT CREATE ON its schema to the user"
            ) from error
        finally:
            link.close()
        self._created = True

    @property
    def table(self) -> str:
        return self.settings.table

    def ddl(self) -> str:
        """The statements that create its table."""
        return self.statements.ddl

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the server."""
        return diagnose(self)

    def close(self) -> None:
        self.receiver.close()
        self.pool.close()
        self.loops.close()
        super().close()


class Receiver(LocalNotifier):
    """The notifier of PostgreSQL. It listens on one channel, from when the first caller waits.

    Waiters of this process are notified directly; those of others with the row that they get. One
    connection, of a thread of its own, listens for all waiters of this process. A pooler that gives a
    connection away after each transaction makes LISTEN useless. Behind one, waiters learn with their next
    heartbeat that they have been granted their key.
    """

    def __init__(
        self, settings: Settings, switchboard: Switchboard, connect: Callable[[], BlockingLink]
    ) -> None:
        self._settings = settings
        super().__init__(switchboard)
        self._listener = Listener(connect, self._hear, lost=(psycopg.Error,))
        self.process = f"weblock_{secrets.token_hex(8)}"
        self.close = self._listener.close

    def watch(self, key: str, owner: str, ahead: Iterable[str], *, first: bool) -> None:
        self._listener.start()

    def _hear(self, link: BlockingLink) -> None:
        ended = self._listener.ended
        if link.pooled:
            ended.set()
            logger.warning(
                "%s is reached through a pooler, where LISTEN does not work: a waiter gets a key"
                " up to a second after its release. For faster hand-overs, use the address of the"
                " server itself [weblock.no_notifications]",
                self._settings.name,
            )
            return
        link.ask(f'LISTEN "{self.process}"'.encode())
        self._switchboard.notify_all(CheckAgain())  # A notification may have been lost before.
        while not ended.is_set():
            heard = False
            for payload in link.heard(LISTENED_IN):
                heard = True
                if found := from_notification(payload):
                    self._switchboard.notify(*found)
            if not heard:
                link.ask(PING)
