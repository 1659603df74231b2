"""Which key is kept in which record file, and waiting for what should happen."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from weblock import Locks, LockTimeout
from weblock._runtime.clock import now
from weblock.keys import qualified
from weblock.stores.file.records import file_of

from .processes import PATIENCE


def record_of(folder: Path, key: str) -> Path:
    """The record file of a key."""
    return folder / f"records-{file_of(qualified('default', key)):02d}"


def keys_in(record: Path, count: int) -> list[str]:
    """Keys that are kept in a record file."""
    folder = record.parent
    found = (f"key {n}" for n in itertools.count() if record_of(folder, f"key {n}") == record)
    return list(itertools.islice(found, count))


def key_outside(record: Path) -> str:
    """A key that is kept elsewhere."""
    folder = record.parent
    return next(f"key {n}" for n in itertools.count() if record_of(folder, f"key {n}") != record)


def eventually(condition: Callable[[], object], *, within: float = PATIENCE) -> None:
    """Returns when ``condition`` is true; fails if it is not ``within`` so many seconds."""
    until = now() + within
    while not condition():
        assert now() < until, "what should have happened has not"
        time.sleep(0.005)


def waiters(locks: Locks, key: str) -> int:
    """How many wait for a key that is held."""

    def ask() -> int:
        try:
            locks.acquire(key, wait=1, max_waiters=0).release()
        except LockTimeout as busy:
            return busy.waiters or 0
        return 0

    with ThreadPoolExecutor(1) as pool:  # The holder itself may not even ask.
        return pool.submit(ask).result(PATIENCE)
