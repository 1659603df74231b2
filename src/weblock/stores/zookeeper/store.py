"""The lock protocol on ZooKeeper's nodes.

Three rules make that safe, whatever is late, repeated or stale:

- every grant is one transaction, on condition that the key's node is new, or that its version is
  the one at which its leases left room for one more: so there are never more than their limits say;
- a lease has ended for another process when that process has seen its node unchanged for a ttl, on
  its own clock. The holder counts from before it sent the change, so it knows earlier. No two
  clocks are compared; only their rates matter, and the holder allows for those;
- it is removed on condition that it is still unchanged: a renewal under way wins, or fails.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kazoo.exceptions import BadVersionError

from ..._core import table
from ..._core.ports import Look, Pulse, Reply, Runtime, Store
from ..._core.table import Asked, Claim, Gone, Grant, KeyState, Released
from ...errors import EngineUnavailable
from .acquiring import Acquiring
from .marks import Marks
from .nodes import Lease, Place, asking, fields_of, key_of
from .renewing import Renewing
from .scenes import Scenes
from .session import Session
from .wire import Key, Wire

if TYPE_CHECKING:
    from . import ZooKeeperEngine

_ATTEMPTS: Final = 100
"""How often to retry when a key's children change meanwhile: each time others got on."""

_PORTION: Final = 500
"""How many keys are read at once when many are listed."""


class ZooKeeperStore(Store):
    """One runtime's way to an ensemble."""

    process = ""  # Nobody else rings us: ZooKeeper does, in our session.

    def __init__(self, engine: ZooKeeperEngine, runtime: Runtime) -> None:
        wire, memory = Wire(engine, runtime), engine.memory
        self._wire = wire
        self._memory = memory
        self._switchboard = engine.switchboard
        self._scenes = Scenes(wire, memory)
        self._renewing = Renewing(wire, memory)
        self._acquiring = Acquiring(wire, memory, self._scenes, self._renewing, engine.switchboard)
        self._marks = Marks(wire)

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        with self._memory.acquires(claim.owner):
            node = await self._wire.key(key)
            for _ in range(_ATTEMPTS):
                if reply := await self._acquiring.attempt(node, claim, room):
                    return reply
        raise self._wire.unavailable("other processes kept changing the key")

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        """Remove whatever the owner has; ``void`` is needless where requests keep their order.

        An acquisition of the owner that is still under way in another thread or task makes nothing from now on.
        """
        held = owner in self._memory.leases
        self._memory.release(owner)
        node = await self._wire.key(key)
        return self._wire.reply(await self._acquiring.give_back(node, owner, held=held))

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        session, memory = await self._wire.session(), self._memory
        memory.forget_ended(self._wire.now(), self._switchboard.bells)
        held = [pulse for pulse in pulses if pulse.owner in memory.leases]
        waiting = [pulse for pulse in pulses if pulse.owner not in memory.leases]
        replies = dict(zip(_owners(held), await self._renewing.all(session, held), strict=True))
        try:
            replies |= zip(_owners(waiting), await self._watch_over(session, waiting), strict=True)
        except EngineUnavailable as error:
            replies |= dict.fromkeys(_owners(waiting), error)
        return [replies[pulse.owner] for pulse in pulses]

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        node = await self._wire.key(key, anew=True)
        return await self._acquiring.transfer(node, owner, claim, fence)

    async def force_release(self, key: str) -> Reply:
        node = await self._wire.key(key, anew=True)
        (scene,) = await self._scenes.look(node)
        if not scene.live:
            return self._wire.reply(Gone())
        client = node.session.client
        leases = (*scene.live, *scene.ended)
        *done, _ = await self._wire.all(
            *(client.delete_async(node.path(lease.name)) for lease in leases),
            client.delete_async(node.node),
        )
        refused = all(isinstance(each, Exception) for each in done)
        return self._wire.reply(Gone() if refused else Released())

    async def ask_release(self, key: str) -> Reply:
        """Write the request into the nodes of the leases, of which each renewal reads its own."""
        node = await self._wire.key(key, anew=True)
        for _ in range(_ATTEMPTS):
            (scene,) = await self._scenes.look(node)
            if not scene.live:
                return self._wire.reply(Gone())
            if await self._ask(node, scene.live):
                return self._wire.reply(Asked())
        raise self._wire.unavailable("other processes kept changing the key")

    async def _ask(self, key: Key, leases: Sequence[Lease]) -> bool:
        """Ask the holders; return whether all that still are there were reached."""
        client = key.session.client
        found = await self._wire.all(*(client.get_async(key.path(each.name)) for each in leases))
        there = [
            (lease.name, each)
            for lease, each in zip(leases, found, strict=True)
            if not isinstance(each, Exception)
        ]
        # A renewal in between is not written over: then we read again.
        done = await self._wire.outcomes(
            *(
                client.set_async(key.path(name), asking(data), version=stat.version)
                for name, (data, stat) in there
            )
        )
        for each in done:
            if isinstance(each, EngineUnavailable):
                raise each
        return bool(there) and not any(isinstance(each, BadVersionError) for each in done)

    async def look(self, key: str) -> Look:
        node = await self._wire.key(key, anew=True)
        (scene,) = await self._scenes.look(node)
        get, places = node.session.client.get_async, scene.family.places
        found = await self._wire.all(*(get(node.path(place.name)) for place in places))
        now = self._wire.now()
        queue = tuple(
            _waiter(place, data[0], now)
            for place, data in zip(places, found, strict=True)
            if not isinstance(data, Exception)
        )
        grants = tuple(_grant(lease, now) for lease in scene.live)
        return Look(KeyState(grants[-1].fence if grants else 0, grants, queue), now)

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        session = await self._wire.session()
        root, client = session.layout.keys, session.client
        _, nodes = await self._wire.all(client.sync_async(root), client.get_children_async(root))
        if isinstance(nodes, Exception):
            return ()
        names = [name for name in map(key_of, nodes) if name.startswith(prefix)]
        found: list[str] = []
        for start in range(0, len(names), _PORTION):
            if len(found) >= limit:
                break
            portion = names[start : start + _PORTION]
            keys = [Key(session, session.layout.of_key(name)) for name in portion]
            scenes = await self._scenes.look(*keys)
            found += [
                name
                for name, scene in zip(portion, scenes, strict=True)
                if scene.family.places or scene.live
            ]
        return found[:limit]

    async def mark(self, key: str, keep: float | None) -> None:
        await self._marks.put(key, keep)

    async def marked(self, key: str) -> bool:
        return await self._marks.has(key)

    async def _watch_over(self, session: Session, pulses: Sequence[Pulse]) -> list[Reply]:
        """Return the state of the waiters; one that does not take its turn is passed over."""
        keys = {pulse.key: Key(session, session.layout.of_key(pulse.key)) for pulse in pulses}
        scenes = dict(zip(keys, await self._scenes.look(*keys.values()), strict=True))
        for scene in scenes.values():
            self._scenes.remove_orphans(scene)
            self._scenes.pass_over_first(scene)
        return [self._wire.reply(scenes[pulse.key].standing(pulse.owner)) for pulse in pulses]


def _owners(pulses: Sequence[Pulse]) -> list[str]:
    return [pulse.owner for pulse in pulses]


def _waiter(place: Place, data: bytes, now: float) -> table.Place:
    said = fields_of(data)
    claim = Claim("", place.session, said["ttl"], said["label"], place.limit)
    return table.Place(claim, now + table.PLACE)


def _grant(lease: Lease, now: float) -> Grant:
    """Return a lease for observers, for whom the servers' stamps are good enough."""
    age, unchanged = (max(0.0, time.time() - stamp) for stamp in (lease.granted, lease.renewed))
    claim = Claim("", lease.session, lease.ttl, lease.label, lease.limit)
    until = min(lease.until, now + max(0.0, lease.ttl - unchanged))
    return Grant(claim, lease.fence, now - age, until, confirmed=True)
