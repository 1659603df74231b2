"""What has connections is closed while other threads and tasks use it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from weblock import AsyncLocks, EngineUnavailable
from weblock.stores.redis.blocking import BlockingLink as RedisLink
from weblock.stores.redis.blocking import BlockingLinks as RedisLinks
from weblock.stores.transport.failures import Silence
from weblock.stores.transport.pool import Pool
from weblock.stores.transport.sending import taken_out


class Taken(list[Any]):
    """A list of which another thread takes the last item between a look and the hand that reaches for it."""

    def pop(self, *_index: Any) -> Any:
        self.clear()
        return super().pop()


def test_the_last_item_may_be_another_s() -> None:
    """Two threads that take everything out of a list share it, and neither fails."""
    assert list(taken_out([1, 2, 3])) == [3, 2, 1]
    assert list(taken_out(Taken([1, 2]))) == []


class Link:
    """A connection that notes its end."""

    alive = True
    address = "server"
    used_at = 0.0
    turn: object = object()
    closed = False

    def close(self) -> None:
        self.closed = True

    discard = close


class LinkOfRedis(Link, RedisLink):
    """One of a pool that wants its own."""

    __init__ = object.__init__


class ClosedMeanwhile(list[Any]):
    """A list of unused connections; the pool is closed just before one is added."""

    def __init__(self, close: Callable[[], None]) -> None:
        super().__init__()
        self._close = close

    def append(self, link: Any) -> None:
        self._close()
        super().append(link)


def test_a_connection_that_comes_back_while_its_pool_is_closed_is_closed() -> None:
    """On Redis: its user has looked whether the pool is open, and comes too late to be seen."""
    pool = RedisLinks(None, None, room=1, patience=0.0)  # type: ignore[arg-type]
    pool._idle["server"] = ClosedMeanwhile(pool.close)  # type: ignore[index]
    link = LinkOfRedis()
    link.home = pool
    pool.give_back(link)
    assert link.closed


def test_so_is_one_of_a_pool() -> None:
    """After the work, which is its use."""
    pool = Pool(Link, Silence(str, timeout=1.0), room=1, patience=0.0)  # type: ignore[type-var]
    pool._idle = ClosedMeanwhile(pool.close)
    links: list[Link] = []
    pool.use(links.append)
    assert links[0].closed


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:{}?timeout=60&connect_timeout=60",
        "postgresql://u@127.0.0.1:{}/d?timeout=60",
    ],
)
async def test_who_waits_for_a_connection_is_told_that_the_locks_were_closed(url: str) -> None:
    """It is no cancellation: a task group would take its task for cancelled, and say nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        locks = AsyncLocks.from_url(url.format(silent.getsockname()[1]))
        loop = asyncio.get_running_loop()
        waits = asyncio.create_task(locks.acquire("key", wait=60))
        silent.setblocking(False)
        (connection, _) = await loop.sock_accept(silent)
        with connection:
            await loop.sock_recv(connection, 1)
            await locks.close()
            with pytest.raises(EngineUnavailable, match="closed"):
                await waits
