"""What exists below the nodes of keys, and which of it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..._core.holding import DRIFT
from ..._core.table import HANDOFF, Answer, Busy, Gone, Waiting
from .memory import Memory
from .nodes import Family, Lease, family_of, lease_of
from .wire import Key, Wire


class Scene(NamedTuple):
    """The nodes below a key's node, at one moment."""

    key: Key
    family: Family
    live: tuple[Lease, ...]
    """In the order of their fences."""
    ended: tuple[Lease, ...]
    """Leases that count as ended, and whose nodes still exist."""
    until: float
    """When the first live lease counts as ended, unless it is renewed before."""

    def admits(self, limit: int) -> bool:
        """Return whether a claim with this limit fits beside the leases that live."""
        return len(self.live) < min([limit, *(lease.limit for lease in self.live)])

    @property
    def admits_first(self) -> bool:
        """Whether it is the turn of the first waiter."""
        places = self.family.places
        return bool(places) and self.admits(places[0].limit)

    def in_the_way_of(self, limit: int) -> Sequence[Lease]:
        """Return as few leases as possible of which one must end before a claim with this limit fits.

        While none of them ends, at least as many leases live as the smallest limit among them and the claim.
        """
        live = sorted(self.live, key=lambda lease: lease.limit)
        return live[: min(limit, live[0].limit)] if live else ()

    def lease_of(self, owner: str) -> Lease | None:
        """Return the lease of an owner, if it was read."""
        found = [lease for lease in (*self.live, *self.ended) if lease.owner == owner]
        return found[0] if found else None

    def standing(self, owner: str) -> Answer:
        """Return the state of a waiter; ``Gone`` if it has no place, or if it is its turn to ask."""
        position = self.family.position_of(owner)
        if position is None or (position == 0 and self.admits_first):
            return Gone()
        return self.waiting(position)

    def waiting(self, position: int) -> Waiting:
        """Return the answer to a caller in this place."""
        return Waiting(position, self.until, (), "", self.holder, self.others)

    def busy(self, waiters: int) -> Busy:
        """Return the answer to a caller that does not wait behind these waiters."""
        return Busy(self.until, waiters, holder=self.holder, others=self.others)

    @property
    def holder(self) -> str:
        """The label of the oldest holder."""
        leases = self.live or self.ended
        return leases[0].label if leases else ""

    @property
    def others(self) -> int:
        """How many leases live besides that of the oldest holder."""
        return max(0, len(self.live) - 1)


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
            family_of(()) if isinstance(each, Exception) else family_of(*each) for each in found
        ]
        read = await self._wire.all(
            *(
                key.session.client.get_async(key.path(name))
                for key, family in zip(keys, families, strict=True)
                for name in family.leases
            )
        )
        contents = iter(read)
        return [
            self._scene(key, family, [(name, next(contents)) for name in family.leases])
            for key, family in zip(keys, families, strict=True)
        ]

    def _scene(self, key: Key, family: Family, read: Sequence[tuple[str, Any]]) -> Scene:
        leases = [lease_of(name, *data) for name, data in read if not isinstance(data, Exception)]
        return self._timed(key, family, leases)

    def _timed(self, key: Key, family: Family, leases: Sequence[Lease]) -> Scene:
        now, first_seen = self._wire.now(), self._memory.first_seen
        timed = [
            lease._replace(until=first_seen(_version(key, lease), now) + lease.ttl)
            for lease in sorted(leases, key=lambda lease: lease.fence)
        ]
        live = tuple(lease for lease in timed if now < lease.until)
        ended = tuple(lease for lease in timed if now >= lease.until)
        until = min((lease.until for lease in live), default=now)
        return Scene(key, family, live, ended, until)

    async def without_the_dead(self, scene: Scene) -> Scene:
        """Return the scene, with leases counted as ended that had ended before this process could time them.

        Their holders' sessions must have expired: only then are the servers' stamps believed.
        """
        session = scene.key.session
        holders = list(dict.fromkeys(lease.session for lease in scene.live))
        signs = [session.client.get_async(session.layout.of_session(each)) for each in holders]
        found = zip(holders, await self._wire.all(*signs), strict=True)
        dead = {holder for holder, sign in found if isinstance(sign, Exception)}
        if not dead:
            return scene
        stamp = await self._wire.stamp(session)
        for lease in scene.live:
            unchanged = stamp - lease.renewed
            if lease.session in dead and unchanged >= lease.ttl * (1 + 2 * DRIFT):
                self._memory.ended(_version(scene.key, lease))
        return self._timed(scene.key, scene.family, [*scene.live, *scene.ended])

    def remove_orphans(self, scene: Scene) -> None:
        """Remove the places of this process whose owners it has given up for want of an answer."""
        session, asked = scene.key.session, self._memory.asked
        for place in scene.family.places:
            if place.owner not in asked and place.session == session.name:
                session.client.delete_async(scene.key.path(place.name))

    def pass_over_first(self, scene: Scene) -> None:
        """Remove the first place if it does not take its turn, and all of its process."""
        if not scene.admits_first:
            return
        now, family = self._wire.now(), scene.family
        first = family.places[0]
        ended = tuple(_version(scene.key, lease) for lease in scene.ended)
        turn = (scene.key.node, family.born, first.name, ended)
        if now - self._memory.first_seen(turn, now) >= HANDOFF:
            for place in family.places:
                if place.session == first.session:
                    scene.key.session.client.delete_async(scene.key.path(place.name))


def _version(key: Key, lease: Lease) -> tuple[str, str, int, int]:
    """Return what changes with each renewal of a lease, and is another for the owner's next lease."""
    return (key.node, lease.name, lease.born, lease.version)
