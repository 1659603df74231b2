"""Looks at an engine once a second, for all who watch a page."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextvars import Context
from typing import Any, Final

from ...aio import AsyncLocks
from ...errors import EngineUnavailable
from ...inspection import KeyInfo
from ...operating import as_dict
from ...sync import Locks
from .history import KEPT

EVERY: Final = 1.0
"""Seconds between two reads, while a client watches."""

SELDOM: Final = 5.0
"""Seconds between two reads after the last client has gone, to fill the next one's charts."""

LIMIT: Final = 500
"""Keys on a page."""

Snapshot = dict[str, Any]


class Looks:
    """The last look at the keys of one ``Locks``, and how many held and waited in those before.

    It begins with the first who watches, and ends ``KEPT`` seconds after the last. All share one task, so
    the engine is asked once a second, however many watch.
    """

    def __init__(self, locks: AsyncLocks | Locks) -> None:
        self._locks = locks
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=round(KEPT / EVERY))
        self._watchers = 0
        self._idle_since = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self._looked: asyncio.Event = asyncio.Event()
        self.last: Snapshot = {}

    async def fresh(self) -> Snapshot:
        """Look now, and return what there is."""
        await self._look()
        self._ensure_looking()
        return self.last

    async def recent(self) -> Snapshot:
        """Return what was seen within the last second; look now only if that is longer ago."""
        age = time.time() - self.last.get("at", 0.0)
        return self.last if 0 <= age < EVERY and self._watchers > 1 else await self.fresh()

    async def next(self) -> Snapshot:
        """Return what the next look sees."""
        self._ensure_looking()
        looked = self._looked
        await looked.wait()
        return self.last

    def watch(self) -> None:
        """Record that a client watches, until ``leave``."""
        self._watchers += 1

    def leave(self) -> None:
        """Record that a client has stopped watching."""
        self._watchers -= 1
        self._idle_since = time.monotonic()

    def _ensure_looking(self) -> None:
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._looked = asyncio.Event()  # Each belongs to one loop.
            self._task = loop.create_task(self._go_on(), name="weblock-status", context=Context())

    async def _go_on(self) -> None:
        while self._watchers or time.monotonic() - self._idle_since < KEPT:
            await asyncio.sleep(EVERY if self._watchers else SELDOM)
            await self._look()

    async def _look(self) -> None:
        error, infos = None, list[KeyInfo]()
        try:
            infos = await self._listed()
        except EngineUnavailable as failure:
            error = str(failure)
        now = time.time()
        held = sum(info.holder is not None for info in infos)
        waiting = sum(len(info.waiters) for info in infos)
        if error is None:
            self._samples.append((round(now, 1), held, waiting))
        infos.sort(key=lambda info: (-len(info.waiters), -info.held_for, info.key))
        self.last = {
            "at": now,
            "error": error,
            "keys": [as_dict(info) for info in infos],
            "more": len(infos) == LIMIT,
            "held": held,
            "waiting": waiting,
            "samples": [list(each) for each in self._samples],
        }
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()

    async def _listed(self) -> list[KeyInfo]:
        locks = self._locks
        if isinstance(locks, AsyncLocks):
            return list(await locks.list(limit=LIMIT))
        return list(await asyncio.to_thread(locks.list, limit=LIMIT))
