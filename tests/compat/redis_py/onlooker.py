"""What redis-py's cases look for on the server, told and done by somebody else who locks there.

They look at a key of redis-py's, or write to it. Here other keys keep the lock, which no command of an
application sees; so a client's ``get``, ``ttl`` and ``set`` are those of the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import redis
import redis.asyncio

from weblock import Lease, Locks

T = TypeVar("T")


class Onlooker:
    """Another process's view of the locks on a server, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._client = redis.Redis(port=port)
        self._locks = Locks.from_client(self._client)
        self._thread = ThreadPoolExecutor(1)
        self._taken: list[Lease] = []

    def remaining(self, name: str) -> float | None:
        """Seconds that the lock lasts; ``None`` if nobody has it."""
        info = self._do(lambda: self._locks.inspect(name))
        return info.remaining if info else None

    def take(self, name: str) -> None:
        """Takes the lock away from whoever has it, and keeps it."""
        self._do(lambda: self._locks.force_release(name))
        self._taken.append(self._do(lambda: self._locks.acquire(name)))

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


class Client(redis.Redis):
    """redis-py's client, whose keys are locks."""

    onlooker: Onlooker
    made: list[Any]

    def lock(self, *args: Any, **options: Any) -> Any:
        self.made.append(super().lock(*args, **options))
        return self.made[-1]

    def get(self, name: str) -> bytes | None:
        """The token of whichever lock has it."""
        if self.onlooker.remaining(name) is None:
            return None
        return next((each.local.token for each in self.made if each.owned()), b"another")

    def set(self, name: str, _value: str) -> None:
        self.onlooker.take(name)

    def ttl(self, name: str) -> int:
        return round(self.onlooker.remaining(name) or 0)

    def pttl(self, name: str) -> int:
        return round(1000 * (self.onlooker.remaining(name) or 0))


class AsyncClient(redis.asyncio.Redis):
    """The same for asyncio."""

    onlooker: Onlooker
    made: list[Any]

    def lock(self, *args: Any, **options: Any) -> Any:
        self.made.append(super().lock(*args, **options))
        return self.made[-1]

    async def get(self, name: str) -> bytes | None:
        """The token of whichever lock has it."""
        if await asyncio.to_thread(self.onlooker.remaining, name) is None:
            return None
        tokens = [each.local.token for each in self.made if await each.owned()]
        return tokens[0] if tokens else b"another"

    async def set(self, name: str, _value: str) -> None:
        await asyncio.to_thread(self.onlooker.take, name)

    async def ttl(self, name: str) -> int:
        return round(await asyncio.to_thread(self.onlooker.remaining, name) or 0)

    async def pttl(self, name: str) -> int:
        return round(1000 * (await asyncio.to_thread(self.onlooker.remaining, name) or 0))

    async def flushall(self) -> None:
        """Without the pause that a real one brings: leases may have been lost by it."""
        await asyncio.to_thread(self.onlooker.clear)
