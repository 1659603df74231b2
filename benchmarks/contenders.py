"""The locks that are compared, each behind the same small door.

A contender's ``open`` is called once by each waiter, with a directory that all of them share, and
gives a function that makes critical sections: ``with section(): ...``, on one and the same key.
Peers run as their documentation shows them, with the poll intervals that they have by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from filelock import AsyncFileLock, FileLock

from weblock import AsyncLocks, Locks

Section = Callable[[], AbstractContextManager[object]]
AsyncSection = Callable[[], AbstractAsyncContextManager[object]]

KEY = "hot"


@dataclass(frozen=True)
class Blocking:
    """A lock whose waiters are threads."""

    name: str
    open: Callable[[Path], Section]


@dataclass(frozen=True)
class Asyncio:
    """A lock whose waiters are tasks."""

    name: str
    open: Callable[[Path], AsyncSection]


Contender = Blocking | Asyncio


def _embedded(directory: Path) -> Section:
    locks = Locks.from_url(f"file://{directory}/weblock?allow_container=true", wait=None)
    return lambda: locks.hold(KEY)


def _embedded_asyncio(directory: Path) -> AsyncSection:
    locks = AsyncLocks.from_url(f"file://{directory}/weblock?allow_container=true", wait=None)
    return lambda: locks.hold(KEY)


def _memory_asyncio(_directory: Path) -> AsyncSection:
    locks = AsyncLocks.from_url("memory://benchmarks", wait=None)
    return lambda: locks.hold(KEY)


def _filelock(directory: Path) -> Section:
    lock = FileLock(directory / "filelock")
    return lambda: lock


def _filelock_asyncio(directory: Path) -> AsyncSection:
    lock = AsyncFileLock(directory / "filelock")
    return lambda: lock


def _sqlite(directory: Path) -> Section:
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


def _asyncio_lock(_directory: Path) -> AsyncSection:
    lock = asyncio.Lock()
    return lambda: lock


EMBEDDED = Blocking("weblock file://", _embedded)
EMBEDDED_ASYNCIO = Asyncio("weblock file://, asyncio", _embedded_asyncio)
FILELOCK = Blocking("filelock", _filelock)
FILELOCK_ASYNCIO = Asyncio("filelock, asyncio", _filelock_asyncio)
SQLITE = Blocking("SQLite BEGIN IMMEDIATE", _sqlite)
MEMORY_ASYNCIO = Asyncio("weblock memory://, asyncio", _memory_asyncio)
ASYNCIO_LOCK = Asyncio("asyncio.Lock", _asyncio_lock)
