"""Waiting for conditions, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weblock import AsyncLocks

PATIENCE = 30.0
"""Seconds, for what takes milliseconds on an idle machine."""


async def eventually(condition: Callable[[], object], *, within: float = PATIENCE) -> None:
    """Returns when ``condition`` is true; fails if it is not ``within`` so many seconds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - any condition, whoever brings it about
            await asyncio.sleep(0.001)


async def until_waited_for(locks: AsyncLocks, key: str, *, by: int = 1) -> None:
    """Returns when so many wait for ``key``, which is held."""
    async with asyncio.timeout(PATIENCE):
        # Any engine, whoever waits.
        while (info := await locks.inspect(key)) is None or len(info.waiters) != by:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
