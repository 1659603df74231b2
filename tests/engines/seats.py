"""Callers that hold a key together, each up to its limit: they ask the store itself."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.waiting import PATIENCE, eventually, now
from weblock._core.ports import Pulse, Reply, Store
from weblock._core.table import Answer, Claim, Held
from weblock._runtime.blocking import BlockingRuntime, drive
from weblock.stores.redis import open_engine

ROOM = 1_000
"""Places in the queue, more than any test takes."""


class Seat:
    """One caller of a key."""

    def __init__(self, store: Store, key: str, limit: int, ttl: float = PATIENCE) -> None:
        self._store = store
        self._key = key
        self._limit = limit
        self._ttl = ttl
        self.owner = ""

    def ask(self, *, room: int = ROOM) -> Answer:
        """Ask for a lease, as a new owner."""
        self.owner = secrets.token_hex(16)
        claim = Claim(self.owner, self._store.process, self._ttl, "a seat", self._limit)
        return drive(self._store.acquire(self._key, claim, room=room)).answer

    def beat(self) -> Answer:
        """Send a waiter's heartbeat."""
        return self._answer(Pulse(self._key, self.owner, self._ttl, waits=True))

    def renew(self) -> Answer:
        """Send a holder's heartbeat."""
        return self._answer(Pulse(self._key, self.owner, self._ttl))

    def take(self) -> Held:
        """Wait until it has a lease. On a slow machine, its place may lapse: then it asks again."""
        if isinstance(held := self.ask(), Held):
            return held
        return self.wait()

    def wait(self) -> Held:
        """Go on waiting until it has a lease."""
        answers: list[Held] = []

        def is_held() -> bool:
            answer = self.beat()
            if type(answer).__name__ == "Gone":
                answer = self.ask()
            answers.extend([answer] if isinstance(answer, Held) else [])
            return bool(answers)

        eventually(is_held)
        return answers[0]

    def _answer(self, pulse: Pulse) -> Answer:
        (reply,) = drive(self._store.refresh([pulse]))
        assert isinstance(reply, Reply)
        return reply.answer

    def release(self) -> Answer:
        return drive(self._store.release(self._key, self.owner)).answer


class Turn(NamedTuple):
    """A time during which a caller held the key."""

    entered: float
    left: float
    limit: int
    fence: int


@contextmanager
def store_of(url: str) -> Iterator[Store]:
    """A store of its own."""
    engine = open_engine(url)
    try:
        yield engine.connect(BlockingRuntime())
    finally:
        engine.close()


def take_turns(url: str, path: str, limits: Sequence[int], rounds: int) -> None:
    """Hold one key ``rounds`` times in each of several threads, one for each limit, and note when."""
    turns: list[Turn] = []

    def work(store: Store, limit: int) -> None:
        for _ in range(rounds):
            seat = Seat(store, "turns", limit)
            fence = seat.take().fence
            entered = now()
            time.sleep(0)
            turns.append(Turn(entered, now(), limit, fence))
            seat.release()

    with store_of(url) as store:
        threads = [threading.Thread(target=work, args=(store, limit)) for limit in limits]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    Path(path, f"{os.getpid()}.json").write_text(json.dumps(turns))


def turns_in(folder: Path) -> list[Turn]:
    """The turns of all processes, in the order in which they began."""
    return sorted(
        Turn(*each) for path in folder.glob("*.json") for each in json.loads(path.read_text())
    )


def crowded(turns: Sequence[Turn]) -> list[Turn]:
    """The turns that began while there were as many as their limits, or that of one of them, allow."""
    found, at_once = [], list[Turn]()
    for turn in turns:
        at_once = [each for each in at_once if each.left > turn.entered]
        at_once.append(turn)
        if len(at_once) > min(each.limit for each in at_once):
            found.append(turn)
    return found
