"""Schedules of the store that is shipped, which speaks bytes with a server that runs its Lua."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from .campaign import Campaign
from .client import Client
from .engine import Request
from .network import Network
from .process import Process
from .properties import Cancelled, WakeUp
from .redis_campaign import AS_SHIPPED, Scripted
from .redis_links import SimulatedLinks, Subscription, WitnessedStore
from .redis_server import RedisServer
from .schedule import Schedule
from .swarm import Swarm
from .truth import Truth

SOMETIMES: Final = (
    "acquire in quarantine: Waiting",
    "acquire in quarantine: Busy",
    "refresh in quarantine: Held",
    "refresh in quarantine: Gone",
    "refresh in quarantine: Waiting",
    "release in quarantine: Released",
    "release in quarantine: Gone",
    "script was not known",
    "connection reset by a restart",
    "notification while nobody listened",
    "notification on a dead subscription",
    "lease found by heartbeat after a lost notification",
    "late claim refused by its mark",
    "request applied after its sender gave up",
    "renewal answered Gone",
    "engine forgot leases",
    "engine recovers",
    "everything was flushed",
    "scripts were flushed",
)


class Log:
    """What the truth hears of the network: not what the server did not run.

    And not what was sent: a store may first have to connect, so it hears that from the store.
    """

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.disturb = truth.disturb
        self.sometimes = truth.sometimes
        self.notification_lost = truth.notification_lost

    def sent(self, process: Process, request: Request) -> None: ...

    def reply_lost(self, request: Request, replies: Any) -> None:
        if not replies.refused:
            self._truth.reply_lost(request, replies)

    def answered(self, request: Request, replies: Any) -> None:
        if not replies.refused:
            self._truth.answered(request, replies)


class StoreClient(Client):
    """A process with the store that is shipped."""

    def __init__(
        self, process: Process, network: Network, swarm: Swarm, truth: Truth, engine: RedisServer
    ) -> None:
        self._engine = engine
        self._truth = truth
        self._subscription: Subscription | None = None
        super().__init__(process, network, swarm, truth)

    def _store(self) -> Any:
        if self._subscription is None:
            self._subscription = Subscription(self.process, self.switchboard, self._engine)
        links = SimulatedLinks(
            self.process, self._network, self._engine, self._swarm, self._subscription
        )
        return WitnessedStore(links, self._engine.recovery, self._truth.sent)


class StoreSchedule(Schedule):
    """Adds to the faults those that only connections know."""

    engine: RedisServer

    def __init__(self, random: Random, swarm: Swarm, scripted: Scripted, recovery: float) -> None:
        super().__init__(random, swarm, partial(RedisServer, recovery=recovery, scripted=scripted))
        self.network.connect(self.engine, Log(self.truth))  # type: ignore[arg-type]
        self._allow_for_connecting()
        self._plan(0.15, self._flush)
        self._plan(0.3, self._flush_scripts)
        self._plan(0.3, self._deafen)

    def _plan(self, share: float, fault: Any) -> None:
        random = self.world.random
        if not self.swarm.calm and random.random() < share:
            self.world.after(random.random() * self.swarm.calm_at, fault)

    def _allow_for_connecting(self) -> None:
        """A call may need a connection first: what it says and asks takes three more round trips."""
        more = 8 * self.swarm.delay * 1.2
        for each in self.truth.properties:
            each.round_trips += more
            if isinstance(each, WakeUp):
                each.heartbeat += more
            if isinstance(each, Cancelled):
                each.bound += more

    def _flush(self) -> None:
        self.truth.sometimes("everything was flushed")
        self.engine.flush()

    def _flush_scripts(self) -> None:
        """As safe as nothing: no property makes any allowance."""
        self.truth.sometimes("scripts were flushed")
        self.world.note("SCRIPT FLUSH")
        self.engine.loaded.clear()

    def _deafen(self) -> None:
        """A subscription dies, and nobody notices for a while."""
        client = self.world.random.choice(self._slots)
        self.world.note("is deaf", client.process.name)
        self.engine.deaf.add(client.process.name)
        lasting = 3 * self.world.random.random()
        assert isinstance(client, StoreClient)
        assert client._subscription is not None
        self.world.after(lasting, client._subscription.renew, client.process)

    def _client_in(self, process: Process) -> Client:
        return StoreClient(process, self.network, self.swarm, self.truth, self.engine)


def store_schedule(
    seed: int, scripted: Scripted = AS_SHIPPED, recovery: float | None = None
) -> StoreSchedule:
    random = Random(seed)
    swarm = Swarm.drawn(random).mixed(Random(f"limits {seed}"))
    swarm = replace(swarm, deaths_known=False, asks=0.0)
    # Else a connection may take longer to make than a short max_hold lasts.
    swarm = replace(swarm, delay=min(swarm.delay, 0.005))
    return StoreSchedule(random, swarm, scripted, 2 * swarm.ttl if recovery is None else recovery)


STORE = Campaign("store", store_schedule, SOMETIMES)
"""The store and its connections, on a server that runs the scripts."""
