"""Schedules of the store that is shipped on a cluster: slots move, stay half-moved, and masters hang.

The masters' clocks differ, so nobody compares the time of an engine with the true one here. What
counts is what holders believe, and that no lease is lost but where its master hangs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from weblock.errors import LeaseLost
from weblock.stores.redis.scripts import Script
from weblock.stores.redis.topology import MAP_READ_EVERY
from weblock.stores.redis.wire import Wire

from .attempts import Attempt
from .campaign import Campaign
from .client import Client
from .cluster_links import ClusterLinks, ClusterStore, SimulatedNodes
from .cluster_servers import LAYOUT, ClusterServers
from .mutants import Mutant
from .process import Process
from .properties import Bounded, Fences, Mutex, Property
from .redis_campaign import AS_SHIPPED, Scripted
from .redis_links import Subscription
from .redis_stores import Log
from .schedule import Schedule
from .swarm import Swarm

SOMETIMES: Final = (
    "slot begins to move",
    "slot has moved",
    "keys on both sides: TRYAGAIN",
    "sent on: ASK",
    "renew of a lock by itself",
    "release of a lock by itself",
    "master hangs",
    "master restarts",
    "lease outlived a move",
)

CLOCKS: Final = (0.0, 0.3, -0.3, 30.0, -30.0)
"""Seconds by which a master's clock is ahead of the first's."""


class KeptElsewhere(Property):
    """A lease is lost only where its master hangs, or has just gone on."""

    name = "P14 kept"

    def lost(self, attempt: Attempt, loss: LeaseLost) -> None:
        engine = self.truth.engine
        assert isinstance(engine, ClusterServers)
        renewed = attempt.plan.terms.renew and not self.truth.swarm.stops
        if loss.reason not in {"expired", "taken"} or not renewed:
            return
        buckets = {LAYOUT.bucket(key) for key in attempt.plan.keys}
        if not any(self.world.now < engine.excused.get(each, -1.0) for each in buckets):
            self.fail(f"{attempt.name} lost {attempt.plan.keys}, and its master was there: {loss}")


class Ends(Property):
    """When all is calm, every attempt ends."""

    name = "P10 live"

    def at_end(self) -> None:
        for attempt in self.truth.attempts.values():
            if not attempt.over:
                self.fail(f"{attempt.name} never ends: it is {attempt.phase.value}")


PROPERTIES: Final[tuple[type[Property], ...]] = (Mutex, Fences, Bounded, KeptElsewhere, Ends)


class ClusterClient(Client):
    """A process that locks on the cluster."""

    def __init__(
        self, process: Process, network: Any, swarm: Swarm, truth: Any, engine: ClusterServers
    ) -> None:
        self._engine = engine
        self._truth = truth
        self._subscription: Subscription | None = None
        super().__init__(process, network, swarm, truth)

    def _store(self) -> Any:
        if self._subscription is None:
            self._subscription = Subscription(self.process, self.switchboard, self._engine)  # type: ignore[arg-type]
        engine, subscription = self._engine, self._subscription
        links = ClusterLinks(self.process, self._network, engine, self._swarm, subscription)  # type: ignore[arg-type]
        return ClusterStore(links, self._truth.sent)


class ClusterSchedule(Schedule):
    """Slots move from master to master, and one of them may hang or restart."""

    engine: ClusterServers
    masters = 2
    moves = 2
    """How often a slot moves at most."""
    longest_hang = 2.0
    """Ttls for which a master hangs at most."""

    def __init__(self, random: Random, scripted: Scripted) -> None:
        swarm = self._drawn(random)
        recovery = 2 * swarm.ttl
        ahead = (0.0, *(random.choice(CLOCKS) for _ in range(self.masters - 1)))
        engine = partial(ClusterServers, ahead=ahead, recovery=recovery, scripted=scripted)
        super().__init__(random, swarm, engine)
        self._unknown_until = 0.0
        self._moved_at: dict[int, float] = {}
        self.network.connect(self.engine, Log(self.truth))  # type: ignore[arg-type]
        self.truth.add([each(self.truth) for each in PROPERTIES])
        self._plan_faults(random, swarm)

    def _drawn(self, random: Random) -> Swarm:
        swarm = Swarm.drawn(random)
        quiet = ("late", "lost_requests", "lost_replies", "duplicates")
        return replace(
            swarm,
            **dict.fromkeys(quiet, 0.0),
            **dict.fromkeys(("engine_stops", "restarts"), 0),
            ttl=random.choice([2.0, 3.0]),
            section=random.choice([0.3, 3.0, 6.0]),
            delay=min(swarm.delay, 0.005),
            op_timeout=0.25,
            keys=random.choice([2, 3]),
            multiplexed=False,
            deaths_known=False,
            calm_at=random.uniform(4.0, 9.0),
        )

    def _plan_moves(self, random: Random, swarm: Swarm) -> None:
        for bucket in range(LAYOUT.buckets):
            for _ in range(random.randint(0, self.moves)):
                self.world.after(random.random() * swarm.calm_at, partial(self._begin_move, bucket))

    def _plan_faults(self, random: Random, swarm: Swarm) -> None:
        self._plan_moves(random, swarm)
        if random.random() < 0.4:
            self.world.after(random.random() * swarm.calm_at, self._hang)
        if random.random() < 0.2:
            self.world.after(random.random() * swarm.calm_at, self._restart)

    def _begin_move(self, bucket: int) -> None:
        """Its keys go one by one, in any order; it may be left as it is for longer than a ttl."""
        engine, random = self.engine, self.world.random
        if bucket in engine.moving:
            return
        others = [number for number in range(self.masters) if number != engine.home[bucket]]
        target = others[0] if len(others) == 1 else random.choice(others)
        self.truth.sometimes("slot begins to move")
        self.world.note("slot begins to move", bucket, target)
        engine.moving[bucket] = target
        lasting = random.choice([0.05, 0.5, 2.5]) * self.swarm.ttl
        if self.world.now < self._unknown_until:
            engine.excused[bucket] = self._unknown_until + lasting + self.swarm.ttl
        for key in sorted(engine.keys_of(bucket)):
            self.world.after(random.random() * lasting, partial(self._move, bucket, key))
        self.world.after(lasting, partial(self._end_move, bucket))

    def _move(self, bucket: int, key: str) -> None:
        if self._is_stuck():
            return
        engine = self.engine
        source, target = engine.home[bucket], engine.moving[bucket]
        self.world.note("key moves", key)
        engine.masters[source].hand_over(key, engine.masters[target])

    def _is_stuck(self) -> bool:
        """Whether nothing can be moved, since one of the masters hangs."""
        return any(master.hung for master in self.engine.masters)

    def _end_move(self, bucket: int) -> None:
        engine = self.engine
        if self._is_stuck():
            self.world.after(0.1, partial(self._end_move, bucket))
            return
        for key in sorted(engine.keys_of(bucket)):
            self._move(bucket, key)
        if any(LAYOUT.bucket(belief.holding.key) == bucket for belief in self.truth.beliefs):
            self.truth.sometimes("lease outlived a move")
        engine.home[bucket] = engine.moving.pop(bucket)
        self._moved_at[bucket] = self.world.now
        self.truth.sometimes("slot has moved")
        self.world.note("slot has moved", bucket)

    def _hang(self) -> None:
        master = self.world.random.choice(self.engine.masters)
        lasting = self.world.random.random() * self.longest_hang * self.swarm.ttl
        self.truth.disturb("master hangs", lasting)
        self.world.note("FAULT hangs", master.number)
        master.hang()
        self._excuse(master.number, lasting)
        self.world.after(lasting, master.go_on)

    def _restart(self) -> None:
        master = self.world.random.choice(self.engine.masters)
        self.truth.disturb("master restarts", self.engine.recovery)
        self.world.note("FAULT restarts", master.number)
        master.restart()
        self._excuse(master.number, 0.0)

    def _excuse(self, number: int, lasting: float) -> None:
        """Leases are lost that are there, or on their way to it or from it.

        If clocks differ, so are those that move meanwhile or have just moved, which is more than need be.
        """
        engine = self.engine
        lately = self.world.now - self.swarm.ttl
        ends = self.world.now + lasting
        self._unknown_until = ends + MAP_READ_EVERY if engine.apart else 0.0
        for bucket, home in engine.home.items():
            if number in (home, engine.moving.get(bucket)):
                engine.excused[bucket] = ends + self.swarm.ttl
            elif bucket in engine.moving or self._moved_at.get(bucket, lately) > lately:
                engine.excused[bucket] = self._unknown_until + self.swarm.ttl

    def _latest_end(self) -> float:
        return super()._latest_end() + 2 * self.engine.apart + 20.0

    def _client_in(self, process: Process) -> Client:
        return ClusterClient(process, self.network, self.swarm, self.truth, self.engine)


class MovingSchedule(ClusterSchedule):
    """Slots move on and on, so that the differences of several clocks may add up within a ttl."""

    masters = 3
    moves = 6

    def _plan_faults(self, random: Random, swarm: Swarm) -> None:
        self._plan_moves(random, swarm)


def moving_schedule(seed: int, scripted: Scripted = AS_SHIPPED) -> ClusterSchedule:
    """Return the schedule of a seed in which slots move often."""
    return MovingSchedule(Random(seed), scripted)


class HangingSchedule(ClusterSchedule):
    """A master hangs for several ttls, and an answer is waited for as long as half a ttl.

    So whoever waits for it, one time after the other, loses the leases that are elsewhere.
    """

    masters = 3
    longest_hang = 4.0

    def _drawn(self, random: Random) -> Swarm:
        return replace(
            super()._drawn(random),
            **dict.fromkeys(("max_hold", "unrenewed", "several_keys", "zero_wait"), 0.0),
            **dict.fromkeys(("stops", "crashes", "closes"), 0),
            keys=3,
            ttl=2.0,
            section=6.0,
            endless_wait=1.0,
            op_timeout=0.9,
        )

    def _plan_faults(self, random: Random, swarm: Swarm) -> None:
        for _ in range(2):
            self.world.after(random.random() * swarm.calm_at, self._hang)


def hanging_schedule(seed: int) -> ClusterSchedule:
    """Return the schedule of a seed in which masters hang."""
    return HangingSchedule(Random(seed), AS_SHIPPED)


def cluster_schedule(seed: int, scripted: Scripted = AS_SHIPPED) -> ClusterSchedule:
    return ClusterSchedule(Random(seed), scripted)


CLUSTER = Campaign("cluster", cluster_schedule, SOMETIMES)
"""The store and its scripts on a cluster whose slots move."""

MOVING = Campaign("moving", moving_schedule, ("slot has moved",))
"""The same, with slots that move several times within a ttl."""

HANGING = Campaign("hanging", hanging_schedule, ("master hangs",))
"""The same, with masters that hang for long."""

MUTANTS: Final = (
    Mutant(
        "a half-moved slot has no locks",
        Wire,
        "_followed",
        "if call.script not in _OF_LOCK_ALONE:",
        "if True:",
        ("P14",),
        seed=1143,
    ),
    Mutant(
        "a lock by itself is sought where it was",
        Wire,
        "_followed",
        "if type(reply) is exceptions.AskError:",
        "if False:",
        ("P14",),
        seed=7824,
    ),
)
"""The store with one of its former defects."""


ASKED_AGAIN: Final = Mutant(
    "a master that hangs is asked again by each caller",
    SimulatedNodes,
    "address_of",
    "in self._hung",
    "in ()",
    ("P14",),
)
"""A caller waits for a master although others have found that it hangs."""

IN_TURN: Final = Mutant(
    "masters are asked one after the other",
    Wire,
    "run_all",
    "await self.links.together(works)",
    "for work in works:\n                    await work",
    ("P14",),
)
"""One heartbeat waits for a master that hangs before the next is sent to another."""


def clocks_agree(script: Script) -> Script:
    """The scripts, where they take the clocks of all masters for one."""
    text = script.text.replace("lease.run ~= RUN", "false").replace("lock.run ~= RUN", "false")
    return script._replace(text=text)
