"""A waiter that notices late that it is its turn, under the simulator."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from weblock._core.holding import Terms
from weblock._core.table import HANDOFF

from .simulation.client import Client
from .simulation.engine import Acquire, EngineServer, Request
from .simulation.network import Network
from .simulation.process import Process
from .simulation.swarm import Swarm
from .simulation.world import World

TERMS = Terms(ttl=10.0, max_hold=None, renew=True, max_waiters=10, label="")


class Asked(Counter[str]):
    """How often each process asked for a key. Whatever else is told is of no interest."""

    def sent(self, process: Process, request: Request) -> None:
        self[process.name] += isinstance(request, Acquire)

    def __getattr__(self, _told: str) -> Any:
        return lambda *_facts: None


class HandOver:
    """A key that is handed to a process which is stopped then, for ``stopped`` seconds.

    After it has got the key, it is stopped for as long as a hand-over lasts.
    """

    kept = False
    """Whether it has the lease even so."""

    def __init__(self, stopped: float) -> None:
        self.asked = Asked()
        self._stopped = stopped
        self._world = World(Random(1))
        swarm = replace(
            Swarm.drawn(Random(1)),
            delay=0.005,
            op_timeout=1.0,
            late=0.0,
            lost_requests=0.0,
            lost_replies=0.0,
            lost_notifications=0.0,
            duplicates=0.0,
        )
        self._network = Network(self._world, swarm)
        engine = EngineServer(
            self._world, granularity=0.0, alive=lambda _process: True, notify=self._network.notify
        )
        self._network.connect(engine, self.asked)
        self._holder, self._waiter = (self._client(name, swarm) for name in ("holder", "waiter"))
        self._holder.process.spawn(self._hold(), "hold")
        try:
            self._world.run(until=60.0)
        finally:
            self._holder.process.close()
            self._waiter.process.close()

    def _client(self, name: str, swarm: Swarm) -> Client:
        process = Process(self._world, name, rate=1.0, offset=0.0)
        return Client(process, self._network, swarm, self.asked)

    async def _hold(self) -> None:
        hands = await self._holder.locker.acquire(["k"], TERMS, None)
        self._waiter.process.spawn(self._wait(), "wait")
        await self._holder.runtime.sleep(3.0)
        await self._holder.locker.release(hands)
        self._stop(self._stopped)

    async def _wait(self) -> None:
        (lease,) = await self._waiter.locker.acquire(["k"], TERMS, None)
        self._stop(HANDOFF)
        await self._waiter.runtime.sleep(0.001)
        self.kept = lease.held(self._waiter.process.now())

    def _stop(self, seconds: float) -> None:
        self._waiter.process.stop()
        self._world.after(seconds, self._waiter.process.resume)


@pytest.mark.parametrize("late", [0.55, 0.75, 0.95])
def test_a_late_turn_is_confirmed_before_the_section_begins(late: float) -> None:
    """A process that got no processor for most of a hand-over has the whole ttl when it begins."""
    turn = HandOver(stopped=late * HANDOFF)
    assert turn.kept
    assert turn.asked["waiter"] == 2


@pytest.mark.parametrize("late", [0.0, 0.2, 0.45])
def test_a_turn_that_is_noticed_in_time_costs_no_request(late: float) -> None:
    """A waiter asks for the key once, when it joins the queue, and not again when it gets it."""
    assert HandOver(stopped=late * HANDOFF).asked["waiter"] == 1
