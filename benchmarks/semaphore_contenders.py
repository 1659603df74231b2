"""Keys that several may hold at once on a Redis server: weblock's ``limit``, and semaphores of PyPI.

As with the locks, a process has one client of each, and each peer runs as its documentation shows it.
"""

from __future__ import annotations

import importlib
from functools import cache, partial
from pathlib import Path
from typing import Any

from . import apart
from .contenders import Asyncio, AsyncSection, Blocking, Section
from .redis_contenders import Peer, Target, asyncio_client_of, asyncio_locks_of, client_of, locks_of
from .redis_floor import PushPlaces

LIMIT = 3
"""How many may hold the key at once."""


def _weblock(target: Target, _directory: Path) -> Section:
    return partial(locks_of(target).hold, target.key, limit=LIMIT)


def _weblock_asyncio(target: Target, _directory: Path) -> AsyncSection:
    return partial(asyncio_locks_of(target).hold, target.key, limit=LIMIT)


def _push(target: Target, _directory: Path) -> AsyncSection:
    section = PushPlaces(target.port, target.key, LIMIT)
    return lambda: section


def _redis_semaphore(target: Target, _directory: Path) -> Section:
    semaphore: Any = apart.imported("redis-semaphore", "redis_semaphore").Semaphore
    # Each waiter has its own: it keeps the tokens that it holds.
    made = semaphore(
        client_of(target.port),
        count=LIMIT,
        namespace=f"redis-semaphore:{target.key}",
        stale_client_timeout=target.ttl,
    )
    return lambda: made


def _redis_rate_limiters(target: Target, _directory: Path) -> Section:
    semaphore: Any = importlib.import_module("limiters").SyncSemaphore
    made = semaphore(
        connection=client_of(target.port),
        name=target.key,
        capacity=LIMIT,
        expiry=int(target.ttl),
    )
    return lambda: made


def _redis_rate_limiters_asyncio(target: Target, _directory: Path) -> AsyncSection:
    semaphore: Any = importlib.import_module("limiters").AsyncSemaphore
    made: Any = None

    def section() -> Any:
        nonlocal made
        if made is None:  # Its client belongs to the loop.
            client = asyncio_client_of(target.port)
            name = f"asyncio:{target.key}"
            made = semaphore(connection=client, name=name, capacity=LIMIT, expiry=int(target.ttl))
        return made

    return section


def _self_limiters(target: Target, _directory: Path) -> AsyncSection:
    semaphore: Any = importlib.import_module("self_limiters").Semaphore
    made = semaphore(
        name=f"self-limiters:{target.key}",
        capacity=LIMIT,
        expiry=int(target.ttl),
        redis_url=f"redis://127.0.0.1:{target.port}",
    )
    return lambda: made


@cache
def _manager(target: Target) -> Any:
    made: Any = importlib.import_module("async_redis_rate_limiters").DistributedSemaphoreManager
    return made(redis_url=f"redis://127.0.0.1:{target.port}", redis_ttl=int(target.ttl))


def _async_redis_rate_limiters(target: Target, _directory: Path) -> AsyncSection:
    return lambda: _manager(target).get_semaphore(target.key, LIMIT)


WEBLOCK = Peer("weblock", "weblock", Blocking, _weblock)
WEBLOCK_ASYNCIO = Peer("weblock, asyncio", "weblock", Asyncio, _weblock_asyncio)
PUSH = Peer("floor: queue in Lua and a push, asyncio", "redis", Asyncio, _push)
# Apart, for it brings a package named tests, which would hide ours.
REDIS_SEMAPHORE = Peer(
    "redis-semaphore", "redis_semaphore", Blocking, _redis_semaphore, "redis-semaphore"
)
REDIS_RATE_LIMITERS = Peer("redis-rate-limiters", "limiters", Blocking, _redis_rate_limiters)
REDIS_RATE_LIMITERS_ASYNCIO = Peer(
    "redis-rate-limiters, asyncio", "limiters", Asyncio, _redis_rate_limiters_asyncio
)
SELF_LIMITERS = Peer("self-limiters, asyncio", "self_limiters", Asyncio, _self_limiters)
ASYNC_REDIS_RATE_LIMITERS = Peer(
    "async-redis-rate-limiters, asyncio",
    "async_redis_rate_limiters",
    Asyncio,
    _async_redis_rate_limiters,
)

PEERS = (
    WEBLOCK,
    WEBLOCK_ASYNCIO,
    PUSH,
    REDIS_SEMAPHORE,
    REDIS_RATE_LIMITERS,
    REDIS_RATE_LIMITERS_ASYNCIO,
    SELF_LIMITERS,
    ASYNC_REDIS_RATE_LIMITERS,
)
