"""A shop with room for three items, whose commits can be overtaken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tests.support.waiting import PATIENCE
from weblock import AsyncLocks

BOUND = 3


class CommitFailed(Exception):
    """The database could not commit."""


class Shop:
    """Its items; what happened, in order; and whether commits fail."""

    def __init__(self) -> None:
        self.items = 0
        self.events: list[str] = []
        self.commits_fail = False
        self.visitors = 0
        """How many look at the items, if they can. Else nobody is waited for without end."""
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
            self._wait_to_be_overtaken()
            if self.commits_fail:
                raise CommitFailed
            self.items += added
            self.events.append("commit")

    def _wait_to_be_overtaken(self) -> None:
        """Returns when another has looked, or soon: who is inside a lock would wait in vain."""
        before = self._looks
        patience = PATIENCE if self.visitors else 0.05
        self._looked.wait_for(
            lambda: self._looks > before or self._looks == self.visitors, patience
        )


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
