"""How long the keys on a server live: longer than what they say, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, micros
from weblock.stores.redis.scripts import Script

from .redis_model import RedisModel, unpacked

LAYOUT = Layout("lives", 1)
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
GRAIN: Final = SECOND // 1000
PLACE: Final = 4 * SECOND

OWNERS: Final = ("a", "b", "c", "d")
TTLS: Final = (1.0, 60.0, 3600.0, 100 * 3600.0)
PAUSES: Final = (0, SECOND, 3 * SECOND, HOUR, 20 * HOUR)


class Lives:
    """One key, and those who want it, hold it for days, and ask at any time."""

    def __init__(self, seed: int, scripted: Callable[[Script], Script]) -> None:
        self._dice = Random(seed)
        self._now = 1_790_000_000 * SECOND
        self._model = RedisModel(lambda: self._now, lambda *_notify: None)
        self._model._started_at -= 1000 * DAY
        self._scripted = scripted
        self._recovery = self._dice.choice([0.0, 50 * 3600.0])
        _bucket, (self._lock, self._queue, self._epoch) = LAYOUT.of_key("key")

    def step(self) -> None:
        dice = self._dice
        owner, ttl = dice.choice(OWNERS), micros(dice.choice(TTLS))
        match dice.choice(["acquire"] * 5 + ["refresh"] * 5 + ["release"] * 3 + ["force", "flush"]):
            case "acquire":
                self._run(scripts.ACQUIRE, owner, "p", "", ttl, dice.choice(["0", "9"]), "0")
            case "refresh":
                self._run(scripts.BEAT, owner, ttl)
            case "release":
                self._release(owner, dice.choice([0, 9 * SECOND, 200 * HOUR]))
            case "force":
                self._run(scripts.FORCE_RELEASE)
            case _ if dice.random() < 0.3:
                self._model.flush()
        self._check()
        self._now += dice.choice(PAUSES)

    def _release(self, owner: str, void: int) -> None:
        self._run(scripts.RELEASE, owner, str(void))
        if void:
            left = self._model._expires[self._lock] - self._now
            assert left >= void, "that it gave up is known for as long as it was asked"

    def _run(self, script: Script, *words: str) -> None:
        keys = (self._lock, self._queue, self._epoch)
        args = ("run:id", micros(self._recovery), "single", *words)
        self._model.evaluate(self._scripted(script), keys, args)

    def _check(self) -> None:
        expires = self._model._expires
        kept = {key for key in self._model.values if expires.get(key, self._now + 1) > self._now}
        assert kept - {self._epoch} <= set(expires), "what is not needed any more must go"
        self._check_lease(kept, expires)
        places = [word for word in self._fields(kept) if word.startswith("place:")]
        for place in places:
            until = unpacked(self._fields(kept)[place])[0]
            if until > self._now:
                assert self._queue in kept
                for key in (self._lock, self._queue):
                    assert expires[key] >= until - PLACE + DAY - GRAIN, "a place outlives its key"

    def _check_lease(self, kept: set[str], expires: dict[str, int]) -> None:
        fields = self._fields(kept)
        leases = [unpacked(value) for field, value in fields.items() if field.startswith("lease:")]
        voided = self._model.in_common(self._lock)["voided"] if fields else {}
        gave_up = [*dict(voided).values()]
        until = max([lease[3] for lease in leases] + gave_up, default=0)
        latest = max(self._now, until) + DAY + MINUTE + GRAIN
        assert expires.get(self._lock, 0) <= latest, "a lease's key outlives it by far too long"
        assert expires.get(self._queue, 0) <= self._now + DAY + MINUTE + GRAIN, (
            "so does the queue's"
        )
        if leases and until > self._now:
            assert expires[self._lock] >= until + DAY - GRAIN, "a lease outlives its key"

    def _fields(self, kept: set[str]) -> dict[str, Any]:
        return self._model.values[self._lock] if self._lock in kept else {}  # type: ignore[return-value]


def lives_long(seed: int, scripted: Callable[[Script], Script]) -> None:
    """Raises ``AssertionError`` if a key may expire before what it says, or never."""
    lives = Lives(seed, scripted)
    for _ in range(40):
        lives.step()
