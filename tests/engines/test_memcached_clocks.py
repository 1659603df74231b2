"""Machines whose clocks disagree, on a real server, with whatever may happen between two requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import fresh_memcached
from weblock._core.holding import DRIFT, Anchor
from weblock._core.ports import Pulse, Reply
from weblock._core.table import Claim, Held
from weblock._runtime.runtimes import BlockingRuntime, drive
from weblock.errors import EngineUnavailable
from weblock.stores.memcached import open_engine
from weblock.stores.memcached.items import Observer

TTL = 5.0


class TwoHold(Exception):
    """What may not happen."""


class Network:
    """The driver's client, in front of which requests and replies take their time."""

    def __init__(self, client: Any, world: World) -> None:
        self._client = client
        self._world = world

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in ("gets_many", "cas", "raw_command"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._world.something_happens()
            reply = found(*args, **kwargs)
            self._world.something_happens()
            if self._world.random.random() < 0.02:
                raise OSError("the reply was lost")
            return reply

        return call


class Machine:
    """A process that holds, waits, renews, releases and sleeps, by a clock of its own."""

    def __init__(self, url: str, world: World, number: int) -> None:
        self.world = world
        self.name = f"machine-{number}"
        self.busy = False
        self.owner = ""
        self.fence = 0
        self.deadline = 0.0
        self.offset = world.random.uniform(0, 1e7)
        self.rate = 1 + world.random.uniform(-DRIFT / 2, DRIFT / 2) * 0.99
        self.engine = open_engine(url)
        runtime = BlockingRuntime()
        runtime.now = self.now
        pool = self.engine.pool
        opened = pool._connect
        pool._connect = lambda: Network(opened(), world)
        self.engine.poller.watch = lambda *_waiter, first: None  # Its thread has a time of its own.
        self.store = self.engine.connect(runtime)

    def now(self) -> float:
        return self.offset + self.rate * self.world.time

    @property
    def holds(self) -> bool:
        return self.now() < self.deadline

    def act(self) -> None:
        """Does one of the things that a process may do now."""
        self.busy = True
        try:
            self._act()
        except EngineUnavailable:
            pass  # It is left open whether that took effect.
        finally:
            self.busy = False

    def _act(self) -> None:
        if not self.owner:
            self._ask(f"{self.name}-{self.world.random.random()}")
        elif self.world.random.random() < 0.2:
            owner, self.owner, self.deadline = self.owner, "", 0.0
            drive(self.store.release("key", owner))
        elif self.world.random.random() < 0.5:
            self._ask(self.owner)
        else:
            sent = self.now()
            (reply,) = drive(self.store.refresh([Pulse("key", self.owner, TTL)]))
            if isinstance(reply, Reply):
                self._hear(reply, sent)

    def _ask(self, owner: str) -> None:
        self.owner, sent = owner, self.now()
        claim = Claim(owner, self.store.process, TTL, "")
        self._hear(drive(self.store.acquire("key", claim, room=9)), sent)

    def _hear(self, reply: Reply, sent: float) -> None:
        if isinstance(reply.answer, Held):
            deadline = Anchor(reply.now, sent).deadline(
                reply.answer.until, at_most=TTL, drift=DRIFT
            )
            if self.now() < deadline:
                if not self.holds:
                    self.world.begins(self, reply.answer.fence)
                self.deadline = max(self.deadline, deadline)
                return
        if not self.holds:
            self.owner = ""


class World:
    """True time, and who acts when."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.time = 0.0
        self.fence = 0
        self.leases = 0
        url = fresh_memcached()
        self.machines = [Machine(url, self, number) for number in range(4)]

    def run(self, acts: int) -> int:
        """How many leases there were. Raises ``TwoHold``."""
        try:
            for _ in range(acts):
                self.something_happens()
                self._one_acts()
        finally:
            for each in self.machines:
                each.engine.close()
        return self.leases

    def something_happens(self) -> None:
        """Time passes: mostly little, sometimes a whole ttl. Others may act meanwhile."""
        chance = self.random.random()
        self.time += self.random.uniform(0, 0.2 if chance < 0.9 else 1.3 * TTL)
        if chance < 0.3:
            self._one_acts()

    def begins(self, holder: Machine, fence: int) -> None:
        """Somebody believes that it holds from now on, if it has not before."""
        if any(each.holds for each in self.machines if each is not holder):
            raise TwoHold
        if fence < self.fence:
            raise TwoHold
        self.leases += fence > self.fence
        self.fence = fence

    def _one_acts(self) -> None:
        idle = [each for each in self.machines if not each.busy]
        if idle:
            self.random.choice(idle).act()


@pytest.mark.parametrize("seed", range(3))
def test_at_most_one_holds_whatever_the_clocks_say(seed: int) -> None:
    """Of hundreds of leases no two are held at once in true time, and fences increase."""
    assert World(seed).run(300) > 15


def _worlds(count: int) -> None:
    for seed in range(count):
        World(seed).run(300)


def _as_written(self: Any, item: str, stamps: Any, now: float) -> Any:
    return {each: each.written for each in stamps}


def _from_the_first_lease(self: Any, item: str, stamps: Any, now: float) -> Any:
    known = self.__dict__.setdefault("owners", {})
    theirs = [each for each in stamps if each.writer != self.process]
    return {each: known.setdefault(each.entry[0], now) for each in theirs}


_first = Observer.first_seen


def _in_advance(self: Any, item: str, stamps: Any, now: float) -> Any:
    return {each: seen - 2 for each, seen in _first(self, item, stamps, now).items()}


@pytest.mark.parametrize("mistake", [_as_written, _from_the_first_lease, _in_advance])
def test_a_mistake_about_time_is_found_out(
    mistake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of others' clocks, a renewal taken for the lease before it, an earlier start: two hold."""
    monkeypatch.setattr(Observer, "first_seen", mistake)
    with pytest.raises(TwoHold):
        _worlds(20)


def test_a_holder_that_counts_from_the_reply_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that is counted from when the lease was granted, and not from before, comes too late."""
    monkeypatch.setattr(Anchor, "deadline", lambda self, until, **_limits: until + 1)
    with pytest.raises(TwoHold):
        _worlds(20)
