"""Attempts: one caller each, which acquires keys, works while it holds them, and releases."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from weblock._core.holding import Holding, Status, Terms
from weblock._core.table import SHARED
from weblock.errors import AlreadyHeld, EngineUnavailable, LeaseLost, LockTimeout, WeblockError

from .client import Client
from .process import Cancelled
from .swarm import Swarm
from .truth import Truth

LIMITS: Final = (2, 3, SHARED)
"""Those that callers name who do not want a key to themselves."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a caller is going to do."""

    keys: tuple[str, ...]
    terms: Terms
    wait: float | None
    section: float
    extends: bool
    nests: bool
    checks: bool
    asks: bool

    @classmethod
    def drawn(cls, random: Random, swarm: Swarm) -> Plan:
        def happens(probability: float) -> bool:
            return random.random() < probability

        asks = bool(swarm.asks) and happens(swarm.asks)

        names = [f"k{number}" for number in range(swarm.keys)]
        several = swarm.keys > 1 and happens(swarm.several_keys)
        keys = tuple(sorted(random.sample(names, 2))) if several else (random.choice(names),)
        terms = Terms(
            ttl=swarm.ttl,
            max_hold=random.uniform(0.3, 2.0) * swarm.ttl if happens(swarm.max_hold) else None,
            renew=not happens(swarm.unrenewed),
            max_waiters=swarm.room,
            label="",
            limit=random.choice(LIMITS) if swarm.limited and happens(swarm.limited) else 1,
        )
        wait: float | None = random.uniform(0.1, 2.0) * max(1.0, swarm.ttl)
        if happens(swarm.zero_wait):
            wait = 0.0
        elif happens(swarm.endless_wait):
            wait = None
        section = swarm.section * random.uniform(0.1, 1.5)
        extends, nests, checks = happens(swarm.extends), happens(0.05), happens(0.5)
        return cls(keys, terms, wait, section, extends, nests, checks, asks)


class Phase(enum.Enum):
    ASKING = "asking"
    HOLDING = "holding"
    RELEASING = "releasing"
    ENDED = "ended"


class Attempt:
    """One caller, from its first request until nothing of it is left."""

    def __init__(self, name: str, client: Client, plan: Plan, truth: Truth) -> None:
        self.name = name
        self.client = client
        self.plan = plan
        self.phase = Phase.ASKING
        self.owners: list[str] = []
        self.started_at = truth.world.now
        self.ended_at: float | None = None
        self.told: list[str] = []
        self.asked: list[str] = []
        self._truth = truth
        self._begun = False
        self.task = client.process.spawn(self._run(), name)

    @property
    def process_dead(self) -> bool:
        return self.client.process.dead

    @property
    def over(self) -> bool:
        return self.ended_at is not None or self.process_dead

    def cancel(self) -> None:
        if self._begun and not self.over:
            self._note("is cancelled while", self.phase.value)
            self._truth.cancelled(self)
            self.task.cancel()

    def _note(self, *facts: object) -> None:
        self._truth.world.note(self.name, *facts)

    async def _run(self) -> None:
        self._begun = True
        try:
            await self._live()
        except (Cancelled, GeneratorExit):
            self._note("was cancelled")
            raise
        except Exception as error:  # noqa: BLE001 - none of these is an answer to a caller
            self._truth.world.fail("P11 honest", f"{self.name} got {error!r}")
        finally:
            if not self.process_dead:
                self.phase = Phase.ENDED
                self.ended_at = self._truth.world.now
                self._truth.ended(self)

    async def _live(self) -> None:
        holdings = await self._acquire()
        if holdings is None:
            return
        for holding in holdings:
            holding.on_lost(partial(self.told.append, holding.owner))
            holding.on_ask_release(partial(self.asked.append, holding.owner))
        self.phase = Phase.HOLDING
        try:
            await self._work(holdings)
        except GeneratorExit:  # Its process was killed: nothing of it runs any more.
            raise
        except BaseException:
            await self._release(holdings)
            raise
        await self._release(holdings)

    async def _acquire(self) -> tuple[Holding, ...] | None:
        plan, locker = self.plan, self.client.locker
        if plan.asks:
            await self._ask_holders()
        terms = plan.terms
        self._note("acquires", plan.keys, plan.wait, terms.limit, terms.max_hold, terms.renew)
        asked_at = self.client.process.now()
        try:
            holdings = await locker.acquire(plan.keys, plan.terms, plan.wait)
        except (LockTimeout, EngineUnavailable, LeaseLost) as error:
            self._note("got", type(error).__name__, str(error))
            self._truth.refused(self, error, self.client.process.now() - asked_at)
            return None
        self._note("holds", [holding.fence for holding in holdings])
        self._truth.got(self, holdings)
        return holdings

    async def _ask_holders(self) -> None:
        for key in self.plan.keys:
            try:
                await self.client.locker.store.ask_release(key)
            except EngineUnavailable as error:
                self._note("did not ask", str(error))

    async def _work(self, holdings: Sequence[Holding]) -> None:
        runtime, plan = self.client.runtime, self.plan
        if plan.nests and plan.terms.limit == 1:  # A second slot of several would be granted.
            await self._nest()
        for part in range(3):
            await runtime.sleep(plan.section / 3)
            if plan.checks and not self._still_held(holdings):
                return
            if plan.extends and part == 1:
                await self._extend(holdings[0])

    async def _nest(self) -> None:
        try:
            await self.client.locker.acquire(self.plan.keys, self.plan.terms, None)
        except AlreadyHeld:
            self._truth.sometimes("nested acquire refused")
        except WeblockError as error:
            if not self._truth.is_lost(self):
                raise AssertionError("it waited for itself") from error

    def _still_held(self, holdings: Sequence[Holding]) -> bool:
        now = self.client.process.now()
        try:
            for holding in holdings:
                holding.check(now)
        except LeaseLost as loss:
            self._note("lost", loss.reason)
            self._truth.lost(self, loss)
            return False
        self._truth.checked(self, holdings)
        return True

    async def _extend(self, holding: Holding) -> None:
        try:
            await self.client.locker.extend(holding, self.plan.terms.ttl / 2)
            self._truth.sometimes("lease extended")
        except (LeaseLost, EngineUnavailable) as error:
            self._note("did not extend", type(error).__name__)

    async def _release(self, holdings: Sequence[Holding]) -> None:
        self.phase = Phase.RELEASING
        now = self.client.process.now()
        had_lost = [holding for holding in holdings if not holding.held(now)]
        self._note("releases")
        try:
            await self.client.locker.release(holdings)
        except LeaseLost as loss:
            self._note("released too late", loss.reason)
            self._truth.released(self, holdings, had_lost, loss)
        else:
            self._truth.released(self, holdings, had_lost, None)
        for holding in holdings:
            if holding.status is Status.HELD:
                self._truth.world.fail("P11 honest", f"{self.name} still holds what it released")
