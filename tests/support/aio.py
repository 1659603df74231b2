"""What ``tests.support.waiting`` offers, under the same names, for tests that are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weblock import AsyncLocks

from .waiting import PATIENCE, now, pause_after

__all__ = ["PATIENCE", "eventually", "until_waited_for"]


async def eventually(condition: Callable[[], object], *, within: float = PATIENCE) -> None:
    """Returns when ``condition`` is true; fails if it is not ``within`` so many seconds."""
    began = now()
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - any condition, whoever brings it about
            await asyncio.sleep(pause_after(now() - began))


async def until_waited_for(locks: AsyncLocks, key: str, *, by: int = 1) -> None:
    """Returns when ``by`` callers wait for ``key``, which is held."""
    began = now()
    async with asyncio.timeout(PATIENCE):
        # The engine notifies nobody of a new waiter.
        while (info := await locks.inspect(key)) is None or len(info.waiters) != by:  # noqa: ASYNC110
            await asyncio.sleep(pause_after(now() - began))
