"""What exists below the nodes of keys, and which of it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..._core.holding import DRIFT
from ..._core.table import HANDOFF, Answer, Gone, Waiting
from .memory import Memory
from .nodes import Family, Lease, family_of, lease_of
from .wire import Key, Wire


class Scene(NamedTuple):
    """The nodes below a key's node."""

    key: Key
    family: Family
    lease: Lease | None
    until: float
    """When the lease counts as ended, unless it is renewed before."""

    def ended(self, now: float) -> bool:
        return self.lease is None or now >= self.until

    @property
    def seen(self) -> tuple[str, str, int] | None:
        """The version of the lease, which changes with each renewal."""
        return (self.key.node, self.lease.name, self.lease.version) if self.lease else None

    def standing(self, owner: str, now: float) -> Answer:
        """Return the state of a waiter; ``Gone`` if it has no place, or if it is its turn to ask."""
        position = self.family.position_of(owner)
        if position is None or (position == 0 and self.ended(now)):
            return Gone()
        return self.waiting(position)

    def waiting(self, position: int) -> Waiting:
        """Return the answer to a caller in this place."""
        return Waiting(position, self.until, (), holder=self.holder)

    @property
    def holder(self) -> str:
        """The holder's label."""
        return self.lease.label if self.lease else ""


class Scenes:
    """Reads nodes, and remembers since when each has been unchanged."""

    def __init__(self, wire: Wire, memory: Memory) -> None:
        self._wire = wire
        self._memory = memory

    async def look(self, *keys: Key) -> Sequence[Scene]:
        """Return what exists below several nodes."""
        found = await self._wire.all(
            *(key.session.client.get_children_async(key.node, include_data=True) for key in keys)
        )
        families = [
            family_of(()) if isinstance(each, Exception) else family_of(each[0], each[1].version)
            for each in found
        ]
        having = [(key, family.lease) for key, family in zip(keys, families, strict=True)]
        read = iter(
            await self._wire.all(
                *(key.session.client.get_async(key.path(name)) for key, name in having if name)
            )
        )
        leases = [
            lease_of(name, *data)
            if name and not isinstance(data := next(read), Exception)
            else None
            for _, name in having
        ]
        return [self._scene(*each) for each in zip(keys, families, leases, strict=True)]

    def _scene(self, key: Key, family: Family, lease: Lease | None) -> Scene:
        now = self._wire.now()
        scene = Scene(key, family, lease, now)
        if lease is None:
            return scene
        return scene._replace(until=self._memory.first_seen(scene.seen, now) + lease.ttl)

    async def has_ended_before(self, scene: Scene) -> bool:
        """Return whether a lease had ended before any process saw it unchanged.

        Its holder's session must have expired; only then are the servers' stamps believed.
        """
        if scene.lease is None:
            return True
        session = scene.key.session
        sign = session.layout.of_session(scene.lease.session)
        (alive,) = await self._wire.all(session.client.get_async(sign))
        if not isinstance(alive, Exception):
            return False
        unchanged = await self._wire.stamp(session) - scene.lease.renewed
        if unchanged < scene.lease.ttl * (1 + 2 * DRIFT):
            return False
        self._memory.ended(scene.seen)
        return True

    def pass_over_first(self, scene: Scene) -> None:
        """Remove the first place if it does not take its turn, and all of its process."""
        now, places = self._wire.now(), scene.family.places
        if not places or not scene.ended(now):
            return
        turn = (scene.key.node, places[0].name, scene.seen)
        if now - self._memory.first_seen(turn, now) >= HANDOFF:
            for place in places:
                if place.session == places[0].session:
                    scene.key.session.client.delete_async(scene.key.path(place.name))
