"""What one process has open of a deployment: links of both worlds, and the receiver."""

from __future__ import annotations

import uuid
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncioRetry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from ..._core.ports import Switchboard
from .aio import AsyncioLinks, LoopLinks
from .blocking import BlockingLink, BlockingLinks, connected
from .calls import Layout
from .nodes import nodes_of
from .receiver import Receiver
from .settings import Address, Settings
from .store import RedisStore
from .wire import Admit, Links, Wire

_CLASSES: Final = {
    # By whether it is a socket's path, and TLS.
    (False, False): (redis.Connection, redis.asyncio.Connection),
    (False, True): (redis.SSLConnection, redis.asyncio.SSLConnection),
    (True, False): (redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection),
}


class Connections:
    """Makes connections, and ends them all."""

    def __init__(
        self, settings: Settings, switchboard: Switchboard, *, admit: Admit = lambda _server: None
    ) -> None:
        self._settings = settings
        self._admit = admit
        self._switchboard = switchboard
        self._layout = Layout(settings.prefix, settings.buckets)
        self._nodes = nodes_of(settings, self._layout, self._blocking, self._sentinel)
        # Where replicas must have a lease, who is rung asks for it and waits for them.
        self._trusted = not settings.min_replicas
        self._receiver = Receiver(
            self._new_channel(),
            switchboard,
            self._subscriber,
            trusted=self._trusted,
            on_quiet=self._tidy,
        )
        self._links: list[Links] = []

    def store(self, *, suspends: bool, takes_turns: bool = False) -> RedisStore:
        """The engine for one world. Each has connections of its own.

        One of several that a thread asks side by side takes turns.
        """
        links: Links
        if suspends:
            links = AsyncioLinks(self._loop_links)
        else:
            settings = self._settings
            links = BlockingLinks(
                self._blocking,
                self._receiver,
                room=settings.max_connections,
                patience=settings.timeout,
                takes_turns=takes_turns,
            )
        self._links.append(links)
        wire = Wire(self._settings, self._layout, self._nodes, links, admit=self._admit)
        return RedisStore(self._settings.name, self._layout, wire)

    def close(self) -> None:
        self._receiver.close()
        for links in self._links:
            links.close()

    def abandon(self) -> None:
        """Leaves to the parent what a forked child has inherited."""
        self._nodes.abandon()
        self._receiver.abandon(self._new_channel())
        for links in self._links:
            links.abandon()

    def _tidy(self) -> None:
        for links in self._links:
            links.tidy()

    def _new_channel(self) -> str:
        return self._layout.channel(uuid.uuid4().hex)

    def _loop_links(self) -> LoopLinks:
        return LoopLinks(
            self._new_channel(),
            self._switchboard,
            self._asyncio,
            timeout=self._settings.timeout,
            trusted=self._trusted,
        )

    def _blocking(self, address: Address) -> redis.Connection:
        connection, _ = _CLASSES[not address.port, self._settings.tls]
        made: redis.Connection = connection(
            **self._arguments(address),
            **self._settings.connection,
            db=self._settings.db,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )
        return made

    def _asyncio(self, address: Address) -> redis.asyncio.Connection:
        _, connection = _CLASSES[not address.port, self._settings.tls]
        made: redis.asyncio.Connection = connection(
            **self._arguments(address),
            **self._settings.connection,
            db=self._settings.db,
            protocol=3,
            retry=AsyncioRetry(NoBackoff(), 0),
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        return made

    def _sentinel(self, address: Address) -> redis.Connection:
        connection, _ = _CLASSES[False, self._settings.tls]
        made: redis.Connection = connection(
            **self._arguments(address),
            **self._settings.sentinel,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )
        return made

    def _subscriber(self) -> BlockingLink:
        if self._nodes.stale:
            self._nodes.refresh()
        address = self._nodes.address_of(0)
        return connected(address, self._blocking(address))

    def _arguments(self, address: Address) -> dict[str, Any]:
        where: dict[str, Any] = (
            {"host": address.host, "port": address.port} if address.port else {"path": address.host}
        )
        return {
            **where,
            "socket_timeout": self._settings.timeout,
            "socket_connect_timeout": self._settings.connect_timeout,
            "driver_info": None,
        }
