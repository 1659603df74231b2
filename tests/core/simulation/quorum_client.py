"""A process that locks on a quorum, with the store that is shipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from weblock._core.ports import Pulse, Recovery, Reply, Switchboard
from weblock._core.table import Claim
from weblock.errors import EngineUnavailable
from weblock.stores.quorum import Board, QuorumEngine
from weblock.stores.quorum.store import QuorumStore
from weblock.stores.redis.asking import LONGEST_KNOCK, Health
from weblock.stores.redis.settings import Address, Deployment, Settings
from weblock.stores.redis.store import RedisStore
from weblock.stores.redis.topology import Nodes
from weblock.stores.redis.wire import Wire

from .client import Client
from .engine import Acquire, Refresh, Release, Request
from .network import Network
from .process import Process
from .quorum_servers import Quorum
from .redis_engine import LAYOUT
from .redis_links import ADDRESS, SimulatedLinks, Subscription
from .runtime import SimulatedRuntime
from .swarm import Swarm
from .truth import Truth


class QuorumLinks(SimulatedLinks):
    """The links to one of the servers."""

    def compare(self, sent: Request) -> None:
        """What the store sends on its own account was not asked for."""


class SimulatedConnections:
    """What a process has open to one server."""

    def __init__(self, engine: SimulatedQuorumEngine, number: int, settings: Settings) -> None:
        network, server = engine.networks[number], engine.quorum.servers[number]
        board = Board(engine, number)
        network.join(engine.process, board)
        subscription = Subscription(engine.process, board, server)
        self._new_links = partial(
            QuorumLinks, engine.process, network, server, engine.swarm, subscription
        )
        self._settings = settings
        self._admit = partial(engine._admit, number)

    def store(self, *, suspends: bool) -> RedisStore:
        assert suspends
        links: Any = self._new_links()
        node, now = Nodes(ADDRESS), links.at.now
        wire = Wire(self._settings, LAYOUT, node, links, admit=self._admit, now=now)
        return RedisStore(self._settings.name, LAYOUT, wire)


class SimulatedHealth(Health[int]):
    """Callers are let in again when a thread would next have knocked."""

    def __init__(self, process: Process) -> None:
        super().__init__(lambda _server: None)
        self._process = process

    def _start_to_knock(self, server: int) -> bool:
        pause = LONGEST_KNOCK * (0.2 + self._process.world.random.random())
        self._process.after(pause, lambda: self.up(server))
        return True


class SimulatedQuorumEngine(QuorumEngine):
    """The engine that is shipped, on connections of the simulation."""

    def __init__(
        self, process: Process, networks: Sequence[Network], quorum: Quorum, swarm: Swarm
    ) -> None:
        self.process = process
        self.networks = networks
        self.quorum = quorum
        self.swarm = swarm
        places = [Address(f"s{server.number}", 1) for server in quorum.servers]
        super().__init__(
            [
                Settings(Deployment.SINGLE, (each,), recovery=Recovery(quorum.recovery))
                for each in places
            ]
        )
        self.health = SimulatedHealth(process)

    def _connected(self, number: int, settings: Settings) -> Any:
        return SimulatedConnections(self, number, settings)


class WitnessedQuorum(QuorumStore):
    """The store that is shipped, of which one sees what it is asked, and whether it waits."""

    def __init__(
        self,
        engine: QuorumEngine,
        runtime: SimulatedRuntime,
        stores: Sequence[RedisStore],
        truth: Truth,
    ) -> None:
        super().__init__(engine, runtime, stores, runtime.at_once)
        self.asking = 0
        self.asked_at = 0.0
        self._truth = truth

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        with self._asks(Acquire(key, claim, room)):
            return await super().acquire(key, claim, room=room)

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        with self._asks(Refresh(tuple(pulses))):
            return await super().refresh(pulses)

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        engine: Any = self._engine
        began = self._truth.world.now
        with self._asks(Release(key, owner, void)):
            reply = await super().release(key, owner, void=void)
        for server in engine.quorum.servers:
            if server.lost_at < began:
                server.released.add(owner)
        return reply

    async def _repair(self, *what: Any) -> None:
        self._truth.sometimes("a lease was repaired")
        await super()._repair(*what)

    @contextmanager
    def _asks(self, request: Request) -> Iterator[None]:
        engine: Any = self._engine
        self._truth.sent(engine.process, request)
        self.asking += 1
        try:
            yield
        finally:
            self.asking -= 1
            self.asked_at = self._truth.world.now


class _Nowhere:
    """In the place of the one network: nobody is notified there."""

    def join(self, process: Process, switchboard: Switchboard) -> None: ...


class QuorumClient(Client):
    """A process with a quorum."""

    def __init__(
        self,
        process: Process,
        networks: Sequence[Network],
        quorum: Quorum,
        swarm: Swarm,
        truth: Truth,
    ) -> None:
        self._truth = truth
        self.engine = SimulatedQuorumEngine(process, networks, quorum, swarm)
        super().__init__(process, _Nowhere(), swarm, truth)  # type: ignore[arg-type]

    def _store(self) -> Any:
        self.engine.switchboard = self.switchboard
        runtime = SimulatedRuntime(self.process, lambda _owner: None)
        stores = [each.store(suspends=True) for each in self.engine._connections]
        return WitnessedQuorum(self.engine, runtime, stores, self._truth)
