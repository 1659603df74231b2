"""What runs in a client process: the core, unmodified, on simulated ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from weblock._core.acquiring import Locker
from weblock._core.holding import Holding
from weblock._core.keeping import Keeper
from weblock._core.ports import Runtime, Store, Switchboard
from weblock._core.reporting import Observers
from weblock.events import EVENTS, Event

from .network import Network
from .process import Cancelled, Process, Task
from .runtime import SimulatedRuntime
from .store import SimulatedStore
from .swarm import Swarm

AGAIN_AFTER = 0.1
"""Seconds after which a keeper that failed is started again, as its thread does it."""


class Witness(Protocol):
    """Who is told what a process believes."""

    def new_owner(self, owner: str, task: Task | None) -> None: ...

    def believes(self, client: Client, holding: Holding) -> None: ...


class WitnessedKeeper(Keeper):
    """A keeper that shows each lease from the moment that its process has it."""

    on_holding: Callable[[Holding], None]

    def keep_holding(self, holding: Holding) -> None:
        super().keep_holding(holding)
        self.on_holding(holding)


class Client:
    """One process: a locker and a keeper, each with a store of its own."""

    def __init__(self, process: Process, network: Network, swarm: Swarm, witness: Witness) -> None:
        self.process = process
        self.switchboard = Switchboard()
        self._network = network
        self._swarm = swarm
        self._witness = witness
        self._keeper_task: Task | None = None
        self._keeper_runs = False
        self.keeper_store = self._store()
        runtime = SimulatedRuntime(process, self._new_owner)
        self.runtime = runtime
        observers = Observers("simulated://", runtime.now)
        observers.wanted = {kind: [self._hear] for kind in EVENTS.values()}
        self.keeper = WitnessedKeeper(runtime, self._connect, self._start_keeper)
        self.keeper.on_holding = self._on_holding
        self.locker = Locker(
            store=self._store(),
            runtime=runtime,
            keeper=self.keeper,
            switchboard=self.switchboard,
            engine="simulated://",
            observers=observers,
        )
        network.join(process, self.switchboard)

    def _store(self) -> SimulatedStore:
        return SimulatedStore(
            self.process,
            self._network,
            op_timeout=self._swarm.op_timeout,
            multiplexed=self._swarm.multiplexed,
        )

    def _connect(self, _runtime: Runtime) -> Store:
        return self.keeper_store

    def keeper_dies(self) -> bool:
        """Has it fail wherever it is; false if there is none, or it has just failed."""
        if self._keeper_task is None or not self._keeper_runs:
            return False
        self._keeper_task.cancel()
        return True

    def _start_keeper(self) -> bool:
        self._keeper_task = self.process.spawn(self._keep(), "keeper")
        return True

    async def _keep(self) -> None:
        while True:
            try:
                self._keeper_runs = True
                return await self.keeper.run()
            except Cancelled:
                self._keeper_runs = False
                await self.runtime.sleep(AGAIN_AFTER)
            except Exception as error:  # noqa: BLE001 - whatever it is, no lease of the process survives it
                self.process.world.fail("P10 live", f"the keeper failed: {error!r}")
                return None

    def _hear(self, event: Event) -> None:
        self.process.world.note("told", self.process.name, event.name)

    def _new_owner(self, owner: str) -> None:
        self._witness.new_owner(owner, self.process.current)

    def _on_holding(self, holding: Holding) -> None:
        self._witness.believes(self, holding)
