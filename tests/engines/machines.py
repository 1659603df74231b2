"""Processes that lock on one ZooKeeper, each with a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.servers.zookeeper import fresh_zookeeper
from tests.support.waiting import PATIENCE
from weblock._core.ports import Pulse
from weblock._core.table import Answer, Claim
from weblock._runtime.runtimes import BlockingRuntime, drive
from weblock.stores.zookeeper import open_engine
from weblock.stores.zookeeper.nodes import Snapshot


class Machine:
    """A process on a machine whose clock is set by hand."""

    def __init__(self, url: str, clock: float = 0) -> None:
        self.engine = open_engine(url)
        runtime: Any = BlockingRuntime()
        runtime.now = lambda: self.clock
        self.clock = clock
        self.store: Any = self.engine.connect(runtime)

    def claim(self, owner: str, limit: int = 1) -> Claim:
        return Claim(owner, "", 10, owner, limit)

    def acquire(self, owner: str, *, room: int = 9, limit: int = 1) -> Answer:
        return self.take(self.claim(owner, limit), room=room)

    def take(self, claim: Claim, *, room: int = 9) -> Answer:
        return drive(self.store.acquire("key", claim, room=room)).answer

    def renew(self, owner: str, ttl: float = 10) -> Answer:
        (reply,) = drive(self.store.refresh([Pulse("key", owner, ttl)]))
        return reply.answer

    def release(self, owner: str) -> Answer:
        return drive(self.store.release("key", owner)).answer

    def force_release(self) -> Answer:
        return drive(self.store.force_release("key")).answer

    def transfer(self, owner: str, claim: Claim, fence: int) -> Answer:
        return drive(self.store.transfer("key", owner, claim, fence=fence)).answer

    def snapshot(self) -> Snapshot:
        """What a look shows now, to be acted on later."""
        key = drive(self.store._wire.key("key"))
        return drive(self.store._wire.look(key))[0]

    def take_over(self, snapshot: Snapshot, owner: str, limit: int = 1) -> Any:
        """What comes of a turn that is taken as that look showed it."""
        self.engine.memory.owners.add(owner)
        return drive(self.store._take_turn(snapshot, self.claim(owner, limit)))


@contextmanager
def starting_machines() -> Iterator[Callable[..., Machine]]:
    """Starts machines that lock on one key, each with a clock of its own."""
    url = fresh_zookeeper(session_timeout=60, timeout=PATIENCE)  # Real time decides nothing here.
    started: list[Machine] = []

    def start(clock: float = 0) -> Machine:
        started.append(Machine(url, clock))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.engine.close()
