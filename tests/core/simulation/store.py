"""The store port of one process: each operation is a request and a reply, or no reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weblock._core.ports import Look, Pulse, Reply, Store
from weblock._core.table import Claim
from weblock.errors import EngineUnavailable

from .engine import Acquire, AskRelease, Glance, Refresh, Release, Request, Transfer
from .network import Connection, Exchange, Network
from .process import Process


class SimulatedStore(Store):
    """A client with a pool of connections, or with a single one that all share."""

    def __init__(
        self, process: Process, network: Network, *, op_timeout: float, multiplexed: bool
    ) -> None:
        self.asking = 0
        self.asked_at = 0.0
        self._process = process
        self._network = network
        self._op_timeout = op_timeout
        self._shared = Connection() if multiplexed else None
        self._idle: list[Connection] = []

    @property
    def process(self) -> str:
        return self._process.name

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        (reply,) = await self._ask(Acquire(key, claim, room))
        return reply

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        return await self._ask(Refresh(tuple(pulses)))

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        (reply,) = await self._ask(Release(key, owner, void))
        return reply

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        (reply,) = await self._ask(Transfer(key, owner, claim))
        return reply

    async def ask_release(self, key: str) -> Reply:
        (reply,) = await self._ask(AskRelease(key))
        return reply

    async def look(self, key: str) -> Look:
        (look,) = await self._ask(Glance(key))
        return look

    async def _ask(self, request: Request) -> list[Any]:
        connection = self._shared or (self._idle.pop() if self._idle else Connection())
        exchange = Exchange(self._process, connection, request)
        self._network.send(exchange)
        self._process.after(self._op_timeout, exchange.signal.fire)
        self.asking += 1
        try:
            await exchange.signal
        except BaseException:
            exchange.abandoned = True  # Its connection is closed.
            raise
        finally:
            self.asking -= 1
            self.asked_at = self._process.world.now
        if exchange.replies is None:
            raise EngineUnavailable("simulated://", "it did not answer")
        if self._shared is None:
            self._idle.append(connection)
        return exchange.replies
