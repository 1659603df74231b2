"""The links of a simulated process: what the store that is shipped has for connections.

Like a thread's, they are one for each caller at a time; or, like a loop's, one for all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis import exceptions

from weblock._core.ports import CheckAgain, Pulse, Recovery, Reply, Switchboard
from weblock._core.table import Claim
from weblock.errors import EngineUnavailable
from weblock.stores.redis.calls import micros
from weblock.stores.redis.settings import Address, Deployment, Settings
from weblock.stores.redis.store import RedisStore
from weblock.stores.redis.topology import Nodes
from weblock.stores.redis.wire import Wire

from .engine import Acquire, Refresh, Release, Request
from .network import Connection, Exchange, Network
from .process import Process
from .redis_engine import LAYOUT
from .redis_server import RedisServer, Replies, parcel
from .swarm import Swarm

Sent = Callable[[Process, Request], None]

Introduce = Callable[[Any], Awaitable[None]]

ADDRESS = Address("simulated", 1)

NOTICED = 2.0
"""Seconds at most until a subscription that has ended is noticed, and there is another."""

SUBSCRIBING = 0.01
"""Seconds at most until the server has heard of a subscription."""


class SimulatedLink:
    """One connection to one life of the server."""

    incarnation: str

    def __init__(self, links: SimulatedLinks) -> None:
        self.address = ADDRESS
        self.alive = True
        self.life = links.engine.life
        self.home = links
        self._connection = Connection()
        self._under_way: list[Exchange] = []

    async def ask(self, command: bytes) -> Any:
        (reply,) = await self.exchange([command])
        return reply

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        links = self.home
        if not self.alive:
            raise exceptions.ConnectionError("the connection was closed")
        exchange = Exchange(links.at, self._connection, parcel(commands, self.life))
        links.compare(exchange.request)
        self._under_way.append(exchange)
        links.network.send(exchange)
        links.at.after(links.op_timeout, exchange.signal.fire)
        links.asking += 1
        try:
            await exchange.signal
        except BaseException:
            exchange.abandoned = True
            if not links.multiplexed:
                self.discard()
            raise
        finally:
            links.asking -= 1
            links.asked_at = links.at.world.now
            self._under_way.remove(exchange)
        return self._replies(exchange.replies)

    def discard(self) -> None:
        """All that is under way on it will get no answer; the server may serve it yet."""
        self.alive = False
        for exchange in self._under_way:
            exchange.signal.fire()

    def _replies(self, replies: Any) -> list[Any]:
        if replies is None:
            self.discard()
            raise exceptions.TimeoutError("it did not answer")
        assert isinstance(replies, Replies)
        if isinstance(replies.raw[0], exceptions.ConnectionError):
            self.discard()
            self.home.log.sometimes("connection reset by a restart")
            raise replies.raw[0]
        return replies.raw


class Subscription:
    """What one process hears of the server's notifications."""

    def __init__(self, process: Process, switchboard: Switchboard, engine: RedisServer) -> None:
        self._process = process
        self._switchboard = switchboard
        self._engine = engine
        self._wanted = False

    def listen(self) -> None:
        if not self._wanted:
            self._wanted = True
            self._subscribe()

    def renew(self) -> None:
        """Notices that it has been dead for a while."""
        if self._wanted and self._engine.up:
            self._listen()

    def _subscribe(self) -> None:
        """Subscribes, or tries again soon if the server is not there, and when it has gone."""
        pause = NOTICED * (0.5 + self._process.world.random.random() / 2)
        if self._engine.up and self._engine.listening.get(self._process.name) is None:
            self._process.after(SUBSCRIBING * self._process.world.random.random(), self._listen)
        self._process.after(pause, self._subscribe)

    def _listen(self) -> None:
        self._engine.deaf.discard(self._process.name)
        self._engine.listening[self._process.name] = self._engine.life
        self._switchboard.notify_all(CheckAgain())


class SimulatedLinks:
    """The links of one store."""

    def __init__(
        self,
        process: Process,
        network: Network,
        engine: RedisServer,
        swarm: Swarm,
        subscription: Subscription,
    ) -> None:
        self.at = process
        self.network = network
        self.engine = engine
        self.log = network._log
        self.op_timeout = swarm.op_timeout
        self.multiplexed = swarm.multiplexed
        self.asking = 0
        self.asked_at = 0.0
        self.asked: set[tuple[Any, ...]] = set()
        self.listen = subscription.listen
        self._resets = swarm.resets
        self._idle: list[SimulatedLink] = []

    @property
    def process(self) -> str:
        return self.at.name

    async def take(
        self, _address: Address, _permits: list[None], introduce: Introduce, *, beside: bool = False
    ) -> SimulatedLink:
        for link in tuple(self._idle):
            if self._usable(link):
                if not self.multiplexed:
                    self._idle.remove(link)
                return link
            self._idle.remove(link)
        link = SimulatedLink(self)
        await introduce(link)
        if self.multiplexed:
            self._idle.insert(0, link)
        return link

    def give_back(self, link: Any) -> None:
        if link.alive and link not in self._idle:
            self._idle.append(link)

    def compare(self, sent: Request) -> None:
        """What is sent is what the store was asked."""
        if strange := set(_parts(sent)) - self.asked:
            self.at.world.fail("P11 honest", f"the store was not asked for {strange}")

    def _usable(self, link: SimulatedLink) -> bool:
        """Whether the server has left it open, as far as that can be seen."""
        gone = link.life != self.engine.life
        return link.alive and not (gone and self.at.world.random.random() < self._resets)


class WitnessedStore(RedisStore):
    """The store that is shipped, of which one sees what it is asked, and whether it waits."""

    def __init__(self, links: SimulatedLinks, recovery: float, sent: Sent) -> None:
        self._sent = sent
        settings = Settings(Deployment.SINGLE, (ADDRESS,), recovery=Recovery(recovery))
        wire = Wire(
            settings,
            LAYOUT,
            Nodes(ADDRESS),
            links,  # type: ignore[arg-type]
            admit=lambda _server: None,
            now=links.at.now,
        )
        super().__init__("simulated://", LAYOUT, wire)
        self._links = links

    async def acquire(self, key: str, claim: Claim, *, room: int, ticket: int = 0) -> Reply:
        self._note(Acquire(key, claim, room))
        return await super().acquire(key, claim, room=room, ticket=ticket)

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        self._note(Release(key, owner, void))
        return await super().release(key, owner, void=void)

    async def release_some(
        self, releases: Sequence[tuple[str, str, float]]
    ) -> Sequence[EngineUnavailable | None]:
        for each in releases:
            self._note(Release(*each))
        return await super().release_some(releases)

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        self._note(Refresh(tuple(pulses)))
        return await super().refresh(pulses)

    @property
    def asking(self) -> int:
        return self._links.asking

    @property
    def asked_at(self) -> float:
        return self._links.asked_at

    def _note(self, request: Request) -> None:
        self._links.asked |= set(_parts(request))
        self._sent(self._links.at, request)


def _parts(request: Any) -> list[tuple[Any, ...]]:
    """What a request says, in whole microseconds."""
    if isinstance(request, Acquire):
        owner, process, ttl, label, _limit = request.claim
        return [(request.key, owner, process, micros(ttl), label, request.room)]
    if isinstance(request, Release):
        return [(request.key, request.owner, micros(request.void))]
    if isinstance(request, Refresh):
        return [(pulse.key, pulse.owner, micros(pulse.ttl)) for pulse in request.pulses]
    return []
