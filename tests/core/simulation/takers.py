"""Several callers that take over one lease of a quorum at the same time, while a server is down or not."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

from weblock._core import moving
from weblock._core.holding import Terms
from weblock.errors import WeblockError

from .moving import Deaf
from .network import Network
from .process import Process, Task
from .quorum_campaign import calm
from .quorum_client import QuorumClient
from .quorum_servers import Quorum, QuorumServer
from .redis_campaign import AS_SHIPPED
from .swarm import Swarm
from .world import World

TTL: Final = 30.0


class _Witness(Deaf):
    """What the clients and servers tell, of which only the time is needed."""

    def __init__(self, world: World) -> None:
        self.world = world


class TakersSchedule:
    """Everything that one seed decides; ``run`` raises ``Violation``."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        self.world = world = World(random)
        swarm = replace(calm(Swarm.drawn(random)), ttl=TTL, op_timeout=1.0, delay=0.005)
        witness: Any = _Witness(world)
        count = random.choice([3, 5])
        networks = [Network(world, swarm) for _ in range(count)]
        self._servers = [
            QuorumServer(
                number,
                rate=1.0,
                skew=random.uniform(-0.2, 0.2),
                world=world,
                notify=network.notify,
                recovery=0.0,
                scripted=AS_SHIPPED,
            )
            for number, network in enumerate(networks)
        ]
        for server, network in zip(self._servers, networks, strict=True):
            server.observer = witness
            network.connect(server, witness)
        quorum = Quorum(self._servers, 0.0)
        self._clients = [
            QuorumClient(
                Process(world, f"p{each}", rate=1.0, offset=0.0), networks, quorum, swarm, witness
            )
            for each in range(random.randint(2, 6))
        ]
        self._terms = Terms(TTL, None, renew=False, max_waiters=9, label="", drift=0.01)
        self._tasks: list[Task] = []
        self._takers = 0

    def run(self) -> None:
        try:
            self._spawn(self._clients[0], self._give())
            self.world.run(TTL / 2)
            if not all(task.done for task in self._tasks) or self._takers != 1:
                self.world.fail("M3 one taker", f"{self._takers} of {len(self._clients)} have it")
            self.world.raise_violation()
        finally:
            for client in self._clients:
                client.process.close()

    def _spawn(self, client: QuorumClient, work: Any) -> None:
        self._tasks.append(client.process.spawn(work, work.__name__))

    async def _give(self) -> None:
        giver = self._clients[0]
        hands = await giver.locker.acquire(["ns:key"], self._terms, 5.0)
        token = await moving.hand_over(giver.locker, hands, TTL)
        await giver.runtime.sleep(1.0)  # Until all servers have got it.
        if self._random.random() < 0.5:
            self._random.choice(self._servers).crash(forget=False)
        for client in self._clients:
            self._spawn(client, self._take(client, token))

    async def _take(self, client: QuorumClient, token: str) -> None:
        try:
            await moving.take_over(client.locker, moving.leases_in(token), self._terms)
        except WeblockError:
            return
        self._takers += 1
