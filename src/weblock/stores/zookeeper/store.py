"""The lock protocol on ZooKeeper's nodes.

Who makes the node of a key has the lease: one transaction makes both. Others wait in places below
it, each watching what stands before it. Who has the first place takes the lease over when the one
there has been given back, or has ended.

Three rules make that safe, whatever is late, repeated or stale:

- every grant is one transaction, on condition that the key's node is new, or that its version is
  the one that was seen without a lease: so there is one lease at a time;
- a lease has ended for another process when that process has seen its node unchanged for a ttl, on
  its own clock. The holder counts from before it sent the change, so it knows earlier. No two
  clocks are compared; only their rates matter, and the holder allows for those;
- it is removed on condition that it is still unchanged: a renewal under way wins, or fails.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.exceptions import (
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.utils import AsyncResult

from ..._core import table
from ..._core.ports import Ask, Look, Pulse, Reply, Runtime
from ..._core.table import (
    Answer,
    Busy,
    Claim,
    Gone,
    Grant,
    Held,
    KeyState,
    Released,
    Waiting,
)
from ...errors import EngineUnavailable
from .memory import Own
from .nodes import (
    LEASE,
    PLACE,
    Lease,
    Place,
    family_of,
    fields_of,
    key_of,
    packed,
)
from .scenes import Scene, Scenes
from .session import Session
from .wire import EXPECTED, Key, Wire

if TYPE_CHECKING:
    from . import ZooKeeperEngine

_ATTEMPTS: Final = 100
"""How often the children of a key may change under our hands: each time others got on."""

_PORTION: Final = 500
"""Keys that are looked at in one go, where many are listed."""

_NOT_DONE: Final = (*EXPECTED, RolledBackError, RuntimeInconsistency)
"""What the parts of a transaction say that was refused, because something was not as it was seen."""


class Renewal(NamedTuple):
    """A lease that is being renewed, and until when it will last."""

    owner: str
    sent: float
    until: float
    result: AsyncResult


class ZooKeeperStore:
    """One runtime's way to an ensemble."""

    process = ""  # Nobody else rings us: ZooKeeper does, in our session.

    def __init__(self, engine: ZooKeeperEngine, runtime: Runtime) -> None:
        self._memory = engine.memory
        self._switchboard = engine.switchboard
        self._wire = Wire(engine, runtime)
        self._scenes = Scenes(self._wire, self._memory)

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        node = await self._wire.key(key)
        for _ in range(_ATTEMPTS):
            if reply := await self._attempt(node, claim, room):
                return reply
        raise self._wire.unavailable("the key kept changing under our hands")

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        """Whatever the owner has goes; ``void`` is needless where requests keep their order."""
        held = owner in self._memory.leases
        self._memory.forget(owner)
        node = await self._wire.key(key)
        return self._reply(await self._give_back(node, owner, held=held))

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        session, memory = await self._wire.session(), self._memory
        memory.forget_ended(self._wire.now())
        held = [pulse for pulse in pulses if pulse.owner in memory.leases]
        waiting = [pulse for pulse in pulses if pulse.owner not in memory.leases]
        replies = dict(zip(_owners(held), await self._renew(session, held), strict=True))
        try:
            replies |= zip(_owners(waiting), await self._watch_over(session, waiting), strict=True)
        except EngineUnavailable as error:
            replies |= dict.fromkeys(_owners(waiting), error)
        return [replies[pulse.owner] for pulse in pulses]

    async def force_release(self, key: str) -> Reply:
        node = await self._wire.key(key, anew=True)
        (scene,) = await self._scenes.look(node)
        if scene.lease is None or scene.ended(self._wire.now()):
            return self._reply(Gone())
        client = node.session.client
        done, _ = await self._wire.all(
            client.delete_async(node.path(scene.lease.name)), client.delete_async(node.node)
        )
        return self._reply(Gone() if isinstance(done, Exception) else Released())

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
        if scene.lease is None or scene.ended(now):
            return Look(KeyState(queue=queue), now)
        return Look(KeyState(scene.lease.fence, _grant(scene.lease, scene.until, now), queue), now)

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
            scenes, now = await self._scenes.look(*keys), self._wire.now()
            found += [
                name
                for name, scene in zip(portion, scenes, strict=True)
                if scene.family.places or not scene.ended(now)
            ]
        return found[:limit]

    async def mark(self, key: str, keep: float | None) -> None:
        session = await self._wire.session()
        path, data = session.layout.of_mark(key), json.dumps(keep).encode()
        if keep == 0:
            await self._wire.all(session.client.delete_async(path))
            return
        create, change = session.client.create_async, session.client.set_async
        outcomes = await self._wire.all(create(path, data), change(path, data))
        if isinstance(outcomes[1], Exception):
            raise self._wire.unavailable(outcomes[1])

    async def marked(self, key: str) -> bool:
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

    # One acquisition.

    async def _attempt(self, key: Key, claim: Claim, room: int) -> Reply | None:
        """Takes the key, or waits for it; ``None`` if things have changed meanwhile.

        Who has asked before looks first: the answer may have been lost.
        """
        asked = self._memory.asked
        new = claim.owner not in asked
        if new:
            asked.add(claim.owner)
            if reply := await self._grant(key, claim, self._for_free_key(key)):
                return reply
            if room:
                await self._join(key, claim)
        (scene,) = await self._scenes.look(key)
        if scene.family.lease == f"{LEASE}{claim.owner}":
            return await self._renew_own(key, claim)
        if room and scene.family.position_of(claim.owner) is None:
            asked.discard(claim.owner)
            return None
        if scene.ended(self._wire.now()) or (new and await self._scenes.has_ended_before(scene)):
            return await self._succeed(scene, claim, room)
        return await self._stay(scene, claim, room)

    async def _succeed(self, scene: Scene, claim: Claim, room: int) -> Reply | None:
        """Takes over what somebody had, if it is our turn."""
        places = scene.family.places
        if not places:
            await self._join(scene.key, claim)  # As the first, also where nobody may wait.
            return None
        if places[0].owner == claim.owner:
            return await self._grant(scene.key, claim, self._for_our_turn(scene))
        self._scenes.pass_over_first(scene)
        return await self._stay(scene, claim, room)

    def _for_free_key(self, key: Key) -> Any:
        """A grant on condition that nobody has the key, and nobody waits for it."""
        grant = key.session.client.transaction()
        grant.create(key.node, b"")
        return grant

    def _for_our_turn(self, scene: Scene) -> Any:
        """A grant on condition that all is as we saw it: no lease that lasts, and we are first."""
        key, grant = scene.key, scene.key.session.client.transaction()
        grant.set_data(key.node, b"", version=scene.family.version)
        if scene.lease:
            grant.delete(key.path(scene.lease.name), version=scene.lease.version)
        grant.delete(key.path(scene.family.places[0].name))
        return grant

    async def _grant(self, key: Key, claim: Claim, grant: Any) -> Reply | None:
        """Makes the lease on conditions; the number of the transaction that does is its fence."""
        path = key.lease_of(claim.owner)
        grant.create(path, packed(key.session.name, claim.label, claim.ttl))
        sent = self._wire.now()
        parts, stat = await self._wire.all(grant.commit_async(), key.session.client.get_async(path))
        if refused := [part for part in parts if isinstance(part, Exception)]:
            for part in refused:
                if not isinstance(part, _NOT_DONE):
                    raise self._wire.unavailable(part) from part
            if isinstance(parts[0], NoNodeError):  # Somebody has removed what we stand on.
                await self._wire.all(*key.session.prepare())
            return None
        if isinstance(stat, Exception):
            return None
        self._memory.leases[claim.owner] = Own(sent + claim.ttl, claim.label)
        return Reply(Held(stat[1].czxid, sent + claim.ttl), sent)

    async def _join(self, key: Key, claim: Claim) -> None:
        """Takes a place behind all others, unless the key has become free."""
        (place,) = await self._wire.all(
            key.session.client.create_async(
                key.path(f"{PLACE}{key.session.name}-{claim.owner}-"),
                packed(key.session.name, claim.label, claim.ttl),
                ephemeral=True,
                sequence=True,
            )
        )
        if isinstance(place, Exception):
            self._memory.forget(claim.owner)

    async def _stay(self, scene: Scene, claim: Claim, room: int) -> Reply | None:
        """Waits where we are, if there is room."""
        places, position = scene.family.places, scene.family.position_of(claim.owner)
        if position is None:
            self._memory.forget(claim.owner)
            return self._reply(Busy(scene.until, len(places)))
        if position >= room:
            await self._give_back(scene.key, claim.owner)
            return self._reply(Busy(scene.until, len(places) - 1))
        before = places[position - 1].name if position else scene.family.lease
        if before and await self._watch(scene.key, before, claim.owner):
            return self._reply(Waiting(position, scene.until, ()))
        return None

    async def _watch(self, key: Key, name: str, owner: str) -> bool:
        """Has the owner rung when something happens to a node; whether it is still there."""
        watched, watch = self._memory.watched, (key.path(name), owner)
        if watch in watched:
            return True
        watched.add(watch)
        there = False
        try:
            rung = partial(self._rung, watch)
            (found,) = await self._wire.all(key.session.client.get_async(watch[0], rung))
            there = not isinstance(found, Exception)
        finally:
            if not there:
                watched.discard(watch)
        return there

    def _rung(self, watch: tuple[str, str], _event: object) -> None:
        """Something has happened, or is not watched for any more. Runs in kazoo's thread."""
        self._memory.watched.discard(watch)
        self._switchboard.ring(watch[1], Ask())

    async def _renew_own(self, key: Key, claim: Claim) -> Reply | None:
        leases = self._memory.leases
        leases.setdefault(claim.owner, Own(self._wire.now(), claim.label))
        renewal = self._renewal(key, claim.owner, claim.ttl)
        reply = self._renewed(renewal, *await self._wire.all(renewal.result))
        return reply if isinstance(reply.answer, Held) else None

    async def _give_back(self, key: Key, owner: str, *, held: bool = False) -> Answer:
        """Removes whatever the owner has: if it is known to be ``held``, that is a lease."""
        self._memory.forget(owner)
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

    # Heartbeats.

    async def _renew(
        self, session: Session, pulses: Sequence[Pulse]
    ) -> list[Reply | EngineUnavailable]:
        """Renews leases that we know of, all at once."""
        renewals = [
            self._renewal(Key(session, session.layout.of_key(key)), owner, ttl)
            for key, owner, ttl in pulses
        ]
        stats = await self._wire.outcomes(*(renewal.result for renewal in renewals))
        return [self._renewed(*each) for each in zip(renewals, stats, strict=True)]

    def _renewal(self, key: Key, owner: str, ttl: float) -> Renewal:
        """Writes that a lease goes on: whoever watches it begins to count anew.

        What an earlier one has promised, a later one keeps: they are sent in their order.
        """
        memory = self._memory
        with memory.renewing:
            sent = self._wire.now()
            own = memory.leases.get(owner, Own(sent, ""))
            until = max(sent + ttl, own.until)
            memory.leases[owner] = own._replace(until=until)
            data = packed(key.session.name, own.label, until - sent)
            result = key.session.client.set_async(key.lease_of(owner), data)
        return Renewal(owner, sent, until, result)

    def _renewed(self, renewal: Renewal, stat: Any) -> Any:
        if isinstance(stat, EngineUnavailable):
            return stat
        if isinstance(stat, Exception):
            self._memory.forget(renewal.owner)
            return self._reply(Gone())
        return Reply(Held(stat.czxid, renewal.until), renewal.sent)

    async def _watch_over(self, session: Session, pulses: Sequence[Pulse]) -> list[Reply]:
        """How those who wait stand; whoever does not take their turn is passed over."""
        keys = {pulse.key: Key(session, session.layout.of_key(pulse.key)) for pulse in pulses}
        scenes = dict(zip(keys, await self._scenes.look(*keys.values()), strict=True))
        now = self._wire.now()
        for scene in scenes.values():
            self._scenes.pass_over_first(scene)
        return [self._reply(scenes[pulse.key].standing(pulse.owner, now)) for pulse in pulses]

    def _reply(self, answer: Answer) -> Reply:
        return Reply(answer, self._wire.now())


def _owners(pulses: Sequence[Pulse]) -> list[str]:
    return [pulse.owner for pulse in pulses]


def _waiter(place: Place, data: bytes, now: float) -> table.Place:
    said = fields_of(data)
    return table.Place(Claim("", place.session, said["ttl"], said["label"]), now + table.PLACE)


def _grant(lease: Lease, until: float, now: float) -> Grant:
    """A lease for those who look on, for whom the servers' stamps are good enough."""
    age, unchanged = (max(0.0, time.time() - stamp) for stamp in (lease.granted, lease.renewed))
    claim = Claim("", lease.session, lease.ttl, lease.label)
    until = min(until, now + max(0.0, lease.ttl - unchanged))
    return Grant(claim, lease.fence, now - age, until, confirmed=True)
