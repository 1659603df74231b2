"""The codec: the names of the nodes, and their contents.

Below the node of a key there are its leases, which are persistent, and a place for each waiter, which
is ephemeral and sequential::

    <root>/keys/shop:create_item
        lease-<owner>
        place-<session>-<limit>-<owner>-0000000012
    <root>/marks/5f3/<mark>
    <root>/sessions/<session>

The content of ``<root>/keys`` is the version of this format. A process compares it before it locks.

The names contain the owner, so a request cannot hit the node of another owner. They are not unique in
time: an owner that lost a lease before it knew of it asks again, and its next lease has the same name.
Whatever is remembered of a node is therefore remembered of the transaction that created it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from ..._core import table
from ..._core.table import Answer, Busy, Claim, Gone, Grant, Waiting
from ...errors import ConfigurationError

if TYPE_CHECKING:
    from .session import Key

VERSION: Final = b"1"

LEASE: Final = "lease-"
PLACE: Final = "place-"

LAST_NUMBER: Final = 2**31 - 1
"""Where ZooKeeper's numbers end. Then it gives this one again and again, and negative ones between.

It counts all children that a key's node has had since it was created: since the key was last free.
"""


def name_of_key(key: str) -> str:
    """Return a name for the node of a key."""
    return quote(key, safe=":")


class Content(NamedTuple):
    """What the node of a lease or of a place contains."""

    session: str
    label: str
    ttl: float
    limit: int
    fence: int = 0
    """The fence of a lease that has passed to another owner. That of any other is ``Lease.born``."""
    asked: bool = False
    """Whether a caller has asked for its release."""

    def to_bytes(self) -> bytes:
        return json.dumps(self).encode()


def content_of(data: bytes) -> Content:
    """Return what ``to_bytes`` has written. Raises ``ConfigurationError`` for anything else."""
    try:
        return Content(*json.loads(data))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"a node in ZooKeeper contains {data[:40]!r}, which is not a lease of weblock: stop all"
            " processes that lock there, and delete it",
            code="other_format",
        ) from error


class Lease(NamedTuple):
    """A lease from its node. The stamps are seconds on the clock of the leader at that time."""

    owner: str
    content: Content
    born: int
    """The number of the transaction that created the node, of which no two are the same."""
    version: int
    granted: float
    renewed: float
    until: float = float("inf")
    """When it has ended for this process, on its own clock, unless it is renewed before."""

    @property
    def grant(self) -> Grant:
        session, label, ttl, limit, fence, _ = self.content
        claim = Claim(self.owner, session, ttl, label, limit)
        return Grant(claim, fence or self.born, self.granted, self.until, confirmed=True)


class PlaceNode(NamedTuple):
    """A waiter's place, from its name."""

    name: str
    session: str
    owner: str
    limit: int


def lease_of(name: str, data: bytes, stat: Any) -> Lease:
    """Return the lease in a node, as if it never ended."""
    owner, stamps = name.removeprefix(LEASE), (stat.ctime / 1000, stat.mtime / 1000)
    return Lease(owner, content_of(data), stat.czxid, stat.version, *stamps)


def name_of_place(session: str, claim: Claim) -> str:
    """Return the name of a place, to which ZooKeeper adds the number."""
    return f"{PLACE}{session}-{claim.limit}-{claim.owner}-"


def places_in(names: Iterable[str]) -> tuple[PlaceNode, ...]:
    """Return the places among the children of a key's node, the first one first."""
    places: list[tuple[int, PlaceNode]] = []
    for name in names:
        if name.startswith(PLACE):
            session, limit, rest = name.removeprefix(PLACE).split("-", 2)
            owner, _, number = rest.rpartition("-")
            places.append((int(number), PlaceNode(name, session, owner, int(limit))))
    return tuple(place for _, place in sorted(places))


class Snapshot(NamedTuple):
    """The nodes below a key's node, at one moment."""

    key: Key
    born: int
    """The transaction that created the key's node."""
    version: int
    """Every grant and every transfer raises it."""
    places: tuple[PlaceNode, ...]
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

    def blocking(self, limit: int) -> Sequence[Lease]:
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
        return Waiting(position, self.until, holder=holder, others=others)

    def busy(self, waiters: int) -> Busy:
        """Return the answer to a caller that does not wait behind these waiters."""
        holder, others = self._holders
        return Busy(self.until, waiters, holder=holder, others=others)

    @property
    def _holders(self) -> tuple[str, int]:
        """The label of the oldest holder, and how many leases live besides its own."""
        leases = self.live or self.ended
        return leases[0].content.label if leases else "", max(0, len(self.live) - 1)
