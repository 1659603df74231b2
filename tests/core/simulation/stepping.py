"""Schedules of an engine whose clock is set back or forward, for a while or for good.

No lock can bear that: an engine that is set forward ends its leases early. What can be held is that a
holder is wrong for a short time only, whatever the clock shows. So in the place of the properties
that compare the engine's time with the true one, there is one that bounds the overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from weblock._core.acquiring import Acquisition
from weblock._core.holding import Anchor, Holding
from weblock.stores.redis.scripts import Script

from .campaign import Campaign
from .engine import EngineServer
from .mutants import Mutant
from .properties import SLACK, Bounded, Fences, Property
from .redis_campaign import AS_SHIPPED, Scripted
from .redis_engine import RedisEngine
from .schedule import Schedule
from .swarm import Swarm
from .truth import Belief, Truth

STEPS: Final = (0.3, 1.0, 60.0, 3600.0)
"""Seconds by which a clock is set."""

SOMETIMES: Final = (
    "clock set back",
    "clock set forward",
    "clock corrected",
    "lease extended",
    "holders overlapped for a while",
    "lease lost: taken",
)


class SteppingServer(EngineServer):
    """An engine whose clock can be set."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class SteppingRedis(RedisEngine):
    """A Redis server whose clock can be set: it runs the Lua that is shipped."""

    ahead = 86_400.0
    """No clock of a server shows a time before 1970, however often it is set back."""

    def now(self) -> float:
        return super().now() + self.ahead


class BriefOverlap(Property):
    """Two holders of one key overlap for no longer than until the first renews.

    One that does not renew finds out at the end of what it asked for.
    """

    name = "P1 mutex"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._since: dict[tuple[str, str], float] = {}
        ttl = truth.swarm.ttl
        self._renewing = ttl / 3 / 0.98 + self.round_trips + SLACK
        self._asked = 1.5 * ttl / 0.98 + SLACK  # An extension asks for half a ttl more.

    def after_event(self) -> None:
        held = [each for each in self.truth.beliefs if each.holding.held(each.process.now())]
        pairs = {}
        for number, first in enumerate(held):
            for second in held[number + 1 :]:
                if first.holding.key == second.holding.key:
                    pairs[first.holding.owner, second.holding.owner] = first
        self._since = {pair: self._since.get(pair, self.world.now) for pair in pairs}
        for pair, first in pairs.items():
            self._look(pair, first)

    def _look(self, pair: tuple[str, str], first: Belief) -> None:
        self.truth.sometimes("holders overlapped for a while")
        longest = self._renewing if first.holding.terms.renew else self._asked
        lasted = self.world.now - self._since[pair]
        if lasted > longest:
            self.fail(f"{pair} hold the same key for {lasted:.3f} s already")


PROPERTIES: Final[tuple[type[Property], ...]] = (BriefOverlap, Fences, Bounded)


class SteppingSchedule(Schedule):
    """The engine's clock steps; nothing else ever fails."""

    engine: SteppingServer | SteppingRedis

    def __init__(self, random: Random, engine: Callable[..., EngineServer]) -> None:
        swarm = replace(
            Swarm.drawn(random),
            **dict.fromkeys(
                ("late", "lost_requests", "lost_replies", "lost_notifications", "duplicates"), 0.0
            ),
            **dict.fromkeys(("engine_stops", "restarts", "stops", "crashes", "closes"), 0),
            keys=1,
            extends=random.choice([0.0, 0.5]),
            section=random.choice([0.3, 1.5, 4.0]),
        )
        super().__init__(random, swarm, engine)
        self.truth.add([each(self.truth) for each in PROPERTIES])
        for _ in range(random.randint(1, 4)):
            self.world.after(random.random() * swarm.calm_at, self._step)

    def _step(self) -> None:
        random = self.world.random
        by = random.choice(STEPS) * random.choice([-1.0, 1.0])
        self.truth.sometimes("clock set back" if by < 0 else "clock set forward")
        self.world.note("FAULT clock", by)
        self.engine.ahead += by
        if random.random() < 0.8:
            lasting = random.random() * 1.5 * self.swarm.ttl
            self.world.after(lasting, partial(self._correct, by))

    def _correct(self, by: float) -> None:
        self.truth.sometimes("clock corrected")
        self.world.note("END OF FAULT clock", by)
        self.engine.ahead -= by


def stepping_schedule(seed: int) -> Any:
    return SteppingSchedule(Random(seed), SteppingServer)


def stepping_redis_schedule(seed: int, scripted: Scripted = AS_SHIPPED) -> SteppingSchedule:
    """Return the schedule of a seed on a server that runs the scripts."""
    engine = partial(SteppingRedis, recovery=4.0, scripted=scripted)
    return SteppingSchedule(Random(seed), engine)


REDIS_CLOCKS = Campaign("redis-clocks", stepping_redis_schedule, SOMETIMES)
"""A Redis server whose clock steps."""

CLOCKS = Campaign("clocks", stepping_schedule, SOMETIMES)
"""An engine whose clock steps."""

MUTANTS: Final = (
    Mutant(
        "an engine is believed that says a lease lasts for an hour",
        Anchor,
        "deadline",
        "min(until - self.engine, at_most)",
        "(until - self.engine)",
        ("P1", "P12"),
    ),
    Mutant(
        "a hand-over lasts as long as the engine says",
        Acquisition,
        "_turn",
        "+ min(self._claim.ttl, HANDOFF)",
        "+ 3600.0",
        ("P12",),
        seed=20,
    ),
    Mutant(
        "a claim is granted for as long as the engine says",
        Acquisition,
        "run",
        "until, at_most = answer.until, self._claim.ttl",
        "until, at_most = answer.until, 3600.0",
        ("P12",),
        seed=155,
    ),
    Mutant(
        "a renewal lasts as long as the engine says",
        Holding,
        "heard",
        "Anchor(reply.now, sent), self._asked",
        "Anchor(reply.now, sent), 3600.0",
        ("P1", "P12"),
    ),
    Mutant(
        "a lease that was extended by far is not looked after",
        Holding,
        "_next_renewal",
        "since + min(self.terms.ttl, self.deadline - since) / 3",
        "self.deadline - self.terms.ttl * 2 / 3",
        ("P1", "P12"),
        seed=2,
    ),
)


_REMEMBERED = "math.max(last + 1, came_at, recovered_at)"
"""How the scripts make a fence: from the last one, and from when its owner came."""


def fences_by_the_clock(script: Script) -> Script:
    """The scripts, where a fence is what the server's clock shows, whatever was granted before."""
    assert script.text.count(_REMEMBERED) == 1, "no such mistake"
    return script._replace(text=script.text.replace(_REMEMBERED, "came_at"))
