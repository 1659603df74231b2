"""Schedules of a ZooKeeper ensemble: servers that lag and fail, sessions that expire, processes that stop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final

from weblock._core.holding import DRIFT
from weblock.stores.zookeeper import Settings

from .campaign import Campaign
from .client import Client
from .faults import Faults
from .process import Process
from .properties import Property
from .schedule import AUDITS_AFTERWARDS, Schedule
from .swarm import Swarm
from .world import World
from .zookeeper_client import ZooKeeperClient
from .zookeeper_servers import SERVERS, Connection, Ensemble, Server
from .zookeeper_truth import PROPERTIES, ZooKeeperTruth

SOMETIMES: Final = (
    "lease expired while its holder was stopped",
    "request applied after its sender gave up",
    "an answer was lost",
    "a client found its session expired",
    "session expired",
    "leader stood still",
    "server lagged",
    "server down",
    "leader elected",
    "expired lease passed on",
    "cancelled while waiting",
    "cancelled while holding",
    "holder killed",
    "attempt got LockTimeout",
    "attempt got EngineUnavailable",
    "lease lost: expired",
    "several held a key",
)


@dataclass(frozen=True)
class Variant:
    """What of a schedule is not decided by its seed."""

    drift: float = DRIFT
    """By how much two clocks may differ in rate."""
    properties: tuple[type[Property], ...] = tuple(PROPERTIES)


class EnsembleFaults(Faults):
    """Faults of the leader, and of single servers, that last for several ttl."""

    _schedule: ZooKeeperSchedule

    def __init__(self, schedule: ZooKeeperSchedule) -> None:
        super().__init__(schedule)
        self._longest = 3 * schedule.swarm.ttl
        self._plan(schedule.expiries, self._expire)
        self._ensemble.after_creation = self._when_created

    @property
    def _ensemble(self) -> Ensemble:
        return self._schedule.ensemble

    def _when_created(self, connection: Connection) -> None:
        """Strikes where it hurts: a lease or a place has just been made, and its owner does not know."""
        random, schedule = self._world.random, self._schedule
        client = next(
            each for each in self._truth.clients if each.process is connection.client.process
        )
        if self._world.now >= schedule.swarm.calm_at or random.random() >= schedule.unlucky:
            return
        if random.random() < 0.5 and client.process.running:
            self._stop(client, self._lasting(3 * schedule.swarm.ttl))
            return
        self._truth.sometimes("an answer was lost")
        for server in self._ensemble.servers:
            if random.random() < 0.7:
                self._lag(server, self._lasting(2 * schedule.swarm.op_timeout))
        self._ensemble.cut(connection)

    def _stop(self, client: Client, lasting: float) -> None:
        self._truth.begin_fault("process stopped")
        self._world.note("stops", client.process.name)
        client.process.stop()
        self._world.after(lasting, partial(self._resume_process, client))

    def _lag(self, server: Server, lasting: float) -> None:
        self._begin("server lagged", lasting, partial(self._catch_up, server))
        server.lags = True

    def _stop_engine(self) -> None:
        lasting = self._lasting(self._longest)
        if self._world.random.random() < 0.5:
            self._begin("leader stood still", lasting, self._ensemble.resume)
            self._ensemble.stop()
            return
        self._lag(self._some_server(), lasting)

    def _restart_engine(self) -> None:
        lasting = self._lasting(1.5)
        if self._world.random.random() < 0.5:
            self._begin("leader elected", lasting, partial(self._ensemble.elect, done=True))
            self._ensemble.elect(done=False)
            return
        server = self._some_server()
        self._begin("server down", lasting, partial(self._start, server))
        server.up = False
        self._ensemble.hang_up_all(server)

    def _close_process(self) -> None:
        """Ends the session of a process as well, when its keeper has given back what it could."""
        closing = [each for each in self._truth.clients if each.keeper.is_closed]
        super()._close_process()
        for client in self._truth.clients:
            if client.keeper.is_closed and client not in closing:
                client.process.after(self._schedule.swarm.op_timeout, client.engine.end)  # type: ignore[attr-defined]

    def _expire(self) -> None:
        sessions = [each for each in self._ensemble.sessions.values() if not each.over]
        if sessions:
            self._ensemble.expire(self._world.random.choice(sessions))

    def _some_server(self) -> Server:
        return self._world.random.choice(self._ensemble.servers)

    def _begin(self, what: str, lasting: float, end: Any) -> None:
        def over() -> None:
            self._truth.end_fault(what)
            end()

        self._truth.begin_fault(what)
        self._world.after(lasting, over)

    def _catch_up(self, server: Server) -> None:
        server.lags = False
        server.catch_up()

    def _start(self, server: Server) -> None:
        server.up = True


def _crowded(swarm: Swarm) -> Swarm:
    """All want one key at once, and wait for it, while answers get lost, and nothing else happens."""
    never = ("zero_wait", "max_hold", "limited", "cancels", "unrenewed")
    nothing = ("stops", "crashes", "closes", "engine_stops", "restarts")
    return replace(
        swarm,
        **dict.fromkeys(never, 0.0),
        **dict.fromkeys(nothing, 0),
        keys=1,
        processes=4,
        attempts=10,
        ttl=0.6,
        section=0.2,
        spread=0.5,
        endless_wait=0.95,
        room=100,
        calm_at=8.0,
    )


class ZooKeeperSchedule(Schedule):
    """Processes that lock on an ensemble."""

    truth: ZooKeeperTruth

    def __init__(self, random: Random, seed: int, variant: Variant = Variant()) -> None:
        swarm = Swarm.drawn(random, attempts=10).mixed(Random(f"limits {seed}"))
        self.swarm = swarm = replace(
            swarm,
            deaths_known=False,
            amnesia=False,
            asks=0.0,
            delay=min(swarm.delay, 0.005),
            engine_stops=swarm.engine_stops * random.randint(1, 3),
            restarts=swarm.restarts * random.randint(1, 2),
            closes=swarm.closes * random.randint(1, 3),
        )
        self.world = world = World(random)
        world.most_events *= 5
        self._random = random
        self._drift = variant.drift / 2 if swarm.drift or variant.drift > DRIFT else 0.0
        self.expiries = 0 if swarm.calm or random.random() < 0.6 else random.randint(1, 3)
        self.unlucky = 0.0 if swarm.calm or random.random() < 0.5 else random.choice([0.1, 0.3])
        if self.unlucky and random.random() < 0.5:
            self.swarm = swarm = _crowded(swarm)
        timeout = random.choice([1.5, 3.0, 6.0])
        ahead = 0.0
        if random.random() < 0.3:  # The servers' clocks differ, but sessions outlive leases.
            ahead, timeout, self.expiries = 60.0, max(timeout, 2 * swarm.ttl), 0
            elections = 0 if swarm.calm else random.randint(2, 5)
            self.swarm = swarm = replace(swarm, closes=0, restarts=elections)
        clocks = [(ahead * random.uniform(-1, 1), self._rate()) for _ in range(SERVERS)]
        self.settings = Settings(
            ("a:1", "b:1", "c:1"), session_timeout=timeout, timeout=swarm.op_timeout
        )
        self.ensemble = ensemble = Ensemble(world, swarm, clocks)
        self.engine = ensemble  # type: ignore[assignment]
        self.truth = truth = ZooKeeperTruth(world, swarm, ensemble, timeout)
        truth.add([each(truth) for each in variant.properties])
        world.after_event = truth.after_event
        self._slots = [self._new_client(slot) for slot in range(swarm.processes)]
        self._audits_left = AUDITS_AFTERWARDS
        self._planned = swarm.attempts
        for number in range(swarm.attempts):
            self._plan_attempt(number)
        EnsembleFaults(self)
        world.after(swarm.calm_at, self._calm_down)

    def _rate(self) -> float:
        return 1 + self._drift * self._random.choice([-1.0, 1.0, self._random.uniform(-1, 1)])

    def _new_client(self, slot: int) -> Any:
        name = f"p{slot}.{len(self.truth.clients)}"
        process = Process(self.world, name, rate=self._rate(), offset=self._random.uniform(0, 100))
        client = ZooKeeperClient(process, self.ensemble, self.settings, self.swarm, self.truth)
        self.truth.clients.append(client)
        return client

    def _calm_down(self) -> None:
        self.ensemble.faulty = False

    def _latest_end(self) -> float:
        """The dead are noticed later, when their sessions end."""
        return super()._latest_end() + 4 * self.settings.session_timeout

    def _time_to_forget(self) -> float:
        return super()._time_to_forget() + 2 * self.settings.session_timeout


def zookeeper_schedule(seed: int, variant: Variant = Variant()) -> ZooKeeperSchedule:
    return ZooKeeperSchedule(Random(seed), seed, variant)


ZOOKEEPER = Campaign("zookeeper", zookeeper_schedule, SOMETIMES)
"""The store of ZooKeeper, on an ensemble."""
