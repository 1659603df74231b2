"""The lock protocol on ZooKeeper's nodes.

The caller that creates the node of a key has a lease: one transaction creates both. Others wait in
places below it, each watching what is before it. The first place becomes a lease when it fits beside
those that have neither been released nor have ended. Three rules make that safe, whatever is late,
repeated or stale:

- every grant is one transaction, on condition that the key's node is new, or that its version is
  the one at which its leases left room for one more: so there are never more than their limits say;
- a lease has ended for another process when that process has seen its node unchanged for a ttl, on
  its own clock. The holder counts from before it sent the change, so it knows earlier. No two
  clocks are compared; only their rates matter, and the holder allows for those;
- it is removed on condition that it is still unchanged: a renewal under way wins, or fails.

A renewal writes the node of the lease again, which only a majority can confirm.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from kazoo.exceptions import BadVersionError, NoNodeError

from ..._core import table
from ..._core.ports import CheckAgain, Look, Pulse, Reply, Runtime, Store, Switchboard
from ..._core.table import Answer, Asked, Claim, Gone, Held, KeyState, Released
from ...errors import EngineUnavailable
from .. import marks
from .nodes import LAST_NUMBER, Content, Snapshot, content_of, name_of_place, places_in
from .session import AsyncResult, Key
from .wire import OwnLease, Wire

if TYPE_CHECKING:
    from .engine import ZooKeeperEngine

_ATTEMPTS: Final = 100
"""How often to retry when a key's children change meanwhile: each time others got on."""

_PORTION: Final = 500
"""How many keys are read at once when many are listed."""


class Watch(NamedTuple):
    """Notifies an owner when something happens to a node. kazoo keeps one of several that are equal."""

    switchboard: Switchboard
    owner: str

    def __call__(self, _event: object) -> None:
        """Run in kazoo's thread."""
        self.switchboard.notify(self.owner, CheckAgain())


class ZooKeeperStore(Store):
    """One runtime's way to an ensemble."""

    process = ""  # No other process notifies us: ZooKeeper does, in our session.

    def __init__(self, engine: ZooKeeperEngine, runtime: Runtime) -> None:
        self._wire = Wire(engine, runtime)
        self._memory = engine.memory
        self._switchboard = engine.switchboard

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        owners, new = self._memory.owners, claim.owner not in self._memory.owners
        owners.add(claim.owner)
        node = await self._wire.key(key)
        # A caller that has asked before looks first: the answer may have been lost.
        if new and (reply := await self._begin(node, claim, room)):
            return reply
        for _ in range(_ATTEMPTS):
            if claim.owner not in owners:
                return self._wire.reply(Gone())
            if reply := await self._attempt(node, claim, room, new=new):
                return reply
        raise self._wire.unavailable("other processes kept changing the key")

    async def _attempt(self, key: Key, claim: Claim, room: int, *, new: bool) -> Reply | None:
        """Acquire the key, or wait for it; ``None`` if things have changed meanwhile."""
        (snapshot,) = await self._wire.look(key)
        self._wire.remove_orphans(snapshot)
        if lease := snapshot.lease_of(claim.owner):
            # The limit with which it was granted stands, whatever is named later.
            return await self._renew_again(key, claim._replace(limit=lease.content.limit))
        position = snapshot.position_of(claim.owner)
        if position is not None:
            claim = claim._replace(limit=snapshot.places[position].limit)
        elif room:
            return await self._begin(key, claim, room)
        if new and not snapshot.admits(claim.limit) and await self._wire.end_the_dead(snapshot):
            return None
        if snapshot.admits(claim.limit):
            if not snapshot.places:
                return await self._begin(key, claim, 1)  # As the first, also without room.
            if position == 0:
                return await self._take_turn(snapshot, claim)
            self._wire.pass_over_first(snapshot)
        return await self._stay(snapshot, claim, room)

    async def _begin(self, key: Key, claim: Claim, room: int) -> Reply | None:
        """Acquire the key if it has neither a holder nor waiters, else take a place behind them."""
        client = key.session.client
        grant = client.transaction()
        grant.create(key.node, b"")
        reply = await self._grant(key, claim, grant)
        if reply or not room:
            return reply
        path = key.path(name_of_place(key.session.name, claim))
        with self._memory.sending:
            if claim.owner not in self._memory.owners:
                return None
            content = _content(key, claim).to_bytes()
            place = client.create_async(path, content, ephemeral=True, sequence=True)
        (created,) = await self._wire.all(place)
        if isinstance(created, str) and not 0 <= int(created.removeprefix(path)) < LAST_NUMBER:
            await self._wire.all(client.delete_async(created), client.delete_async(key.node))
            raise self._wire.unavailable(
                f"{key.node} has had {LAST_NUMBER} children, and ZooKeeper numbers no more: callers"
                " can wait again as soon as nobody holds the key and nobody waits"
            )
        return None

    async def _take_turn(self, snapshot: Snapshot, claim: Claim) -> Reply | None:
        """Acquire the key as the first waiter, provided that nothing was granted since the look."""
        key, grant = snapshot.key, snapshot.key.session.client.transaction()
        grant.set_data(key.node, b"", version=snapshot.version)
        for lease in snapshot.ended:
            grant.delete(key.lease_of(lease.owner), version=lease.version)
        grant.delete(key.path(snapshot.places[0].name))
        return await self._grant(key, claim, grant)

    async def _grant(self, key: Key, claim: Claim, grant: Any) -> Reply | None:
        """Create the lease on conditions; the number of that transaction is its fence."""
        path, memory, content = key.lease_of(claim.owner), self._memory, _content(key, claim)
        grant.create(path, content.to_bytes())
        with memory.sending:
            if claim.owner not in memory.owners:
                return None
            sent = self._wire.now()
            results = grant.commit_async(), key.session.client.get_async(path)
        parts, found = await self._wire.all(*results)
        if self._wire.refused(parts):
            if isinstance(parts[0], NoNodeError):
                # Another client has removed the nodes above ours.
                await self._wire.all(*key.session.prepare())
            return None
        if isinstance(found, Exception):
            return None
        if claim.owner in memory.owners:
            memory.leases[claim.owner] = OwnLease(sent + claim.ttl, content)
        return Reply(Held(found[1].czxid, sent + claim.ttl), sent)

    async def _stay(self, snapshot: Snapshot, claim: Claim, room: int) -> Reply | None:
        """Wait in our place, if there is room."""
        places, position = snapshot.places, snapshot.position_of(claim.owner)
        if position is None:
            self._memory.forget(claim.owner)
            return self._wire.reply(snapshot.busy(len(places)))
        if position >= room:
            await self._give_back(snapshot.key, claim.owner)
            # Not before: without an answer, it may still wait there.
            self._memory.forget(claim.owner)
            return self._wire.reply(snapshot.busy(len(places) - 1))
        before = (
            [snapshot.key.path(places[position - 1].name)]
            if position
            else [snapshot.key.lease_of(each.owner) for each in snapshot.blocking(claim.limit)]
        )
        get, watch = snapshot.key.session.client.get_async, Watch(self._switchboard, claim.owner)
        found = await self._wire.all(*(get(path, watch) for path in before))
        if not found or any(isinstance(each, Exception) for each in found):
            return None
        return self._wire.reply(snapshot.waiting(position))

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        """Remove whatever the owner has; ``void`` is needless where requests keep their order.

        An acquisition of the owner that is still under way in another thread or task creates nothing from now on.
        """
        held = owner in self._memory.leases
        self._memory.forget(owner)
        node = await self._wire.key(key)
        return self._wire.reply(await self._give_back(node, owner, held=held))

    async def _give_back(self, key: Key, owner: str, *, held: bool = False) -> Answer:
        """Remove whatever the owner has: a lease, if it is known to be ``held``."""
        client = key.session.client
        lease, _ = await self._wire.all(
            client.delete_async(key.lease_of(owner)),
            client.delete_async(key.node),  # Which is refused while any caller waits below it.
        )
        given_back = not isinstance(lease, Exception)
        if not (held and given_back):
            (children,) = await self._wire.all(client.get_children_async(key.node))
            places = () if isinstance(children, Exception) else places_in(children)
            gone = [key.path(place.name) for place in places if place.owner == owner]
            await self._wire.all(*map(client.delete_async, [*gone, key.node] if gone else []))
        return Released() if given_back else Gone()

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        session, memory = await self._wire.session(), self._memory
        memory.forget_ended(self._wire.now(), self._switchboard.mailboxes)
        keys = {pulse.key: session.key(pulse.key) for pulse in pulses}
        held = [pulse for pulse in pulses if pulse.owner in memory.leases]
        waiting = [pulse for pulse in pulses if pulse.owner not in memory.leases]
        renewed = await self._renew(*((keys[key], owner, ttl) for key, owner, ttl, _ in held))
        replies = dict(zip(held, renewed, strict=True))
        try:
            looks = await self._wire.look(*dict.fromkeys(keys[pulse.key] for pulse in waiting))
        except EngineUnavailable as error:
            return [replies.get(pulse, error) for pulse in pulses]
        for snapshot in looks:
            self._wire.remove_orphans(snapshot)
            self._wire.pass_over_first(snapshot)
        snapshots = {snapshot.key: snapshot for snapshot in looks}
        for pulse in waiting:
            replies[pulse] = self._wire.reply(snapshots[keys[pulse.key]].standing(pulse.owner))
        return [replies[pulse] for pulse in pulses]

    async def _renew(self, *leases: tuple[Key, str, float]) -> list[Reply | EngineUnavailable]:
        """Write that leases go on, each given by its key, its owner and a ttl: observers count anew.

        A later renewal keeps what an earlier one has promised: they are sent in order.

        Only the holder and callers that ask for a release write to the node of a lease. If it was
        written between our read and our write, another caller has asked, and we have overwritten that.
        """
        memory, sent = self._memory, []
        results: list[AsyncResult] = []
        for key, owner, ttl in leases:
            client, path = key.session.client, key.lease_of(owner)
            with memory.sending:
                now = self._wire.now()
                own = memory.leases.get(owner) or OwnLease(now, Content("", "", ttl, 1))
                until = max(now + ttl, own.until)
                content = own.content._replace(session=key.session.name, ttl=until - now)
                memory.leases[owner] = OwnLease(until, content)
                results += client.get_async(path), client.set_async(path, content.to_bytes())
            sent.append((owner, now, until, content.fence))
        replies: list[Reply | EngineUnavailable] = []
        outcomes = iter(await self._wire.outcomes(*results))
        for (owner, now, until, fence), read, stat in zip(sent, outcomes, outcomes, strict=True):
            latest = memory.leases.get(owner)
            if isinstance(stat, EngineUnavailable):
                replies.append(stat)
            elif isinstance(stat, Exception):
                memory.leases.pop(owner, None)
                if owner not in self._switchboard.mailboxes:  # Else it still asks for the key.
                    memory.forget(owner)
                replies.append(self._wire.reply(Gone()))
            else:
                asked = bool(latest and latest.content.asked)
                if not isinstance(read, Exception):
                    asked = content_of(read[0]).asked or stat.version != read[1].version + 1
                if latest and asked:
                    content = latest.content._replace(asked=True)
                    memory.leases[owner] = latest._replace(content=content)
                replies.append(Reply(Held(fence or stat.czxid, until, asked=asked), now))
        return replies

    async def _renew_again(self, key: Key, claim: Claim) -> Reply | None:
        """Renew a lease whose owner asks for it, because it does not know that it has it."""
        own = OwnLease(self._wire.now(), _content(key, claim))
        self._memory.leases.setdefault(claim.owner, own)
        (reply,) = await self._renew((key, claim.owner, claim.ttl))
        if isinstance(reply, EngineUnavailable):
            raise reply
        return reply if isinstance(reply.answer, Held) else None

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        """Replace the node of a lease with one that belongs to a claim and says what its fence is.

        The limit stays as it is, and so does whether its release was asked for.
        """
        node = await self._wire.key(key, anew=True)
        client, old, new = node.session.client, node.lease_of(owner), node.lease_of(claim.owner)
        found = await self._wire.all(client.get_async(old), client.get_async(new))
        was = [content_of(each[0]) for each in found if not isinstance(each, Exception)]
        content = _content(node, claim)._replace(fence=fence)
        if was:
            content = content._replace(limit=was[0].limit, asked=was[0].asked)
        move = client.transaction()
        # A caller that sees the key between the two nodes must not take it for free.
        move.set_data(node.node, b"")
        move.delete(old)
        move.create(new, content.to_bytes())
        sent = self._wire.now()
        (parts,) = await self._wire.all(move.commit_async())
        self._memory.forget(owner)
        self._memory.owners.add(claim.owner)
        self._memory.leases[claim.owner] = OwnLease(sent + claim.ttl, content)
        if not self._wire.refused(parts):
            return Reply(Held(fence, sent + claim.ttl, asked=content.asked), sent)
        # The claim may have it already: the answer to an earlier request was lost.
        return await self._renew_again(node, claim) or self._wire.reply(Gone())

    async def force_release(self, key: str) -> Reply:
        node = await self._wire.key(key, anew=True)
        (snapshot,) = await self._wire.look(node)
        if not snapshot.live:
            return self._wire.reply(Gone())
        delete, leases = node.session.client.delete_async, (*snapshot.live, *snapshot.ended)
        paths = [*(node.lease_of(lease.owner) for lease in leases), node.node]
        *done, _ = await self._wire.all(*map(delete, paths))
        return self._wire.reply(
            Gone() if all(isinstance(each, Exception) for each in done) else Released()
        )

    async def ask_release(self, key: str) -> Reply:
        """Write the request into the nodes of the leases, of which each renewal reads its own."""
        node = await self._wire.key(key, anew=True)
        write = node.session.client.set_async
        for _ in range(_ATTEMPTS):
            (snapshot,) = await self._wire.look(node)
            if not snapshot.live:
                return self._wire.reply(Gone())
            # A renewal since the look is not overwritten: then we look again.
            wanted = [
                (each, each.content._replace(asked=True).to_bytes()) for each in snapshot.live
            ]
            done = await self._wire.all(
                *(write(node.lease_of(each.owner), data, each.version) for each, data in wanted)
            )
            reached = any(not isinstance(each, Exception) for each in done)
            if reached and not any(isinstance(each, BadVersionError) for each in done):
                return self._wire.reply(Asked())
        raise self._wire.unavailable("other processes kept changing the key")

    async def look(self, key: str) -> Look:
        node = await self._wire.key(key, anew=True)
        (snapshot,) = await self._wire.look(node)
        get = node.session.client.get_async
        found = await self._wire.all(*(get(node.path(place.name)) for place in snapshot.places))
        now, queue, grants = self._wire.now(), {}, []
        for place, each in zip(snapshot.places, found, strict=True):
            if not isinstance(each, Exception):
                _, label, ttl, limit, *_ = content_of(each[0])
                claim = Claim("", place.session, ttl, label, limit)
                queue[place.name] = table.Place(claim, now + table.PLACE)
        for lease in snapshot.live:
            # For observers, the servers' stamps are good enough.
            age, unchanged = (
                max(0.0, time.time() - stamp) for stamp in (lease.granted, lease.renewed)
            )
            until = min(lease.until, now + max(0.0, lease.content.ttl - unchanged))
            claim = lease.grant.claim._replace(owner="")
            grants.append(lease.grant._replace(claim=claim, since=now - age, until=until))
        return Look(KeyState(grants[-1].fence if grants else 0, tuple(grants), queue), now)

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        session = await self._wire.session()
        root, client = session.keys, session.client
        _, nodes = await self._wire.all(client.sync_async(root), client.get_children_async(root))
        if isinstance(nodes, Exception):
            return ()
        names = [name for name in map(unquote, nodes) if name.startswith(prefix)]
        found: list[str] = []
        while names and len(found) < limit:
            portion, names = names[:_PORTION], names[_PORTION:]
            snapshots = await self._wire.look(*map(session.key, portion))
            there = zip(portion, snapshots, strict=True)
            found += [name for name, snapshot in there if snapshot.places or snapshot.live]
        return found[:limit]

    async def mark(self, key: str, keep: float | None) -> None:
        session = await self._wire.session()
        client, folder = session.client, session.marks_of(key)
        # It is written, and the server that is read from has to know of that: it reads what is new.
        now = await self._wire.servers_time(session)
        (former,) = await self._wire.all(client.get_children_async(folder))
        if isinstance(former, Exception):
            await self._wire.all(*session.prepare(), client.create_async(folder))
            former = []
        if keep != 0:
            name = f"{folder}/{marks.new_name(key, keep, now)}"
            (created,) = await self._wire.all(client.create_async(name))
            if isinstance(created, Exception):
                raise self._wire.unavailable(created) from created
        paths = [f"{folder}/{name}" for name in marks.replaced(former, key, now)]
        await self._wire.all(*map(client.delete_async, paths))

    async def marked(self, key: str) -> bool:
        session = await self._wire.session()
        folder, client = session.marks_of(key), session.client
        _, names = await self._wire.all(
            client.sync_async(folder), client.get_children_async(folder)
        )
        end, _ = marks.last_of(() if isinstance(names, Exception) else names, key)
        return end == math.inf or (end > 0 and await self._wire.servers_time(session) < end)


def _content(key: Key, claim: Claim) -> Content:
    return Content(key.session.name, claim.label, claim.ttl, claim.limit)
