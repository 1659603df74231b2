"""The locks that are compared, each behind the same small door.

``open`` is called once for each waiter and returns a function that makes critical sections:
``with section(): ...``. Peers run as their documentation shows them, with the poll intervals that they
have by default. A process has one client of each library, which all its waiters share. A peer that
is not installed is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import psycopg
import redis
import redis.asyncio
from filelock import AsyncFileLock, FileLock

from weblock import AsyncLocks, Locks

from .redis_floor import AsyncioRoundTrips, Push, RoundTrips

Section = Callable[[], AbstractContextManager[object]]
AsyncSection = Callable[[], AbstractAsyncContextManager[object]]

FOREVER: Final = 600.0
TTL: Final = 10.0


@dataclass(frozen=True)
class Blocking:
    """A lock whose waiters are threads."""

    name: str
    open: Callable[[Path], Section]
    sources: Path | None = None
    """Where its processes import weblock from, if not from this checkout."""


@dataclass(frozen=True)
class Asyncio:
    """A lock whose waiters are tasks."""

    name: str
    open: Callable[[Path], AsyncSection]
    sources: Path | None = None


Contender = Blocking | Asyncio


@dataclass(frozen=True)
class Target:
    """A key, and the servers of loopback that have it: none, one, or those of a quorum."""

    ports: tuple[int, ...] = ()
    key: str = "hot"
    engine: str = "redis"
    own_keys: bool = False
    """Whether each waiter has a key of its own."""
    database: int = 0
    """Which one on Redis, and which table of weblock on PostgreSQL."""

    @property
    def port(self) -> int:
        """The port of the only server."""
        (port,) = self.ports
        return port

    @property
    def urls(self) -> list[str]:
        """The URLs of the servers, as any library takes them."""
        if self.engine == "postgresql":
            return [f"postgresql://postgres@127.0.0.1:{port}/postgres" for port in self.ports]
        return [f"redis://127.0.0.1:{port}/{self.database}" for port in self.ports]


_numbers = itertools.count()


@dataclass(frozen=True)
class Peer:
    """A lock of one library, and the module that it needs."""

    name: str
    kind: type[Blocking | Asyncio]
    open: Callable[[Target, Path], Any]
    module: str = ""
    sources: Path | None = None

    def at(self, target: Target) -> Contender:
        """It, on these servers. An earlier weblock may have another layout, so it stores elsewhere."""
        if self.sources:
            target = replace(target, database=1)
        return self.kind(self.name, partial(self._opened, target), self.sources)

    def _opened(self, target: Target, directory: Path) -> Any:
        if target.own_keys:
            target = replace(target, key=f"{os.getpid()}-{next(_numbers)}")
        return self.open(target, directory)

    @property
    def installed(self) -> bool:
        """Whether it can be measured here."""
        return not self.module or importlib.util.find_spec(self.module) is not None


def _engine(target: Target, directory: Path) -> str | list[str]:
    if target.engine == "redis":
        urls = [f"{url}?recovery=off" for url in target.urls]
        return urls if len(urls) > 1 else urls[0]
    if target.engine == "postgresql":
        return f"{target.urls[0]}?create=true&recovery=off&table=weblock_{target.database}"
    file = f"file://{directory}/weblock?allow_container=true"
    return file if target.engine == "file" else "memory://benchmarks"


_made: dict[str, Any] = {}


def _shared(kind: Callable[..., Any], target: Target, directory: Path) -> Any:
    engine = _engine(target, directory)
    if (name := f"{kind} {engine}") not in _made:
        _made[name] = kind(engine, wait=None, ttl=TTL)
    return _made[name]


def _weblock(target: Target, directory: Path) -> Section:
    locks = _shared(Locks.from_url, target, directory)
    return partial(locks.hold, target.key)


def _weblock_asyncio(target: Target, directory: Path) -> AsyncSection:
    locks = _shared(AsyncLocks.from_url, target, directory)
    return partial(locks.hold, target.key)


# The default of 5 s would end a blocking read, by which some of the peers wait.
_OPTIONS: Final[dict[str, Any]] = {"max_connections": 1000, "socket_timeout": None}


@cache
def _client(port: int) -> redis.Redis:
    return redis.Redis(port=port, **_OPTIONS)


@cache
def _asyncio_client(port: int) -> redis.asyncio.Redis:  # A worker has one event loop.
    return redis.asyncio.Redis(port=port, **_OPTIONS)


def _raw(target: Target, _directory: Path) -> Section:
    section = RoundTrips(_client(target.port), target.key)
    return lambda: section


def _raw_asyncio(target: Target, _directory: Path) -> AsyncSection:
    section = AsyncioRoundTrips(_asyncio_client(target.port), target.key)
    return lambda: section


def _push(target: Target, _directory: Path) -> AsyncSection:
    section = Push(target.port, target.key)
    return lambda: section


def _redis_py(target: Target, _directory: Path) -> Section:
    return partial(_client(target.port).lock, f"redis-py:{target.key}", timeout=TTL)


def _redis_py_asyncio(target: Target, _directory: Path) -> AsyncSection:
    return partial(_asyncio_client(target.port).lock, f"redis-py:{target.key}", timeout=TTL)


def _python_redis_lock(target: Target, _directory: Path) -> Section:
    lock: Any = importlib.import_module("redis_lock").Lock
    return partial(lock, _client(target.port), target.key, expire=int(TTL))


def _sherlock(target: Target, _directory: Path) -> Section:
    lock: Any = importlib.import_module("sherlock").RedisLock
    client, name = _client(target.port), f"sherlock:{target.key}"
    made = lock(name, client=client, expire=int(TTL), timeout=FOREVER)
    return lambda: made


@cache
def _opened_backend(url: str) -> asyncio.Future[Any]:
    """Return the backend of grelmicro in this process, when it is open."""
    kind = "Postgres" if url.startswith("postgresql") else "Redis"
    module = importlib.import_module(f"grelmicro.sync.{kind.lower()}")
    opening: Coroutine[Any, Any, Any] = getattr(module, f"{kind}SyncBackend")(url).__aenter__()
    return asyncio.ensure_future(opening)


def _grelmicro(target: Target, _directory: Path) -> AsyncSection:
    lock: Any = importlib.import_module("grelmicro.sync").Lock
    made: Any = None  # To make one takes longer than to use it.

    @contextlib.asynccontextmanager
    async def section() -> AsyncIterator[None]:
        nonlocal made
        if made is None:
            backend = await _opened_backend(target.urls[0])
            made = lock(f"grelmicro:{target.key}", backend=backend, lease_duration=TTL)
        async with made:
            yield

    return section


def _pottery_asyncio(target: Target, _directory: Path) -> AsyncSection:
    lock: Any = importlib.import_module("pottery").AIORedlock
    made = lock(
        key=target.key, masters=set(map(_asyncio_client, target.ports)), auto_release_time=TTL
    )
    return lambda: made


def _redlock_py(target: Target, _directory: Path) -> Section:
    manager = importlib.import_module("redlock").Redlock(target.urls)

    @contextlib.contextmanager
    def section() -> Iterator[None]:
        while not (lock := manager.lock(target.key, int(1000 * TTL))):
            """It gives up after three attempts; a caller that has to get the lock goes on."""
        try:
            yield
        finally:
            manager.unlock(lock)

    return section


def _statements(
    target: Target, _directory: Path, *, enter: bytes, leave: bytes, before: tuple[bytes, ...] = ()
) -> Section:
    # An advisory lock belongs to a session: each waiter needs a connection of its own, also while it waits.
    connection = psycopg.connect(target.urls[0], autocommit=True)
    for statement in before:
        connection.execute(statement, {"key": target.key})

    @contextlib.contextmanager
    def section() -> Iterator[None]:
        connection.execute(enter, [target.key])
        try:
            yield
        finally:
            connection.execute(leave, [target.key])

    return section


_advisory = partial(
    _statements,
    enter=b"SELECT pg_advisory_lock(hashtext(%s))",
    leave=b"SELECT pg_advisory_unlock(hashtext(%s))",
)
_updates = partial(
    _statements,
    before=(
        b"CREATE TABLE IF NOT EXISTS bare (key text PRIMARY KEY, owner text)",
        b"INSERT INTO bare VALUES (%(key)s, '') ON CONFLICT DO NOTHING",
    ),
    enter=b"UPDATE bare SET owner = 'it' WHERE key = %s",
    leave=b"UPDATE bare SET owner = '' WHERE key = %s",
)


def _filelock(target: Target, directory: Path) -> Section:
    lock = FileLock(directory / f"filelock-{target.key}")
    return lambda: lock


def _filelock_asyncio(target: Target, directory: Path) -> AsyncSection:
    lock = AsyncFileLock(directory / f"filelock-{target.key}")
    return lambda: lock


def _sqlite(_target: Target, directory: Path) -> Section:
    connection = sqlite3.connect(
        directory / "sqlite.db", timeout=600, isolation_level=None, check_same_thread=False
    )

    @contextlib.contextmanager
    def section() -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")  # SQLite's busy handler polls, 1 to 100 ms apart
        try:
            yield
        finally:
            connection.execute("COMMIT")

    return section


_asyncio_lock_of_all = cache(asyncio.Lock)


def _asyncio_lock(_target: Target, _directory: Path) -> AsyncSection:
    return _asyncio_lock_of_all


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


WEBLOCK = Peer("weblock", Blocking, _weblock)
WEBLOCK_ASYNCIO = Peer("weblock, asyncio", Asyncio, _weblock_asyncio)
RAW = Peer("floor: redis-py, two round trips", Blocking, _raw)
RAW_ASYNCIO = Peer("floor: redis-py asyncio, two round trips", Asyncio, _raw_asyncio)
PUSH = Peer("floor: queue in Lua and a push, asyncio", Asyncio, _push)
REDIS_PY = Peer("redis-py Lock", Blocking, _redis_py)
REDIS_PY_ASYNCIO = Peer("redis-py Lock, asyncio", Asyncio, _redis_py_asyncio)
PYTHON_REDIS_LOCK = Peer("python-redis-lock", Blocking, _python_redis_lock, "redis_lock")
SHERLOCK = Peer("sherlock", Blocking, _sherlock, "sherlock")
# Which one pip installs depends on Python: before 3.14, it is 0.20.
GRELMICRO = Peer(f"grelmicro {_version('grelmicro')}, asyncio", Asyncio, _grelmicro, "grelmicro")
POTTERY_ASYNCIO = Peer("pottery, asyncio", Asyncio, _pottery_asyncio, "pottery")
REDLOCK_PY = Peer("redlock-py", Blocking, _redlock_py, "redlock")
ADVISORY = Peer("pg_advisory_lock, psycopg", Blocking, _advisory)
UPDATES = Peer("floor: psycopg, two UPDATEs of a row", Blocking, _updates)
FILELOCK = Peer("filelock", Blocking, _filelock)
FILELOCK_ASYNCIO = Peer("filelock, asyncio", Asyncio, _filelock_asyncio)
SQLITE = Peer("SQLite BEGIN IMMEDIATE", Blocking, _sqlite)
ASYNCIO_LOCK = Peer("asyncio.Lock", Asyncio, _asyncio_lock)
