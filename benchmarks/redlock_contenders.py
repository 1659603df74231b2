"""Locks on a majority of independent Redis servers, as their documentation shows them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from weblock import AsyncLocks, Locks

from . import apart
from .contenders import Asyncio, AsyncSection, Blocking, Section
from .redis_floor import Majority

KEY = "hot"
TTL = 10.0
PY = "redlock-py"
NG = "redlock-ng"


@dataclass(frozen=True)
class Peer:
    """A lock of one library, opened on the ports of its servers."""

    name: str
    kind: type[Blocking | Asyncio]
    open: Callable[..., Any]
    installed: Callable[[], bool] = lambda: True

    def on(self, ports: Sequence[int]) -> Blocking | Asyncio:
        """It, on these servers of loopback."""
        return self.kind(self.name, partial(self.open, tuple(ports), KEY))

    def on_own_keys(self, ports: Sequence[int]) -> Blocking | Asyncio:
        """It, on these servers, with a key of its own for each waiter."""
        return self.kind(self.name, partial(_open_own, self.open, tuple(ports)))


_numbers = itertools.count()


def _open_own(open_: Callable[..., Any], ports: tuple[int, ...], directory: Path) -> Any:
    return open_(ports, f"{os.getpid()}-{next(_numbers)}", directory)


def _urls(ports: Sequence[int]) -> list[str]:
    return [f"redis://127.0.0.1:{port}/0" for port in ports]


def _engine(ports: Sequence[int]) -> str | list[str]:
    urls = [f"{url}?recovery=off" for url in _urls(ports)]
    return urls if len(urls) > 1 else urls[0]


@cache
def _locks(ports: tuple[int, ...]) -> Locks:
    return Locks.from_url(_engine(ports), wait=None, ttl=TTL)


@cache
def _asyncio_locks(ports: tuple[int, ...]) -> AsyncLocks:
    return AsyncLocks.from_url(_engine(ports), wait=None, ttl=TTL)


def _weblock(ports: tuple[int, ...], key: str, _directory: Path) -> Section:
    return partial(_locks(ports).hold, key)


def _weblock_asyncio(ports: tuple[int, ...], key: str, _directory: Path) -> AsyncSection:
    return partial(_asyncio_locks(ports).hold, key)


def _single(ports: tuple[int, ...], key: str, directory: Path) -> Section:
    return _weblock(ports[:1], key, directory)


def _single_asyncio(ports: tuple[int, ...], key: str, directory: Path) -> AsyncSection:
    return _weblock_asyncio(ports[:1], key, directory)


def _floor_asyncio(ports: tuple[int, ...], key: str, _directory: Path) -> AsyncSection:
    section = Majority(ports, key)
    return lambda: section


@cache
def _masters(ports: tuple[int, ...]) -> set[redis.Redis]:
    return {redis.Redis.from_url(url) for url in _urls(ports)}


def _pottery(ports: tuple[int, ...], key: str, _directory: Path) -> Section:
    lock: Any = importlib.import_module("pottery").Redlock
    made = lock(key=key, masters=_masters(ports), auto_release_time=TTL)
    return lambda: made


def _pottery_asyncio(ports: tuple[int, ...], key: str, _directory: Path) -> AsyncSection:
    lock: Any = importlib.import_module("pottery").AIORedlock

    masters = {redis.asyncio.Redis.from_url(url) for url in _urls(ports)}
    made = lock(key=key, masters=masters, auto_release_time=TTL)
    return lambda: made


def _redlock_py(ports: tuple[int, ...], key: str, _directory: Path) -> Section:
    manager = apart.imported(PY, "redlock").Redlock(_urls(ports))

    @contextlib.contextmanager
    def section() -> Iterator[None]:
        while not (lock := manager.lock(key, int(1000 * TTL))):
            """It gives up after three attempts; a caller that has to get the lock goes on."""
        try:
            yield
        finally:
            manager.unlock(lock)

    return section


def _redlock_ng(ports: tuple[int, ...], key: str, _directory: Path) -> Section:
    manager = apart.imported(NG, "redlock").Redlock(_urls(ports))
    return lambda: manager.lock(key, ttl=int(1000 * TTL), blocking=True)


def _redlock_ng_asyncio(ports: tuple[int, ...], key: str, _directory: Path) -> AsyncSection:
    manager = apart.imported(NG, "redlock").AsyncRedlock(_urls(ports))

    @contextlib.asynccontextmanager
    async def section() -> AsyncIterator[None]:
        async with manager.lock(key, ttl=int(1000 * TTL), blocking=True):
            yield

    return section


def _has_pottery() -> bool:
    return importlib.util.find_spec("pottery") is not None


WEBLOCK = Peer("weblock, quorum", Blocking, _weblock)
WEBLOCK_ASYNCIO = Peer("weblock, quorum, asyncio", Asyncio, _weblock_asyncio)
SINGLE = Peer("weblock, one server", Blocking, _single)
SINGLE_ASYNCIO = Peer("weblock, one server, asyncio", Asyncio, _single_asyncio)
FLOOR_ASYNCIO = Peer("floor: bare commands to three servers, asyncio", Asyncio, _floor_asyncio)
POTTERY = Peer("pottery", Blocking, _pottery, _has_pottery)
POTTERY_ASYNCIO = Peer("pottery, asyncio", Asyncio, _pottery_asyncio, _has_pottery)
REDLOCK_PY = Peer(PY, Blocking, _redlock_py, partial(apart.install, PY))
REDLOCK_NG = Peer(NG, Blocking, _redlock_ng, partial(apart.install, NG, "pydantic"))
REDLOCK_NG_ASYNCIO = Peer(
    f"{NG}, asyncio", Asyncio, _redlock_ng_asyncio, partial(apart.install, NG, "pydantic")
)

PEERS = (
    WEBLOCK,
    WEBLOCK_ASYNCIO,
    SINGLE,
    SINGLE_ASYNCIO,
    FLOOR_ASYNCIO,
    POTTERY,
    POTTERY_ASYNCIO,
    REDLOCK_PY,
    REDLOCK_NG,
    REDLOCK_NG_ASYNCIO,
)


def installed(*, waiters: int = 1) -> list[Peer]:
    """Those that can be measured here. The floor is for one who is alone."""
    return [
        peer for peer in PEERS if peer.installed() and not (waiters > 1 and peer is FLOOR_ASYNCIO)
    ]
