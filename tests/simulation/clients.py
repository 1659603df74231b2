"""The workload: processes whose tasks acquire, hold, check, extend and release keys."""

from __future__ import annotations

from collections.abc import Sequence

from weblock._core.acquiring import Locker
from weblock._core.holding import Holding, Status, Terms
from weblock._core.keeping import Keeper
from weblock._core.ports import Switchboard
from weblock.errors import AlreadyHeld, EngineUnavailable, LeaseLost, LockTimeout

from .engine import Server, SimStore
from .properties import Attempt, Record, Referee
from .runtime import SimRuntime
from .world import Cancelled, Clock, Process, Task, World


class Application(Process):
    """A simulated process with one locker, one keeper and one switchboard."""

    def __init__(self, world: World, name: str, clock: Clock, server: Server) -> None:
        super().__init__(world, name, clock)
        self.server = server
        self.referee = server.referee
        self.runtime = SimRuntime(self)
        self.switchboard = Switchboard()
        server.homes[name] = (self, self.switchboard)
        self.keeper = Keeper(self.runtime, lambda _: self._store(), self._spawn, self._report)
        self.locker = Locker(
            store=self._store(),
            runtime=self.runtime,
            keeper=self.keeper,
            switchboard=self.switchboard,
            engine="sim",
        )

    def _store(self) -> SimStore:
        return SimStore(self.server, self)

    def _spawn(self) -> None:
        if not self.crashed:
            Task(self, f"{self.name}.keeper", self.keeper.run(), client=False)

    def _report(self, message: str) -> None:
        self.world.count("at risk" if "at risk" in message else "loss reported")


class Client:
    """One task of an application: a few acquisitions, one after the other."""

    def __init__(
        self, application: Application, name: str, keys: Sequence[str], ttl: float
    ) -> None:
        self._app = application
        self._world = application.world
        self._referee: Referee = application.referee
        self._rng = application.world.rng
        self._keys = keys
        self._ttl = ttl
        self.task = Task(application, name, self._work(), client=True)

    async def _work(self) -> None:
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            await self._pause(self._rng.random() * 1.5)
            try:
                await self._attempt()
            except Cancelled:
                self._world.count("cancelled")

    async def _pause(self, seconds: float) -> None:
        try:
            await self._app.runtime.sleep(seconds)
        except Cancelled:
            pass

    def _wishes(self) -> tuple[list[str], Terms, float | None]:
        rng = self._rng
        keys = sorted(
            rng.sample(self._keys, 2 if len(self._keys) > 1 and rng.random() < 0.15 else 1)
        )
        terms = Terms(
            ttl=self._ttl if rng.random() < 0.8 else rng.choice((0.3, 1.0, 2.5, 5.0)),
            max_hold=rng.choice((None, None, None, 0.4, 2.0)),
            renew=rng.random() < 0.85,
            max_waiters=rng.choice((1, 2, 1000, 1000, 1000)),
            label="",
        )
        return keys, terms, rng.choice((0, 0.3, 1.0, 4.0, 8.0, None, None))

    async def _attempt(self) -> None:
        keys, terms, wait = self._wishes()
        attempt = Attempt(self._app, keys, terms, wait)
        self.task.attempt = self._referee.started(attempt)
        self._world.note(self.task.name, "acquires", keys, f"ttl={terms.ttl} wait={wait}")
        try:
            holdings = await self._app.locker.acquire(keys, terms, wait)
        except (LockTimeout, EngineUnavailable, AlreadyHeld, LeaseLost) as error:
            self._failed(attempt, error)
            return
        except Cancelled as error:
            self._failed(attempt, error)
            raise
        self._world.note(self.task.name, "got", *(holding.owner for holding in holdings))
        records = self._referee.got(attempt, holdings)
        try:
            await self._inside(holdings, records)
        finally:
            await self._leave(attempt, holdings, records)

    def _failed(self, attempt: Attempt, error: BaseException) -> None:
        kind = type(error).__name__
        if isinstance(error, LockTimeout):
            kind += " at once" if attempt.wait == 0 else " queue full" if error.waiters else ""
        self._world.count(f"acquire: {kind}")
        self._world.note(self.task.name, "fails:", kind)
        self._referee.failed(attempt, error)

    async def _inside(self, holdings: Sequence[Holding], records: Sequence[Record]) -> None:
        rng = self._rng
        for _ in range(rng.choice((1, 1, 2, 3))):
            await self._app.runtime.sleep(
                rng.choice((0.0, 0.01, 0.2, 0.6, 1.5, 3.0)) * rng.random()
            )
            try:
                for record in records:
                    record.holding.check(self._app.now())
                    self._referee.checked(record)
                if rng.random() < 0.15:
                    await self._app.locker.extend(holdings[0], rng.random() * 2)
                    self._world.count("extended")
                    self._referee.checked(records[0])
                if rng.random() < 0.05 and holdings[0].held(self._app.now()):
                    await self._once_more(holdings[0])
            except LeaseLost as loss:
                self._world.count(f"lost: {loss.reason}")
                return
            except EngineUnavailable:
                self._world.count("extension unanswered")

    async def _once_more(self, holding: Holding) -> None:
        """Asks for what it has already: it would wait for itself."""
        if self._app.keeper.holding_of(holding.key) is not holding:
            return  # It was taken, and another task has the key now.
        try:
            await self._app.locker.acquire([holding.key], holding.terms, None)
        except AlreadyHeld:
            self._world.count("already held")

    async def _leave(
        self, attempt: Attempt, holdings: Sequence[Holding], records: Sequence[Record]
    ) -> None:
        if self._rng.random() < 0.1:
            self._app.locker.abandon(holdings)
            self._referee.over(attempt)
            return
        now = self._app.now()
        lapsed = any(h.status is not Status.HELD or now >= h.deadline for h in holdings)
        told = False
        try:
            await self._app.locker.release(holdings)
        except LeaseLost:
            told = True
            self._world.count("told at release")
        except Cancelled:
            self._world.count("cancelled while releasing")
            self._referee.over(attempt)
            raise
        self._world.note(self.task.name, "has released", *attempt.owners)
        self._referee.released(records, lapsed=lapsed, told=told)
        self._referee.over(attempt)
