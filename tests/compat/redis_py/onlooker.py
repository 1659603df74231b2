"""What redis-py's cases look for on the server, told and done by somebody else who locks there.

They look at a key of redis-py's, or write to it. Here other keys keep the lock, which no command of an
application sees; so a client's ``get``, ``ttl`` and ``set`` are those of the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypeVar

import redis

from tests.support.waiting import PATIENCE, now
from weblock import Lease, Locks
from weblock.compat.redis import Lock

T = TypeVar("T")

STILL_HELD = "test_context_manager_not_raise_on_release_lock_error"
"""A case that releases what it has just acquired for 0.1 s, and waits for the end of nothing.

A slow machine would need longer than that, so its locks last for longer.
"""


class Lasting(NamedTuple):
    """That a lock was to last so many seconds, from some moment between two on."""

    seconds: float
    earliest: float
    latest: float

    def told(self, remaining: float, asked: float, answered: float) -> float:
        """How long it lasts from its beginning on, by what remained at some moment between two.

        That is ``seconds``, unless it is longer or shorter than it can be on a machine of any speed.
        """
        least, most = remaining + asked - self.latest, remaining + answered - self.earliest
        return max(least, min(most, self.seconds))


class Onlooker:
    """Another process's view of the locks on a server, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._client = redis.Redis(port=port)
        self._locks = Locks.from_client(self._client)
        self._thread = ThreadPoolExecutor(1)
        self._taken: list[Lease] = []
        self._lasting: dict[str, Lasting] = {}
        self.remaining("first")  # So that no lock has to last while a connection is made.

    def granted(self, name: str, seconds: float | None, asked: float) -> None:
        """Notes for how long a lock was to last that has just been granted, and when that was asked."""
        self._lasting.pop(name, None)
        if seconds is not None:
            self._lasting[name] = Lasting(seconds, asked, now())

    def extended(self, name: str, seconds: float, asked: float) -> None:
        """Notes that it is to last so much longer than before."""
        before = self._lasting[name]
        took = now() - asked
        self._lasting[name] = Lasting(
            before.seconds + seconds, before.earliest, before.latest + took
        )

    def remaining(self, name: str) -> float | None:
        """Seconds that the lock lasts; ``None`` if nobody has it."""
        info = self._do(lambda: self._locks.inspect(name))
        return info.remaining if info else None

    def ttl(self, name: str) -> float:
        """The same if the case had taken no time since it asked for it; 0 if nobody has it."""
        asked = now()
        remaining = self.remaining(name) or 0.0
        lasting = self._lasting.get(name)
        return lasting.told(remaining, asked, now()) if remaining and lasting else remaining

    def take(self, name: str) -> None:
        """Takes the lock away from whoever has it, and keeps it."""
        self._do(lambda: self._locks.force_release(name))
        self._taken.append(self._do(lambda: self._locks.acquire(name)))
        self._lasting.pop(name, None)

    def clear(self) -> None:
        """Frees all locks."""
        self._do(lambda: [self._locks.force_release(each.key) for each in self._locks.list()])

    def close(self) -> None:
        """Leaves nothing to the next case."""
        self.clear()
        self._do(self._locks.close)
        self._thread.shutdown()
        self._client.close()

    def _do(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result()


class NotedLock(Lock):
    """weblock's, which has the onlooker note when it is asked to last."""

    def acquire(self, *args: Any, **options: Any) -> bool:
        asked = now()
        if acquired := super().acquire(*args, **options):
            self.redis.onlooker.granted(self.name, self.timeout, asked)
        return acquired

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        asked = now()
        extended = super().extend(additional_time, replace_ttl)
        note = self.redis.onlooker.granted if replace_ttl else self.redis.onlooker.extended
        note(self.name, additional_time, asked)
        return extended

    def reacquire(self) -> Literal[True]:
        asked = now()
        reacquired = super().reacquire()
        self.redis.onlooker.granted(self.name, self.timeout, asked)
        return reacquired


class Client(redis.Redis):
    """redis-py's client, whose keys are locks."""

    onlooker: Onlooker
    made: list[Any]
    case: str

    def lock(self, *args: Any, **options: Any) -> Any:
        self.made.append(super().lock(*args, **_fitting(self.case, options)))
        return self.made[-1]

    def get(self, name: str) -> bytes | None:
        """The token of whichever lock has it."""
        if self.onlooker.remaining(name) is None:
            return None
        return next((each.local.token for each in self.made if each.owned()), b"another")

    def set(self, name: str, _value: str) -> None:
        self.onlooker.take(name)

    def ttl(self, name: str) -> int:
        return round(self.onlooker.ttl(name))

    def pttl(self, name: str) -> int:
        return round(1000 * self.onlooker.ttl(name))


def _fitting(case: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a lock, of which the case gets what it needs on a machine of any speed."""
    return {**options, "timeout": PATIENCE} if case == STILL_HELD else options
