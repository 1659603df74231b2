"""What each operation costs the server: the commands that its script runs, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, micros
from weblock.stores.redis.scripts import Script

from .redis_model import RedisModel

SECOND: Final = 1_000_000
LAYOUT: Final = Layout("costs", 1)


class CountingModel(RedisModel):
    """Counts the commands that scripts run."""

    calls = 0

    def call(self, command: str, *args: Any) -> Any:
        self.calls += 1
        return super().call(command, *args)


class Rig:
    """One server that has been looked at just now, and keys on it."""

    def __init__(self, scripted: Callable[[Script], Script] = lambda script: script) -> None:
        self.now = 1_790_000_000_000_000
        self.model = CountingModel(lambda: self.now, lambda _channel, _payload: None)
        self._scripted = scripted
        self.acquire("warm", key="another", ttl=30)
        self.release("warm", key="another")

    def acquire(self, owner: str, *, room: int = 1000, key: str = "key", **of: Any) -> str:
        words = (owner, "p", "label", micros(of.get("ttl", 10)), str(room), of.get("ticket", "0"))
        return self.run(scripts.ACQUIRE, *words, *of.get("limits", ()), key=key)

    def release(self, owner: str, *, key: str = "key", void: float = 0) -> str:
        return self.run(scripts.RELEASE, owner, micros(void), key=key)

    def refresh(self, *owners: str, ttl: float = 10) -> str:
        words = [word for owner in owners for word in (owner, micros(ttl))]
        return self.run(scripts.BEAT, *words)

    def renew(self, *owners: str) -> str:
        words = [word for owner in owners for word in (owner, micros(10))]
        return self.run(scripts.RENEW, *words)

    def run(self, script: Script, *words: str, key: str = "key") -> str:
        """What it answers, without the details; the time of one more microsecond passes first."""
        self.now += 1
        self.model.calls = 0
        _bucket, keys = LAYOUT.of_key(key)
        args = (self.model.incarnation, micros(10), "single", *words)
        answer: Any = self.model.evaluate(self._scripted(script), keys, args)
        return str((answer[0][0] if isinstance(answer[0], list) else answer[0]).decode())


def counted(scripted: Callable[[Script], Script] = lambda script: script) -> dict[str, int]:
    """The number of commands that the server runs for each operation."""
    rig = Rig(scripted)
    found: dict[str, int] = {}

    def count(what: str, answer: str, expected: str) -> None:
        assert answer == expected, f"{what}: {answer}"
        found[what] = rig.model.calls

    count("acquire", rig.acquire("a"), "held")
    count("release", rig.release("a"), "released")
    rig.acquire("a")
    count("acquire again", rig.acquire("a"), "held")
    count("refused, wait=0", rig.acquire("b", room=0), "busy")
    count("renew", rig.refresh("a"), "held")
    count("first to wait", rig.acquire("b"), "waiting")
    count("wait", rig.acquire("c"), "waiting")
    count("heartbeat of a waiter", rig.refresh("c"), "waiting")
    count("refused, wait=0, others wait", rig.acquire("d", room=0), "busy")
    count("refused, queue full", rig.acquire("d", room=2), "busy")
    rig.now += 2 * SECOND
    count("wait, after a second", rig.acquire("e"), "waiting")
    count("wait, soon after that", rig.acquire("f"), "waiting")
    rig.release("e")
    rig.release("f")
    count("hand over", rig.release("a"), "released")
    count("hand over to the last", rig.release("b"), "released")
    count("release after a queue", rig.release("c"), "released")
    rig.acquire("a", ticket="1789999999999999")
    count("release in a quorum", rig.release("a"), "released")
    count("acquire in a quorum", rig.acquire("a", ticket="1790000000000000"), "held")
    rig.release("a")
    _count_limited(rig, count)
    for owner in ("k", "l", "m"):
        rig.release(owner)
    rig.release("a", void=5)
    count("acquire after one gave up", rig.acquire("e"), "held")
    rig.now += 6 * SECOND
    count("refused when that one is forgotten", rig.acquire("b", room=0), "busy")
    return found


def _count_limited(rig: Rig, count: Callable[[str, str, str], None]) -> None:
    three = {"limits": ("3",)}
    count("one of three", rig.acquire("k", **three), "held")
    rig.acquire("l", **three)
    count("third of three", rig.acquire("m", **three), "held")
    count("renew three", rig.refresh("k", "l", "m"), "held")
    count("renew three, soon after that", rig.renew("k", "l", "m"), "held")
    count("wait behind three", rig.acquire("n", **three), "waiting")
    count("renew while others wait", rig.renew("k"), "held")
    count("refused by three, wait=0", rig.acquire("o", room=0), "busy")
    count("hand over one of three", rig.release("k"), "released")
    count("release one of three", rig.release("l"), "released")
    rig.release("m")
    count("release the last of three", rig.release("n"), "released")
    rig.acquire("w")
    for owner in ("k", "l", "m"):
        rig.acquire(owner, **three)
    count("hand over to three", rig.release("w"), "released")


EXPECTED: Final = {
    "acquire": 5,
    "release": 5,
    "acquire again": 7,
    "refused, wait=0": 5,
    "renew": 7,
    "first to wait": 8,
    "wait": 8,
    "heartbeat of a waiter": 9,
    "refused, wait=0, others wait": 5,
    "refused, queue full": 11,
    "wait, after a second": 11,
    "wait, soon after that": 8,
    "hand over": 10,
    "hand over to the last": 10,
    "release after a queue": 6,
    "release in a quorum": 5,
    "acquire in a quorum": 5,
    "acquire after one gave up": 7,
    "refused when that one is forgotten": 9,
    "one of three": 5,
    "third of three": 7,
    "renew three": 9,
    "renew three, soon after that": 9,
    "wait behind three": 9,
    "renew while others wait": 7,
    "refused by three, wait=0": 6,
    "hand over one of three": 11,
    "release one of three": 7,
    "release the last of three": 6,
    "hand over to three": 21,
}
