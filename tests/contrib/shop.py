"""A shop with room for three items, whose commits are slow enough to be overtaken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from weblock import AsyncLocks

BOUND = 3

OVERTAKING = 0.05
"""Seconds that a commit waits, at most, for somebody to look at the items before it is done."""


class CommitFailed(Exception):
    """The database could not commit."""


class Shop:
    """Its items; what happened, in order; and whether commits fail."""

    def __init__(self) -> None:
        self.items = 0
        self.events: list[str] = []
        self.commits_fail = False
        self._looked = threading.Condition()
        self._looks = 0

    def has_room(self) -> bool:
        """Looks at what has been committed."""
        with self._looked:
            self._looks += 1
            self._looked.notify_all()
            return self.items < BOUND

    async def async_session(self) -> AsyncIterator[Session]:
        """A session that commits when its dependency ends."""
        session = Session()
        yield session
        if session.added:
            await asyncio.to_thread(self._commit, session.added)

    def sync_session(self) -> Iterator[Session]:
        """The same, in a thread of the pool."""
        session = Session()
        yield session
        if session.added:
            self._commit(session.added)

    def _commit(self, added: int) -> None:
        with self._looked:
            before = self._looks
            self._looked.wait_for(lambda: self._looks > before, OVERTAKING)
            if self.commits_fail:
                raise CommitFailed
            self.items += added
            self.events.append("commit")


class Session:
    """Items that are not committed yet."""

    def __init__(self) -> None:
        self.added = 0


class RecordingLocks(AsyncLocks):
    """Notes each release among the events."""

    events: list[str]

    def _use(self, engine: Any, runtime: Any) -> None:
        super()._use(engine, runtime)
        release = self._locker.release

        async def recorded(holdings: Any) -> None:
            await release(holdings)
            self.events.append("release")

        self._locker.release = recorded  # type: ignore[method-assign]
