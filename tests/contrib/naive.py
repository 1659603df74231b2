"""The dependency that everybody writes first: it releases by itself, when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.support.waiting import PATIENCE
from weblock import AsyncLease, AsyncLocks


def naive_lock(
    locks: AsyncLocks, key: str, **options: Any
) -> Callable[[], AsyncIterator[AsyncLease]]:
    """A ``yield`` dependency that holds ``key``."""

    async def hold() -> AsyncIterator[AsyncLease]:
        lease = await locks.acquire(key, wait=PATIENCE, **options)
        try:
            yield lease
        finally:
            await lease.release()

    return hold
