"""The names of the nodes, and their contents.

Below the node of a key there are its leases, which are persistent, and a place for everybody who
waits, which is ephemeral and sequential::

    <root>/keys/shop:create_item
        lease-<owner>
        place-<session>-<owner>-0000000012
        place-<session>~<limit>-<owner>-0000000013
    <root>/marks/shop:init
    <root>/sessions/<session>

The names have the owner in them, so what is said of a node by name cannot hit another owner's. They
are not unique in time: an owner who lost a lease before it knew of it asks again, and its next lease
has the same name. So what is remembered of a node is remembered of the transaction that created it.

Only a lease or a place that is not exclusive says what its limit is. An earlier version of weblock,
which knows exclusive leases only, waits until all others are gone: to it, their ttl is ``ENDLESS``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

LEASE = "lease-"
PLACE = "place-"

ENDLESS: Final = 1e9
"""The ttl, in seconds, that an earlier version finds in a lease that is not exclusive."""


class Layout:
    """The paths of all nodes."""

    def __init__(self, root: str) -> None:
        self.keys = f"{root}/keys"
        self.sessions = f"{root}/sessions"
        self.marks = f"{root}/marks"
        self.above = (*_ancestors(root), self.keys, self.marks, self.sessions)
        """What must be there before anything else can be."""

    def of_key(self, key: str) -> str:
        return f"{self.keys}/{quote(key, safe=':')}"

    def of_mark(self, key: str) -> str:
        return f"{self.marks}/{quote(key, safe=':')}"

    def of_session(self, session: str) -> str:
        return f"{self.sessions}/{session}"


def key_of(name: str) -> str:
    """Return the key of a node's name."""
    return unquote(name)


def _ancestors(root: str) -> Iterable[str]:
    parts = root.split("/")
    return ("/".join(parts[:end]) for end in range(2, len(parts) + 1))


class Place(NamedTuple):
    """A waiter."""

    name: str
    session: str
    owner: str
    number: int
    limit: int


class Family(NamedTuple):
    """The children of a key's node; the transaction that created the node itself, and its version.

    Every grant and every transfer raises the version.
    """

    born: int
    version: int
    leases: tuple[str, ...]
    places: tuple[Place, ...]

    def position_of(self, owner: str) -> int | None:
        """Return how many wait before an owner, if it waits."""
        owners = [place.owner for place in self.places]
        return owners.index(owner) if owner in owners else None


class Lease(NamedTuple):
    """A lease from its node. Stamps are seconds on the clock of the leader at that time."""

    name: str
    owner: str
    session: str
    label: str
    ttl: float
    fence: int
    born: int
    """The number of the transaction that created the node, of which no two are the same."""
    version: int
    granted: float
    renewed: float
    limit: int
    until: float
    """When it counts as ended for this process, on its clock, unless it is renewed before."""


def family_of(children: Iterable[str], stat: Any = None) -> Family:
    """Return the leases and the places with these names, below a node with this stat."""
    leases, places = [], []
    for name in children:
        if name.startswith(LEASE):
            leases.append(name)
        elif name.startswith(PLACE):
            places.append(_place(name))
    places.sort(key=lambda place: place.number)
    born, version = (stat.czxid, stat.version) if stat else (0, 0)
    return Family(born, version, tuple(leases), tuple(places))


def name_of_place(session: str, owner: str, limit: int) -> str:
    """Return the name of a place, to which ZooKeeper adds the number."""
    return f"{PLACE}{session}-{owner}-" if limit == 1 else f"{PLACE}{session}~{limit}-{owner}-"


def _place(name: str) -> Place:
    _, session, owner, number = name.split("-", 3)
    session, _, limit = session.partition("~")
    return Place(name, session, owner, int(number), int(limit or 1))


def lease_of(name: str, data: bytes, stat: Any) -> Lease:
    """Return the lease in a node, as if it never ended."""
    said = fields_of(data)
    return Lease(
        name,
        name.removeprefix(LEASE),
        said["session"],
        said["label"],
        float(said.get("lasts", said["ttl"])),
        said.get("fence") or stat.czxid,
        stat.czxid,
        stat.version,
        stat.ctime / 1000,
        stat.mtime / 1000,
        limit_in(data),
        float("inf"),
    )


def packed(
    session: str,
    label: str,
    ttl: float,
    *,
    limit: int = 1,
    fence: int | None = None,
    asked: bool = False,
) -> bytes:
    """Return the contents of the node of a lease or a place; ``fence`` and ``asked`` as ``Own`` has them."""
    said: dict[str, Any] = {"session": session, "label": label, "ttl": ttl}
    if limit != 1:
        said |= {"ttl": ENDLESS, "lasts": ttl, "limit": limit}
    if fence is not None:
        said["fence"] = fence
    if asked:
        said["asked"] = True
    return json.dumps(said).encode()


def asked_in(data: bytes) -> bool:
    """Return whether the contents of a lease's node say that its holder was asked to release."""
    return bool(fields_of(data).get("asked"))


def asking(data: bytes) -> bytes:
    """Return the contents of a lease's node, with the request to release it."""
    return json.dumps({**fields_of(data), "asked": True}).encode()


def limit_in(data: bytes) -> int:
    """Return the limit of a lease from the contents of its node."""
    return int(fields_of(data).get("limit", 1))


def fields_of(data: bytes) -> Mapping[str, Any]:
    """Return the fields that ``packed`` has put into a node."""
    said: Mapping[str, Any] = json.loads(data)
    return said
