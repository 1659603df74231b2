"""Schedules of a quorum: servers that crash, forget, pause and drift, each for itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final

from weblock._core.holding import DRIFT

from .campaign import Campaign
from .faults import Faults
from .network import Network
from .process import Process
from .properties import Property
from .quorum_client import QuorumClient
from .quorum_servers import Quorum, QuorumServer
from .quorum_truth import PROPERTIES, QuorumTruth
from .redis_campaign import AS_SHIPPED, Scripted
from .redis_stores import Log
from .schedule import AUDITS_AFTERWARDS, Schedule
from .swarm import Swarm
from .world import World

SOMETIMES: Final = (
    "engine forgot leases",
    "reply lost after a grant",
    "request applied after its sender gave up",
    "attempt got LockTimeout",
    "attempt got EngineUnavailable",
    "lease lost: expired",
    "some servers were given back",
    "a fence was raised",
    "a late claim was refused by its mark",
    "a lease was repaired",
    "holder killed",
    "a minority was at fault, and nothing else",
)


@dataclass(frozen=True)
class Variant:
    """What of a schedule is not decided by its seed."""

    scripted: Scripted = AS_SHIPPED
    recovers: bool = True
    drift: float = DRIFT
    """By how much two clocks may differ in rate."""
    forgetful: bool = False
    """Servers lose their data again and again, while leases are long."""
    one_by_one: bool = False
    """One server is cut off, then another loses its data, then the third goes down."""
    crowded: bool = False
    """Ever more callers wait for one key, and nothing fails."""
    behind: float = 0.0
    """By how many seconds all clocks but that of the first server are behind."""
    properties: tuple[type[Property], ...] = PROPERTIES


class MinorLog(Log):
    """Hears of a server that is part of a minority: what it does excuses nothing."""

    truth: QuorumTruth

    def __init__(self, truth: QuorumTruth) -> None:
        super().__init__(truth)
        self.disturb = lambda _what, _lasting: None


class QuorumFaults(Faults):
    """The faults of servers strike one of them, or one of the few that are to have faults."""

    _schedule: QuorumSchedule

    def _victim(self) -> QuorumServer:
        return self._world.random.choice(self._schedule.victims)

    def _stop_engine(self) -> None:
        server = self._victim()
        self._begin("engine stopped", server)
        server.stop()
        self._world.after(self._lasting(2.0), partial(self._resume, server))

    def _resume(self, server: QuorumServer) -> None:
        self._end("engine stopped")
        server.resume()

    def _restart_engine(self) -> None:
        server = self._victim()
        self._begin("engine down", server)
        swarm = self._schedule.swarm
        server.crash(forget=swarm.amnesia and self._world.random.random() < 0.7)
        self._world.after(self._lasting(1.0), partial(self._start, server))

    def _start(self, server: QuorumServer) -> None:
        self._end("engine down")
        server.restart()

    def _begin(self, what: str, server: QuorumServer) -> None:
        if self._schedule.truth.minor:
            self._world.note("FAULT", what, server.number)
        else:
            self._truth.begin_fault(f"{what}")

    def _end(self, what: str) -> None:
        if not self._schedule.truth.minor:
            self._truth.end_fault(what)


class OneByOne(QuorumFaults):
    """What a lease was granted by is gone in the end, though two servers were there at any time."""

    def __init__(self, schedule: QuorumSchedule) -> None:
        super().__init__(schedule)
        first, second, third = schedule.engine.servers  # type: ignore[attr-defined]
        lost_at = 3.0 + self._world.random.random()
        recovered_at = lost_at + schedule.engine.recovery + 2.0
        self._strike(third, at=0.5, until=lost_at - 0.5)
        self._strike(second, at=lost_at, until=lost_at + 0.1, forget=True)
        self._strike(first, at=recovered_at, until=schedule.swarm.calm_at)

    def _strike(
        self, server: QuorumServer, *, at: float, until: float, forget: bool = False
    ) -> None:
        def crash() -> None:
            self._begin("engine down", server)
            server.crash(forget=forget)

        self._world.after(at, crash)
        self._world.after(until, partial(self._start, server))


def calm(swarm: Swarm) -> Swarm:
    """One key, and nothing fails by itself."""
    nothing = (
        "late",
        "lost_requests",
        "lost_replies",
        "lost_notifications",
        "duplicates",
        "cancels",
    )
    never = ("engine_stops", "restarts", "stops", "crashes", "closes", "several_keys", "max_hold")
    return replace(swarm, **dict.fromkeys(nothing, 0.0), **dict.fromkeys(never, 0), keys=1)


def _crowded(swarm: Swarm) -> Swarm:
    """Locks that are wanted faster than they are released."""
    return replace(
        calm(swarm),
        processes=4,
        attempts=20,
        ttl=3.0,
        section=0.6,
        spread=8.0,
        room=100,
        zero_wait=0.0,
        endless_wait=1.0,
        unrenewed=0.0,
        calm_at=14.0,
    )


def _one_by_one(swarm: Swarm) -> Swarm:
    """Locks now and then, on a network that is calm."""
    return replace(
        calm(swarm),
        ttl=1.0,
        section=0.1,
        attempts=8,
        spread=14.0,
        calm_at=14.0,
    )


class QuorumSchedule(Schedule):
    """Processes that lock on several servers."""

    truth: QuorumTruth

    def __init__(self, random: Random, variant: Variant = Variant()) -> None:
        swarm = replace(Swarm.drawn(random, attempts=10), deaths_known=False, multiplexed=False)
        swarm = replace(
            swarm,
            delay=min(swarm.delay, 0.005),
            engine_stops=swarm.engine_stops * random.randint(1, 3),
            restarts=swarm.restarts * random.randint(1, 3),
            multiplexed=random.random() < 0.5,
            amnesia=random.random() < 0.6,
        )
        if random.random() < 0.4:  # All want one key at once, and wait for it.
            swarm = replace(swarm, keys=1, spread=0.05, endless_wait=0.9, zero_wait=0.0, room=100)
            if random.random() < 0.4:  # And several servers forget the queue.
                swarm = replace(swarm, attempts=10, ttl=0.6, section=0.3, restarts=4, amnesia=True)
        if variant.forgetful:
            swarm = replace(
                swarm, restarts=6, amnesia=True, ttl=3.0, section=3.0, keys=1, unrenewed=1.0
            )
        if variant.one_by_one:
            swarm = _one_by_one(swarm)
        sought = variant.forgetful or variant.one_by_one  # Some faults, and no others.
        crowded = variant.crowded or (random.random() < 0.1 and not sought)
        if crowded:
            swarm = _crowded(swarm)
        self.swarm = swarm
        self.variant = variant
        self.world = world = World(random)
        world.most_events *= 5
        count = random.choice([3, 3, 3, 5]) if not variant.one_by_one else 3
        minor = random.random() < 0.3 and not (sought or crowded)
        if minor:  # Who waits for one that hangs must not lose what the others gave meanwhile.
            self.swarm = swarm = replace(swarm, op_timeout=min(swarm.op_timeout, swarm.ttl / 4))
        self._random = random
        recovery = max(2 * swarm.ttl, 2.0) if variant.recovers else 0.0
        drift = variant.drift / 2 if swarm.drift or variant.drift > DRIFT else 0.0
        self._drift = drift
        bad = [Network(world, swarm) for _ in range(count)]
        servers = [
            QuorumServer(
                number,
                rate=self._rate(),
                skew=random.uniform(-0.2, 0.2) - (variant.behind if number else 0.0),
                world=world,
                notify=network.notify,
                recovery=recovery,
                scripted=variant.scripted,
            )
            for number, network in enumerate(bad)
        ]
        quorum = Quorum(servers, recovery)
        self.engine = quorum  # type: ignore[assignment]
        self.victims = servers[: quorum.majority - 1] if minor else servers
        well = replace(
            swarm,
            late=0.0,
            lost_requests=0.0,
            lost_replies=0.0,
            lost_notifications=0.0,
            duplicates=0.0,
        )
        self.networks = [
            bad[number] if server in self.victims else Network(world, well)
            for number, server in enumerate(servers)
        ]
        self.truth = truth = QuorumTruth(world, swarm, quorum, minor=minor)
        for server, network in zip(servers, self.networks, strict=True):
            server.observer = truth
            server._notify = network.notify
            log = MinorLog(truth) if minor else Log(truth)
            network.connect(server, log)  # type: ignore[arg-type]
        if minor:
            truth.well = [each for each in servers if each not in self.victims]
            truth.sometimes("a minority was at fault, and nothing else")
        truth.add([each(truth) for each in variant.properties])
        world.after_event = truth.after_event
        self._slots = [self._new_client(slot) for slot in range(swarm.processes)]
        self._audits_left = AUDITS_AFTERWARDS
        self._planned = swarm.attempts
        for number in range(swarm.attempts):
            self._plan_attempt(number)
        OneByOne(self) if variant.one_by_one else QuorumFaults(self)
        world.after(swarm.calm_at, self._calm_down)

    def _rate(self) -> float:
        return 1 + self._drift * self._random.choice([-1.0, 1.0, self._random.uniform(-1, 1)])

    def _new_client(self, slot: int) -> Any:
        random = self._random
        name = f"p{slot}.{len(self.truth.clients)}"
        process = Process(self.world, name, rate=self._rate(), offset=random.uniform(0, 100))
        client = QuorumClient(process, self.networks, self.engine, self.swarm, self.truth)  # type: ignore[arg-type]
        self.truth.clients.append(client)
        return client

    def _calm_down(self) -> None:
        for network in self.networks:
            network.faulty = False


def quorum_schedule(seed: int, variant: Variant = Variant()) -> QuorumSchedule:
    return QuorumSchedule(Random(seed), variant)


QUORUM = Campaign("quorum", quorum_schedule, SOMETIMES)
"""Three and five servers, of which a majority must agree."""
