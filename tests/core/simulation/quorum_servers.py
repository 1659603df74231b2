"""Several independent servers, each with a clock of its own, and what is true of them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from weblock._core.table import Gone, Held, Released, Waiting
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import MICRO, reply_of
from weblock.stores.redis.scripts import Script

from .engine import EPOCH
from .redis_engine import LAYOUT
from .redis_model import unpacked
from .redis_server import RedisServer

NEVER: Final = float("-inf")

_SEEN: Final = {
    (scripts.WAIT_BEHIND.name, Waiting): "some servers were given back",
    (scripts.RAISE_FENCE.name, Held): "a fence was raised",
    (scripts.ACQUIRE.name, Gone): "a late claim was refused by its mark",
}


class QuorumServer(RedisServer):
    """One of them. It grows old and forgets by itself."""

    def __init__(self, number: int, *, rate: float, skew: float, **options: Any) -> None:
        self.number = number
        self._rate = rate
        self._skew = skew
        self.lost_at = NEVER
        self.released: set[str] = set()
        """Owners of which no request may take effect any more."""
        super().__init__(granularity=0.0, alive=lambda _process: True, **options)
        self._model.run = 1_000_000 * (number + 1)

    def now(self) -> float:
        return EPOCH + self._skew + self._rate * self._world.now

    def true(self, micros: int) -> float:
        """When its clock shows this."""
        return (micros / MICRO - EPOCH - self._skew) / self._rate

    def crash(self, *, forget: bool) -> None:
        """Goes down, and comes back with its data, or without a second's, or empty."""
        self.up = False
        self._backlog = []
        self.life += 1
        self.loaded.clear()
        self.listening.clear()
        if not forget and self._world.random.random() < 0.5:
            self._model.roll_back(self._saved)
        self._model.restart(forget=forget)
        self._saved = self._model.snapshot()
        self._lost()

    def holder(self, key: str) -> tuple[str, float, int] | None:
        """Who has the lease there, until when in true time, and its fence."""
        name = LAYOUT.of_key(key)[1][0]
        owner = self._model.in_common(name).get("holder")
        if not owner:
            return None
        found: Any = self._model.values[name]
        lease = unpacked(found["lease:" + owner])
        until = self.true(lease[3])
        return (owner, until, lease[1]) if until > self._world.now else None

    def owners(self) -> Iterator[tuple[str, str]]:
        """Who has something there that has not ended, and of which key."""
        for name, value in self._model.values.items():
            key = LAYOUT.key_in(name)
            if key is None or not isinstance(value, dict):
                continue
            if holder := self.holder(key):
                yield key, holder[0]
            for field, packed in value.items():
                if field.startswith("place:"):
                    ends = self.true(unpacked(str(packed))[0])
                    if ends > self._world.now:
                        yield key, field.removeprefix("place:")

    def _lost(self) -> None:
        self.lost_at = self._world.now
        self.released.clear()
        assert self.observer is not None
        self.observer.forgot()

    def _change(
        self, script: Script, keys: Sequence[str], args: Sequence[str]
    ) -> tuple[Any, list[Any]]:
        raw = self._model.evaluate(self._scripted(script), keys, args)
        several = script in (scripts.BEAT, scripts.RENEW)
        replies = [reply_of(each) for each in (raw if several else [raw])]
        self._not_after_release(script, args[3:], replies)
        if seen := _SEEN.get((script.name, type(replies[0].answer))):
            self._sometimes(seen)
        return raw, replies

    def _not_after_release(self, script: Script, args: Sequence[str], replies: list[Any]) -> None:
        """What was released does not come back, however late a request of its owner arrives.

        A release that finds nothing, and voids nothing, does not know whether a request is late.
        """
        owner, answer = args[0], replies[0].answer
        if script is scripts.RELEASE and (isinstance(answer, Released) or int(args[1])):
            self.released.add(owner)
        came_back = script is scripts.ACQUIRE and isinstance(answer, Held | Waiting)
        if came_back and owner in self.released:
            self._world.fail("P6 cancelled", f"{owner} came back after its release")


class Quorum:
    """All of them, in the place of the one engine of other schedules."""

    def __init__(self, servers: Sequence[QuorumServer], recovery: float) -> None:
        self.servers = servers
        self.recovery = recovery
        self.remembers = True
        self.states: dict[str, Any] = {}
        self.majority = len(servers) // 2 + 1

    def now(self) -> float:
        """They have no time in common, and no states of which it would be that."""
        return 0.0

    def recovering(self, now: float) -> int:
        """How many may grant nothing for having lost something, at the latest."""
        rounding = 1.1  # A server knows its age in whole seconds.
        return sum(now <= each.lost_at + self.recovery + rounding for each in self.servers)

    def forgot_since(self, since: float) -> int:
        return sum(server.lost_at >= since for server in self.servers)
