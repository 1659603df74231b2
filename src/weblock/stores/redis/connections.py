"""The connections of one process: links of both APIs, and the receiver."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

import redis
import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncioRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..._core.ports import Switchboard
from ...errors import ConfigurationError
from ...keys import signature_of
from .aio import AsyncioLinks, LoopLinks
from .asking import Connect
from .blocking import LISTENED_IN, BlockingLink, BlockingLinks, Lent, Receiver, connected
from .calls import Layout
from .link import Links, Subscription
from .settings import Address, Deployment, Settings
from .store import RedisStore
from .topology import ClusterNodes, Nodes, SentinelNodes
from .wire import Admit, Wire

_CLASSES: Final[Mapping[tuple[bool, bool], tuple[Any, Any]]] = {
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
        self.sentinel: Connect = partial(self.connection, of_sentinel=True)
        self._try_out(self.connection)
        self._try_out(self.sentinel)
        self._nodes: Nodes
        match settings.deployment:
            case Deployment.SINGLE:
                self._nodes = Nodes(settings.addresses[0])
            case Deployment.SENTINEL:
                self._nodes = SentinelNodes(settings, self.sentinel, self._move)
            case Deployment.CLUSTER:
                self._nodes = ClusterNodes(settings, self._layout, self.connection, self._move)
        self._receiver = Receiver(self._new_subscription(), self._subscriber)
        self._links: list[Links] = []

    def store(self, *, suspends: bool, two_phase: bool = False, renews: bool = False) -> RedisStore:
        """Return the engine for one API. Each has connections of its own.

        With ``two_phase``, requests of the blocking API suspend: see ``ports.sent``. One that
        ``renews`` borrows a connection of the others where it can open none.
        """
        settings = self._settings
        links: Links
        if suspends:
            connect = partial(self.connection, suspends=True, listens=True)
            self._try_out(connect)
            links = AsyncioLinks(
                lambda: LoopLinks(self._new_subscription(), connect, timeout=settings.timeout)
            )
        else:
            links = BlockingLinks(
                self.connection,
                self._receiver,
                room=settings.max_connections,
                patience=settings.timeout,
                connects_within=settings.connect_timeout + settings.timeout,
                two_phase=two_phase,
                borrow=self._lent if renews else None,
            )
        self._links.append(links)
        wire = Wire(settings, self._layout, self._nodes, links, admit=self._admit)
        return RedisStore(settings.name, self._layout, wire)

    def servers(self) -> list[Address]:
        """Return where the primaries are. Raises redis-py's errors, or ``Unfit``."""
        return self._known_nodes().masters()

    def connection(
        self,
        address: Address,
        *,
        suspends: bool = False,
        listens: bool = False,
        of_sentinel: bool = False,
    ) -> Any:
        """Return a connection of redis-py that is not open yet, for a caller that closes it."""
        settings, (host, port) = self._settings, address
        kind = _CLASSES[not port, settings.sentinel_tls if of_sentinel else settings.tls][suspends]
        return kind(
            **({"host": host, "port": port} if port else {"path": host}),
            **(settings.sentinel if of_sentinel else settings.connection),
            **quiet(kind),
            db=0 if of_sentinel else settings.db,
            socket_timeout=settings.timeout,
            socket_connect_timeout=settings.connect_timeout,
            protocol=3 if listens else 2,  # RESP3 marks notifications as such.
            retry=AsyncioRetry(NoBackoff(), 0) if suspends else Retry(NoBackoff(), 0),
        )

    def close(self) -> None:
        self._receiver.close()
        for links in self._links:
            links.close()
        self._nodes.close()

    def _known_nodes(self) -> Nodes:
        if not self._nodes.ready():
            self._nodes.refresh()
        return self._nodes

    def _lent(self, address: Address) -> Lent | None:
        """Return a connection of the callers for the keeper, ahead of all of them, if they have one."""
        for links in self._links:
            if lent := links.lend(address):
                return lent
        return None

    def _move(self) -> None:
        """Handle a change of servers: notifications may come from elsewhere."""
        self._receiver.move()
        for links in self._links:
            links.move()

    def _new_subscription(self) -> Subscription:
        return Subscription(
            self._layout.channel(uuid.uuid4().hex),
            self._switchboard,
            self._nodes.serves,
            trusted=not self._settings.min_replicas,
        )

    def _subscriber(self, subscription: Subscription) -> BlockingLink:
        address = self._known_nodes().listen_at()
        connection = self.connection(address, listens=True)
        return connected(address, connection, timeout=LISTENED_IN, subscription=subscription)

    def _try_out(self, connect: Callable[[Address], object]) -> None:
        """Raise ``ConfigurationError`` for settings of which redis-py makes no connection.

        Its releases differ in what they take, and so do its blocking and asyncio connections.
        """
        try:
            connect(self._settings.addresses[0])  # Which opens nothing yet.
        except (TypeError, ValueError, exceptions.RedisError) as error:
            raise ConfigurationError(
                f"redis-py {redis.__version__} cannot connect to {self._settings.name} with these"
                f" settings: {error}"
            ) from error


@cache
def quiet(connection: type) -> Mapping[str, Any]:
    """Return the arguments with which a class of connections sends no more than it must.

    The server does not need the library's name. Some releases of redis-py subscribe to notices of maintenance
    under RESP3, which nothing here expects. Each release has its own arguments.
    """
    offered = {name for base in connection.__mro__ for name in signature_of(base).parameters}
    arguments: dict[str, Any] = {}
    if "driver_info" in offered:  # 7.2 and later.
        arguments["driver_info"] = None
    else:
        arguments |= {"lib_name": None, "lib_version": None}
    if "maint_notifications_config" in offered:  # 7.0 and later, in asyncio 8.0 and later.
        from redis.maint_notifications import MaintNotificationsConfig

        arguments["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    return arguments
