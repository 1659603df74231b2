"""Marks of what has been done: a node for each, which has nothing to do with that of its key."""

from __future__ import annotations

import json

from .wire import Wire


class Marks:
    """The marks of an ensemble. The servers' stamps say when they end."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def put(self, key: str, keep: float | None) -> None:
        session = await self._wire.session()
        path, data = session.layout.of_mark(key), json.dumps(keep).encode()
        if keep == 0:
            await self._wire.all(session.client.delete_async(path))
            return
        create, change = session.client.create_async, session.client.set_async
        outcomes = await self._wire.all(create(path, data), change(path, data))
        if isinstance(outcomes[1], Exception):
            raise self._wire.unavailable(outcomes[1])

    async def has(self, key: str) -> bool:
        session = await self._wire.session()
        path, client = session.layout.of_mark(key), session.client
        _, found = await self._wire.all(client.sync_async(path), client.get_async(path))
        if isinstance(found, Exception):
            return False
        keep, stat = json.loads(found[0]), found[1]
        if keep is None or await self._wire.stamp(session) < stat.mtime / 1000 + keep:
            return True
        client.delete_async(path, version=stat.version)
        return False
