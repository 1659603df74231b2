"""Locks on a Redis server, as their documentation shows them, and the floor below them.

A process has one client of each, which all its waiters share, with as many connections as it
wants. A peer that is not installed is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from weblock import AsyncLocks, Locks

from . import apart
from .contenders import Asyncio, AsyncSection, Blocking, Section
from .redis_floor import AsyncioRoundTrips, Push, RoundTrips

FOREVER = 600.0


@dataclass(frozen=True)
class Target:
    """The key that all want, on a server of loopback, and how long a lease of it is."""

    port: int
    key: str = "hot"
    ttl: float = 10.0

    def for_key(self, key: str) -> Target:
        """The same for another key."""
        return Target(self.port, key, self.ttl)


@dataclass(frozen=True)
class Peer:
    """A lock of one library, and what has to be installed for it."""

    name: str
    module: str
    kind: type[Blocking | Asyncio]
    open: Callable[..., Any]
    apart: str = ""
    """The requirement to install in a folder of its own, if a name of its modules is another's too."""

    def at(self, target: Target) -> Blocking | Asyncio:
        """It, on that key."""
        return self.kind(self.name, partial(self.open, target))

    @property
    def installed(self) -> bool:
        """Whether it can be measured here."""
        if self.apart:
            return apart.install(self.apart)
        return importlib.util.find_spec(self.module) is not None


def name_of_process() -> str:
    """What the connections of this process are called on the server."""
    return f"weblock-{os.getpid()}"


@cache
def client_of(port: int) -> redis.Redis:
    """The blocking client of this process."""
    return redis.Redis(**_connection(port))


_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.Redis] = (
    weakref.WeakKeyDictionary()
)


def asyncio_client_of(port: int) -> redis.asyncio.Redis:
    """The client of the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = redis.asyncio.Redis(**_connection(port))
    return _clients[loop]


def _connection(port: int) -> dict[str, Any]:
    # The default of 5 s would end a blocking read, by which some of the peers wait.
    return {
        "port": port,
        "max_connections": 1000,
        "socket_timeout": None,
        "client_name": name_of_process(),
    }


def _url(target: Target) -> str:
    return f"redis://127.0.0.1:{target.port}/0?recovery=off&client_name={name_of_process()}"


@cache
def locks_of(target: Target) -> Locks:
    """The blocking API of weblock in this process."""
    return Locks.from_url(_url(target), wait=None, ttl=target.ttl)


@cache
def asyncio_locks_of(target: Target) -> AsyncLocks:
    """The asyncio API of weblock in this process."""
    return AsyncLocks.from_url(_url(target), wait=None, ttl=target.ttl)


def _weblock(target: Target, _directory: Path) -> Section:
    return partial(locks_of(target).hold, target.key)


def _weblock_asyncio(target: Target, _directory: Path) -> AsyncSection:
    return partial(asyncio_locks_of(target).hold, target.key)


def _raw(target: Target, _directory: Path) -> Section:
    section = RoundTrips(client_of(target.port), target.key)
    return lambda: section


def _raw_asyncio(target: Target, _directory: Path) -> AsyncSection:
    section = AsyncioRoundTrips(asyncio_client_of(target.port), target.key)
    return lambda: section


def _push(target: Target, _directory: Path) -> AsyncSection:
    section = Push(target.port, target.key)
    return lambda: section


def _redis_py(target: Target, _directory: Path) -> Section:
    client = client_of(target.port)
    return lambda: client.lock(f"redis-py:{target.key}", timeout=target.ttl)


def _redis_py_asyncio(target: Target, _directory: Path) -> AsyncSection:
    client = asyncio_client_of(target.port)
    return lambda: client.lock(f"redis-py:{target.key}", timeout=target.ttl)


def _python_redis_lock(target: Target, _directory: Path) -> Section:
    lock: Any = importlib.import_module("redis_lock").Lock
    client = client_of(target.port)
    return lambda: lock(client, target.key, expire=int(target.ttl))


def _redis_fifo_lock(target: Target, _directory: Path) -> AsyncSection:
    lock: Any = importlib.import_module("redis_fifo_lock").FifoLock
    fifo = lock(asyncio_client_of(target.port), target.key, lease_ms=int(1000 * target.ttl))
    return fifo.hold  # type: ignore[no-any-return]


def _pottery(target: Target, _directory: Path) -> Section:
    lock: Any = importlib.import_module("pottery").Redlock
    made = lock(key=target.key, masters={client_of(target.port)}, auto_release_time=target.ttl)
    return lambda: made


def _pottery_asyncio(target: Target, _directory: Path) -> AsyncSection:
    lock: Any = importlib.import_module("pottery").AIORedlock
    made = lock(
        key=target.key, masters={asyncio_client_of(target.port)}, auto_release_time=target.ttl
    )
    return lambda: made


def _sherlock(target: Target, _directory: Path) -> Section:
    lock: Any = importlib.import_module("sherlock").RedisLock
    made = lock(
        f"sherlock:{target.key}",
        client=client_of(target.port),
        expire=int(target.ttl),
        timeout=FOREVER,
    )
    return lambda: made


def _redis_lock_py(target: Target, _directory: Path) -> AsyncSection:
    apart.imported("redis-lock-py", "redis_lock")
    lock: Any = importlib.import_module("redis_lock.asyncio").RedisLock
    client, ttl = asyncio_client_of(target.port), int(target.ttl)
    name = f"redis-lock-py:{target.key}"
    return lambda: lock(client, name, blocking_timeout=FOREVER, expire_timeout=ttl)


def _aioredlock(target: Target, _directory: Path) -> AsyncSection:
    manager: Any = None
    made: Any = importlib.import_module("aioredlock").Aioredlock

    @contextlib.asynccontextmanager
    async def section() -> AsyncIterator[None]:
        nonlocal manager
        if (
            manager is None
        ):  # A caller that has to get the lock does not give up after some attempts.
            server = {"host": "127.0.0.1", "port": target.port}
            manager = made([server], retry_count=1_000_000)
        async with await manager.lock(f"aioredlock:{target.key}", lock_timeout=target.ttl):
            yield

    return section


def _coredis(target: Target, _directory: Path) -> AsyncSection:
    lock: Any = importlib.import_module("coredis.patterns.lock").Lock

    @contextlib.asynccontextmanager
    async def section() -> AsyncIterator[None]:
        client = await _coredis_client(target.port)
        async with lock(client, f"coredis:{target.key}", timeout=target.ttl):
            yield

    return section


_coredis_clients: dict[int, asyncio.Future[Any]] = {}
_coredis_keepers: set[asyncio.Task[None]] = set()


async def _coredis_client(port: int) -> Any:
    """A client of this process, which a task of its own keeps open: it belongs to who opens it."""
    if port not in _coredis_clients:
        ready = _coredis_clients[port] = asyncio.get_running_loop().create_future()

        async def keep() -> None:
            module: Any = importlib.import_module("coredis")
            async with module.Redis(port=port) as client:
                ready.set_result(client)
                await asyncio.Event().wait()

        _coredis_keepers.add(asyncio.create_task(keep()))
    return await asyncio.shield(_coredis_clients[port])


WEBLOCK = Peer("weblock", "weblock", Blocking, _weblock)
WEBLOCK_ASYNCIO = Peer("weblock, asyncio", "weblock", Asyncio, _weblock_asyncio)
RAW = Peer("floor: redis-py, two round trips", "redis", Blocking, _raw)
RAW_ASYNCIO = Peer("floor: redis-py asyncio, two round trips", "redis", Asyncio, _raw_asyncio)
PUSH = Peer("floor: queue in Lua and a push, asyncio", "redis", Asyncio, _push)
REDIS_PY = Peer("redis-py Lock", "redis", Blocking, _redis_py)
REDIS_PY_ASYNCIO = Peer("redis-py Lock, asyncio", "redis", Asyncio, _redis_py_asyncio)
PYTHON_REDIS_LOCK = Peer("python-redis-lock", "redis_lock", Blocking, _python_redis_lock)
REDIS_FIFO_LOCK = Peer("redis-fifo-lock, asyncio", "redis_fifo_lock", Asyncio, _redis_fifo_lock)
REDIS_LOCK_PY = Peer(
    "redis-lock-py, asyncio", "redis_lock", Asyncio, _redis_lock_py, "redis-lock-py"
)
AIOREDLOCK = Peer("aioredlock, asyncio", "aioredlock", Asyncio, _aioredlock)
COREDIS = Peer("coredis, asyncio", "coredis", Asyncio, _coredis)
POTTERY = Peer("pottery", "pottery", Blocking, _pottery)
POTTERY_ASYNCIO = Peer("pottery, asyncio", "pottery", Asyncio, _pottery_asyncio)
SHERLOCK = Peer("sherlock", "sherlock", Blocking, _sherlock)


def installed(peers: Sequence[Peer]) -> list[Peer]:
    """Those that can be measured here."""
    return [peer for peer in peers if peer.installed]
