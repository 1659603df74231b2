"""Marks of what has been done: a node for each, which has nothing to do with that of its key.

The servers' stamps say when they end. Those that have ended are removed a few at a time, on
condition that no mark was written since they were read. The version of its node does not tell a
mark from the next one of its key: that has the same one if another process has removed the first in
between. So each mark is written together with the node above all marks, whose version tells.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterable
from typing import Any, Final

from ...errors import EngineUnavailable
from .session import Session
from .wire import Wire

_ATTEMPTS: Final = 100
"""How often to retry when a mark is removed while it is written."""

_NEVER: Final = float("inf")

PORTION: Final = 20
"""How many marks are checked with each new one: those that have ended become fewer."""

ROUND_EVERY: Final = 600.0
"""Seconds between two lists of all marks that a process asks for."""


class Rounds:
    """Which marks to check for their end: a few with each new one, and in time all of them.

    So marks that have ended do not pile up, and a call does not take longer for their number.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._list_at = float("-inf")

    def due(self, now: float) -> bool:
        """Return whether the marks should be listed again, for ``begin``."""
        return not self._names and now >= self._list_at

    def begin(self, names: Iterable[str], now: float) -> None:
        """Begin a round, in random order: processes that end soon check all of them together."""
        self._names = list(names)
        random.shuffle(self._names)
        self._list_at = now + ROUND_EVERY

    def portion(self) -> list[str]:
        """Return the names of the next few marks to check; none before the next round."""
        portion, self._names = self._names[:PORTION], self._names[PORTION:]
        return portion


class Marks:
    """The marks of an ensemble."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._rounds = Rounds()

    async def put(self, key: str, keep: float | None) -> None:
        session = await self._wire.session()
        client, path, data = session.client, session.mark(key), json.dumps(keep).encode()
        if keep == 0:
            await self._wire.all(client.delete_async(path))
            return
        for _ in range(_ATTEMPTS):
            write = client.transaction()
            write.set_data(session.marks, b"")
            write.set_data(path, data)
            create = client.create_async(path, data)
            _, parts = await self._wire.all(create, write.commit_async())
            if not self._wire.refused(parts):
                with contextlib.suppress(EngineUnavailable):  # The next mark tries again.
                    await self._remove_ended(session)
                return
            # Another process has removed the node, or another client those above it.
            await self._wire.all(*session.prepare())
        raise self._wire.unavailable("other processes kept removing what was written")

    async def has(self, key: str) -> bool:
        session = await self._wire.session()
        path, client = session.mark(key), session.client
        _, found = await self._wire.all(client.sync_async(path), client.get_async(path))
        if isinstance(found, Exception):
            return False
        end = _end_of(*found)
        return end == _NEVER or await self._wire.servers_time(session) < end

    async def _remove_ended(self, session: Session) -> None:
        """Remove a few of the marks that have ended, unless others are written meanwhile."""
        above, client, now = session.marks, session.client, self._wire.now()
        if self._rounds.due(now):
            (names,) = await self._wire.all(client.get_children_async(above))
            self._rounds.begin(() if isinstance(names, Exception) else names, now)
        paths = [f"{above}/{name}" for name in self._rounds.portion()]
        if not paths:
            return
        # First the version that must not change, then what is judged.
        known, *found = await self._wire.all(*map(client.get_async, [above, *paths]))
        marks = zip(paths, found, strict=True)
        ends = {path: _end_of(*each) for path, each in marks if not isinstance(each, Exception)}
        if isinstance(known, Exception) or all(end == _NEVER for end in ends.values()):
            return
        servers_now, removals = await self._wire.servers_time(session), []
        for path in (path for path, end in ends.items() if end <= servers_now):
            removal = client.transaction()
            removal.check(above, known[1].version)
            removal.delete(path)
            removals.append(removal.commit_async())
        await self._wire.all(*removals)


def _end_of(data: bytes, stat: Any) -> float:
    """Return when a mark ends, on the servers' clock."""
    keep = json.loads(data)
    return _NEVER if keep is None else float(stat.mtime / 1000 + keep)
