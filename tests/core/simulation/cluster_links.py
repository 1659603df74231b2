"""The links of a simulated process to the masters of a cluster, and what it knows of these."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from redis import exceptions

from weblock._core.ports import Recovery
from weblock.stores.redis.settings import Address, Deployment, Settings
from weblock.stores.redis.store import RedisStore
from weblock.stores.redis.topology import HUNG, MAP_READ_EVERY
from weblock.stores.redis.wire import Wire

from .cluster_servers import ADDRESSES, LAYOUT, ClusterServers
from .process import Process, Signal
from .redis_links import Introduce, Sent, SimulatedLink, SimulatedLinks, WitnessedStore

KNOCK: Final = 0.2
"""Seconds after which it is tried again whether a master that hung answers."""


class ClusterLink(SimulatedLink):
    """One connection to one life of one master."""

    def __init__(self, links: ClusterLinks, address: Address) -> None:
        super().__init__(links)
        self.address = address
        master = links.engine.masters[ADDRESSES.index(address)]
        self.life: Any = (master.number, master.life)


class ClusterLinks(SimulatedLinks):
    """The links of one store, to all masters."""

    engine: ClusterServers  # type: ignore[assignment]

    async def take(
        self, address: Address, _permits: list[None], introduce: Introduce, *, beside: bool = False
    ) -> SimulatedLink:
        for link in tuple(self._idle):
            if link.address == address:
                self._idle.remove(link)
                if link.alive:
                    return link
        link = ClusterLink(self, address)
        await introduce(link)
        return link

    async def aside(self, work: Callable[[], None]) -> None:
        """Takes as long as an answer of the map does."""
        pause = Signal()
        self.at.after(0.01, pause.fire)
        await pause
        work()

    async def together(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        left, over = len(works), Signal()

        def done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                over.fire()

        for work in works:
            self.at.spawn(work, "together", done)
        await over


class SimulatedNodes:
    """What a process knows of the masters: it was so when it looked last."""

    def __init__(self, process: Process, engine: ClusterServers) -> None:
        self._process = process
        self._engine = engine
        self._homes: dict[int, Address] = {}
        self._looked_at = float("-inf")
        self._hung: set[Address] = set()

    def ready(self) -> bool:
        return self._process.now() < self._looked_at + MAP_READ_EVERY

    def refresh(self) -> None:
        engine, process = self._engine, self._process
        self._looked_at = process.now()
        self._homes = {bucket: ADDRESSES[home] for bucket, home in engine.home.items()}

    def address_of(self, bucket: int) -> Address:
        if (address := self._homes[bucket]) in self._hung:
            raise exceptions.TimeoutError(HUNG)
        return address

    def buckets_at(self, address: Address) -> list[int]:
        return [bucket for bucket, home in self._homes.items() if home == address]

    def listen_at(self) -> Address:
        return ADDRESSES[0]

    def serves(self, address: Address) -> bool:
        return address not in self._hung

    def moved(self, bucket: int, address: Address) -> None:
        self._homes[bucket] = address
        self.doubt()

    def doubt(self, address: Address | None = None, error: Exception | None = None) -> None:
        self._looked_at = float("-inf")
        if address and isinstance(error, exceptions.TimeoutError) and address not in self._hung:
            self._hung.add(address)
            self._knock(address)

    def _knock(self, address: Address) -> None:
        if self._engine.masters[ADDRESSES.index(address)].hung:
            self._process.after(KNOCK, partial(self._knock, address))
        else:
            self._hung.discard(address)


class ClusterStore(WitnessedStore):
    """The store that is shipped, on a cluster."""

    def __init__(self, links: ClusterLinks, sent: Sent) -> None:
        self._sent = sent
        self._links = links
        nodes = SimulatedNodes(links.at, links.engine)
        settings = Settings(Deployment.CLUSTER, ADDRESSES, recovery=Recovery(links.engine.recovery))
        wire = Wire(
            settings,
            LAYOUT,
            nodes,  # type: ignore[arg-type]
            links,  # type: ignore[arg-type]
            admit=lambda _server: None,
            now=lambda: (
                0.0
            ),  # No server is asked again: the schedules that find mutants stay the same.
        )
        RedisStore.__init__(self, "simulated://", LAYOUT, wire)
