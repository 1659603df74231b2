"""One acquisition: a key that is free, or a place behind others and, in the end, a turn.

The caller that creates the node of a key has a lease: one transaction creates both. Others wait
in places below it, each watching what is before it. The first place becomes a lease when it fits
beside those that have neither been released nor have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from kazoo.exceptions import NoNodeError, RolledBackError, RuntimeInconsistency

from ..._core.ports import Ask, Reply, Switchboard
from ..._core.table import Answer, Claim, Gone, Held, Released
from .memory import Memory, Own
from .nodes import LEASE, Lease, Place, asked_in, family_of, limit_in, name_of_place, packed
from .renewing import Renewing
from .scenes import Scene, Scenes
from .wire import EXPECTED, Key, Wire

_NOT_DONE: Final = (*EXPECTED, RolledBackError, RuntimeInconsistency)
"""The results of a rejected transaction's parts, when something had changed."""


class Acquiring:
    """Acquires and releases leases and places."""

    def __init__(
        self,
        wire: Wire,
        memory: Memory,
        scenes: Scenes,
        renewing: Renewing,
        switchboard: Switchboard,
    ) -> None:
        self._wire = wire
        self._memory = memory
        self._scenes = scenes
        self._renewing = renewing
        self._switchboard = switchboard

    async def attempt(self, key: Key, claim: Claim, room: int) -> Reply | None:
        """Acquire the key, or wait for it; ``None`` if things have changed meanwhile.

        A caller that has asked before checks first: the answer may have been lost.
        """
        if claim.owner not in self._memory.acquiring:
            return self._wire.reply(Gone())
        asked = self._memory.asked
        new = claim.owner not in asked
        if new:
            asked.add(claim.owner)
            if reply := await self._grant(key, claim, self._for_free_key(key)):
                return reply
            if room:
                await self._join(key, claim)
        (scene,) = await self._scenes.look(key)
        self._scenes.remove_orphans(scene)
        if f"{LEASE}{claim.owner}" in scene.family.leases:
            lease = scene.lease_of(claim.owner)
            return await self._renewing.again(key, _limited_as(lease, claim))
        position = scene.family.position_of(claim.owner)
        if room and position is None:
            asked.discard(claim.owner)
            return None
        if position is not None:
            claim = _limited_as(scene.family.places[position], claim)
        if new and not scene.admits(claim.limit):
            scene = await self._scenes.without_the_dead(scene)
        if scene.admits(claim.limit):
            return await self._succeed(scene, claim, room)
        return await self._stay(scene, claim, room)

    async def _succeed(self, scene: Scene, claim: Claim, room: int) -> Reply | None:
        """Acquire the key, which has room for us, if it is our turn."""
        places = scene.family.places
        if not places:
            await self._join(scene.key, claim)  # As the first, also where nobody may wait.
            return None
        if places[0].owner == claim.owner:
            return await self._grant(scene.key, claim, self._for_our_turn(scene))
        self._scenes.pass_over_first(scene)
        return await self._stay(scene, claim, room)

    def _for_free_key(self, key: Key) -> Any:
        """Grant, provided that the key has no holder and no waiters."""
        grant = key.session.client.transaction()
        grant.create(key.node, b"")
        return grant

    def _for_our_turn(self, scene: Scene) -> Any:
        """Grant, provided that nothing has changed: no other lease, and we are first."""
        key, grant = scene.key, scene.key.session.client.transaction()
        grant.set_data(key.node, b"", version=scene.family.version)
        for lease in scene.ended:
            grant.delete(key.path(lease.name), version=lease.version)
        grant.delete(key.path(scene.family.places[0].name))
        return grant

    async def _grant(self, key: Key, claim: Claim, grant: Any) -> Reply | None:
        """Create the lease on conditions; the number of that transaction is its fence."""
        path, memory = key.lease_of(claim.owner), self._memory
        grant.create(path, packed(key.session.name, claim.label, claim.ttl, limit=claim.limit))
        with memory.sending:
            if claim.owner not in memory.acquiring:
                return None
            sent = self._wire.now()
            results = grant.commit_async(), key.session.client.get_async(path)
        parts, stat = await self._wire.all(*results)
        if self._was_refused(parts):
            # Another client has removed the nodes above ours.
            if isinstance(parts[0], NoNodeError):
                await self._wire.all(*key.session.prepare())
            return None
        if isinstance(stat, Exception):
            return None
        memory.leases[claim.owner] = Own(sent + claim.ttl, claim.label, claim.limit)
        return Reply(Held(stat[1].czxid, sent + claim.ttl), sent)

    def _was_refused(self, parts: Sequence[Any]) -> bool:
        """Return whether a transaction has changed nothing, because something else had changed."""
        refused = [part for part in parts if isinstance(part, Exception)]
        for part in refused:
            if not isinstance(part, _NOT_DONE):
                raise self._wire.unavailable(part) from part
        return bool(refused)

    async def transfer(self, key: Key, owner: str, claim: Claim, fence: int) -> Reply:
        """Replace the node of a lease with one that belongs to a claim and says what its fence is."""
        limit, asked = await self._said_of(key, owner, claim)
        move = key.session.client.transaction()
        # A caller that sees the key between the two nodes must not take it for free.
        move.set_data(key.node, b"")
        move.delete(key.lease_of(owner))
        said = packed(
            key.session.name, claim.label, claim.ttl, limit=limit, fence=fence, asked=asked
        )
        move.create(key.lease_of(claim.owner), said)
        sent = self._wire.now()
        (parts,) = await self._wire.all(move.commit_async())
        self._memory.forget(owner)
        self._memory.asked.add(claim.owner)
        self._memory.leases[claim.owner] = Own(sent + claim.ttl, claim.label, limit, fence, asked)
        if not self._was_refused(parts):
            return Reply(Held(fence, sent + claim.ttl, asked=asked), sent)
        # The claim may have it already: the answer to an earlier request was lost.
        return await self._renewing.again(key, claim) or self._wire.reply(Gone())

    async def _said_of(self, key: Key, owner: str, claim: Claim) -> tuple[int, bool]:
        """Return the limit of a lease that moves from an owner to a claim, and whether it was asked for."""
        client = key.session.client
        found = await self._wire.all(
            *(client.get_async(key.lease_of(each)) for each in (owner, claim.owner))
        )
        said = [each[0] for each in found if not isinstance(each, Exception)]
        return (limit_in(said[0]), asked_in(said[0])) if said else (claim.limit, False)

    async def _join(self, key: Key, claim: Claim) -> None:
        """Take a place behind all others, unless the key has become free."""
        with self._memory.sending:
            if claim.owner not in self._memory.acquiring:
                return
            result = key.session.client.create_async(
                key.path(name_of_place(key.session.name, claim.owner, claim.limit)),
                packed(key.session.name, claim.label, claim.ttl),
                ephemeral=True,
                sequence=True,
            )
        (place,) = await self._wire.all(result)
        if isinstance(place, Exception):
            self._memory.forget(claim.owner)

    async def _stay(self, scene: Scene, claim: Claim, room: int) -> Reply | None:
        """Wait in our place, if there is room."""
        places, position = scene.family.places, scene.family.position_of(claim.owner)
        if position is None:
            self._memory.forget(claim.owner)
            return self._wire.reply(scene.busy(len(places)))
        if position >= room:
            await self.give_back(scene.key, claim.owner)
            # Not before: without an answer, it may still wait there.
            self._memory.forget(claim.owner)
            return self._wire.reply(scene.busy(len(places) - 1))
        if position:
            before = [places[position - 1].name]
        else:
            before = [lease.name for lease in scene.in_the_way_of(claim.limit)]
        if before and await self._watch(scene.key, before, claim.owner):
            return self._wire.reply(scene.waiting(position))
        return None

    async def _watch(self, key: Key, names: Sequence[str], owner: str) -> bool:
        """Notify the owner when something happens to one of the nodes; return whether all exist."""
        watched = self._memory.watched
        new = {(key.path(name), owner) for name in names} - watched
        watched |= new
        there: set[tuple[str, str]] = set()
        try:
            get = key.session.client.get_async
            asked = [get(watch[0], partial(self._rung, watch)) for watch in new]
            found = zip(new, await self._wire.all(*asked), strict=True)
            there = {watch for watch, each in found if not isinstance(each, Exception)}
        finally:
            watched -= new - there
        return there == new

    def _rung(self, watch: tuple[str, str], _event: object) -> None:
        """Handle the end of a watch. Runs in kazoo's thread."""
        self._memory.watched.discard(watch)
        self._switchboard.ring(watch[1], Ask())

    async def give_back(self, key: Key, owner: str, *, held: bool = False) -> Answer:
        """Remove whatever the owner has: a lease, if it is known to be ``held``."""
        client = key.session.client
        lease, _ = await self._wire.all(
            client.delete_async(key.lease_of(owner)),
            client.delete_async(key.node),  # Which is refused while anybody waits below it.
        )
        given_back = not isinstance(lease, Exception)
        if not (held and given_back):
            (children,) = await self._wire.all(client.get_children_async(key.node))
            places = () if isinstance(children, Exception) else family_of(children).places
            gone = [key.path(place.name) for place in places if place.owner == owner]
            await self._wire.all(*map(client.delete_async, [*gone, key.node] if gone else []))
        return Released() if given_back else Gone()


def _limited_as(found: Lease | Place | None, claim: Claim) -> Claim:
    """Return a claim with the limit with which it was made: that stands, whatever is named later."""
    if found is None or found.limit == claim.limit:
        return claim
    return claim._replace(limit=found.limit)
