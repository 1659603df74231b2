"""What exists below the nodes of keys, which of it has ended, and what a process remembers of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Container, Hashable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ..._core import table
from ..._core.holding import DRIFT
from ..._core.table import HANDOFF, Answer, Busy, Claim, Gone, Waiting
from .nodes import LEASE, Content, Lease, Place, lease_of, places_in
from .session import Key, Wire

_REMEMBERED: Final = 10_000


class Own(NamedTuple):
    """A lease of this process: its earliest end, and what its node contains."""

    until: float
    content: Content


class Memory:
    """What a process remembers. To forget it costs a request or some time. Any thread may use it."""

    def __init__(self) -> None:
        self.sending = threading.RLock()
        """Held while a request is decided on and sent, where another thread's must not come between.

        The collector of garbage may end a generator there, which releases its own lease in the same thread.
        """
        self.leases: dict[str, Own] = {}
        """What this process holds, by owner."""
        self.owners: set[str] = set()
        """Owners that may have a lease or a place, perhaps because an answer was lost."""
        self._seen: OrderedDict[Hashable, float] = OrderedDict()

    def first_seen(self, what: Hashable, now: float) -> float:
        """Return when this process first saw ``what``: now, or earlier.

        Leases are timed from then on: a lease whose node stays unchanged for its ttl was not renewed
        in that time, whatever clocks its holder and the servers have.
        """
        seen = self._seen.setdefault(what, now)
        with suppress(KeyError):  # Another thread has dropped it just now.
            self._seen.move_to_end(what)  # What is looked at again and again is dropped last.
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return seen

    def ended(self, what: Hashable) -> None:
        """Record that ``what`` has ended, as if it had always been seen."""
        self._seen[what] = float("-inf")

    def forget(self, owner: str) -> None:
        """Forget an owner, for which nothing is created any more."""
        with self.sending:
            self.leases.pop(owner, None)
            self.owners.discard(owner)

    def forget_ended(self, now: float, waiting: Container[str]) -> None:
        """Forget leases that were never released, and their owners except those that are ``waiting``.

        An acquisition may have had a lease without knowing it, and go on waiting.
        """
        for owner, own in tuple(self.leases.items()):
            if own.until <= now:
                self.leases.pop(owner, None)
                if owner not in waiting:
                    self.owners.discard(owner)


class Scene(NamedTuple):
    """The nodes below a key's node, at one moment."""

    key: Key
    born: int
    """The transaction that created the key's node."""
    version: int
    """Every grant and every transfer raises it."""
    places: tuple[Place, ...]
    live: tuple[Lease, ...]
    """In the order of their fences."""
    ended: tuple[Lease, ...] = ()
    """Leases that count as ended, and whose nodes still exist."""
    until: float = 0.0
    """When the first live lease counts as ended, unless it is renewed before."""

    def admits(self, limit: int) -> bool:
        """Return whether a claim with this limit fits beside the leases that live."""
        return table.fits(Claim("", "", 0.0, "", limit), tuple(each.grant for each in self.live))

    @property
    def admits_first(self) -> bool:
        """Whether it is the turn of the first waiter."""
        return bool(self.places) and self.admits(self.places[0].limit)

    def in_the_way_of(self, limit: int) -> Sequence[Lease]:
        """Return as few leases as possible of which one must end before a claim with this limit fits.

        While none of them ends, at least as many leases live as the smallest limit among them and the claim.
        """
        live = sorted(self.live, key=lambda lease: lease.content.limit)
        return live[: min(limit, live[0].content.limit)] if live else ()

    def lease_of(self, owner: str) -> Lease | None:
        return next((each for each in (*self.live, *self.ended) if each.owner == owner), None)

    def position_of(self, owner: str) -> int | None:
        """Return how many wait before an owner, if it waits."""
        owners = [place.owner for place in self.places]
        return owners.index(owner) if owner in owners else None

    def standing(self, owner: str) -> Answer:
        """Return the state of a waiter; ``Gone`` if it has no place, or if it is its turn to ask."""
        position = self.position_of(owner)
        if position is None or (position == 0 and self.admits_first):
            return Gone()
        return self.waiting(position)

    def waiting(self, position: int) -> Waiting:
        """Return the answer to a caller in this place."""
        holder, others = self._holders
        return Waiting(position, self.until, (), holder=holder, others=others)

    def busy(self, waiters: int) -> Busy:
        """Return the answer to a caller that does not wait behind these waiters."""
        holder, others = self._holders
        return Busy(self.until, waiters, holder=holder, others=others)

    @property
    def _holders(self) -> tuple[str, int]:
        """The label of the oldest holder, and how many leases live besides its own."""
        leases = self.live or self.ended
        return leases[0].content.label if leases else "", max(0, len(self.live) - 1)


class Scenes:
    """Reads nodes, and remembers since when each has been unchanged."""

    def __init__(self, wire: Wire, memory: Memory) -> None:
        self._wire = wire
        self._memory = memory

    async def look(self, *keys: Key) -> list[Scene]:
        """Return what exists below several nodes."""
        answers = await self._wire.all(
            *(key.session.client.get_children_async(key.node, include_data=True) for key in keys)
        )
        found, reads = [], []
        for key, answer in zip(keys, answers, strict=True):
            names, stat = ((), None) if isinstance(answer, Exception) else answer
            leases = [name for name in names if name.startswith(LEASE)]
            reads += [key.session.client.get_async(key.path(name)) for name in leases]
            found.append((key, places_in(names), stat, leases))
        contents, scenes = iter(await self._wire.all(*reads)), []
        for key, places, stat, leases in found:
            read = [(name, next(contents)) for name in leases]
            live = [lease_of(name, *each) for name, each in read if not isinstance(each, Exception)]
            born, version = (stat.czxid, stat.version) if stat else (0, 0)
            scenes.append(self._timed(Scene(key, born, version, places, tuple(live))))
        return scenes

    def _timed(self, scene: Scene) -> Scene:
        """Return the scene with its leases as they have ended, or not, for this process."""
        now, first_seen = self._wire.now(), self._memory.first_seen
        timed = [
            lease._replace(until=first_seen(_version(scene.key, lease), now) + lease.content.ttl)
            for lease in sorted((*scene.live, *scene.ended), key=lambda lease: lease.grant.fence)
        ]
        live = tuple(lease for lease in timed if now < lease.until)
        ended = tuple(lease for lease in timed if now >= lease.until)
        until = min((lease.until for lease in live), default=now)
        return scene._replace(live=live, ended=ended, until=until)

    async def without_the_dead(self, scene: Scene) -> Scene:
        """Return the scene, with leases counted as ended that had ended before this process could time them.

        Their holders' sessions must have expired: only then are the servers' stamps believed.
        """
        session = scene.key.session
        holders = list(dict.fromkeys(lease.content.session for lease in scene.live))
        signs = [session.client.get_async(session.sign_of(each)) for each in holders]
        found = zip(holders, await self._wire.all(*signs), strict=True)
        dead = {holder for holder, sign in found if isinstance(sign, Exception)}
        if not dead:
            return scene
        stamp = await self._wire.stamp(session)
        for lease in scene.live:
            unchanged = stamp - lease.renewed
            if lease.content.session in dead and unchanged >= lease.content.ttl * (1 + 2 * DRIFT):
                self._memory.ended(_version(scene.key, lease))
        return self._timed(scene)

    def remove_orphans(self, scene: Scene) -> None:
        """Remove the places of this process whose owners it has given up for want of an answer."""
        session, owners = scene.key.session, self._memory.owners
        for place in scene.places:
            if place.owner not in owners and place.session == session.name:
                session.client.delete_async(scene.key.path(place.name))

    def pass_over_first(self, scene: Scene) -> None:
        """Remove the first place if it does not take its turn, and all of its process."""
        if not scene.admits_first:
            return
        now, first = self._wire.now(), scene.places[0]
        ended = tuple(_version(scene.key, lease) for lease in scene.ended)
        turn = (scene.key.node, scene.born, first.name, ended)
        if now - self._memory.first_seen(turn, now) >= HANDOFF:
            for place in scene.places:
                if place.session == first.session:
                    scene.key.session.client.delete_async(scene.key.path(place.name))


def _version(key: Key, lease: Lease) -> tuple[str, str, int, int]:
    """Return what changes with each renewal of a lease, and is another for the owner's next lease."""
    return (key.node, lease.owner, lease.born, lease.version)
