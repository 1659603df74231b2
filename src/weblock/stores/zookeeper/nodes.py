"""The names of the nodes, and their contents.

Below the node of a key there is at most one lease, which is persistent, and a place for everybody
who waits, which is ephemeral and sequential::

    <root>/keys/shop:create_item
        lease-<owner>
        place-<session>-<owner>-0000000012
    <root>/marks/shop:init
    <root>/sessions/<session>

The names have the owner in them, so none is ever used twice: what is said of a node by name cannot
hit another's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

LEASE = "lease-"
PLACE = "place-"


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


class Family(NamedTuple):
    """The children of a key's node, and the version of the node itself.

    Every grant and every transfer raises it.
    """

    version: int
    lease: str | None
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
    version: int
    granted: float
    renewed: float


def family_of(children: Iterable[str], version: int = 0) -> Family:
    """Return the lease and the places with these names."""
    lease, places = None, []
    for name in children:
        if name.startswith(LEASE):
            lease = name
        elif name.startswith(PLACE):
            _, session, owner, number = name.split("-", 3)
            places.append(Place(name, session, owner, int(number)))
    return Family(version, lease, tuple(sorted(places, key=lambda place: place.number)))


def lease_of(name: str, data: bytes, stat: Any) -> Lease:
    """Return the lease in a node."""
    said = fields_of(data)
    return Lease(
        name,
        name.removeprefix(LEASE),
        said["session"],
        said["label"],
        float(said["ttl"]),
        said.get("fence") or stat.czxid,
        stat.version,
        stat.ctime / 1000,
        stat.mtime / 1000,
    )


def packed(session: str, label: str, ttl: float, fence: int | None = None) -> bytes:
    """Return the contents of the node of a lease or a place; ``fence`` as ``Own`` has it."""
    said = {"session": session, "label": label, "ttl": ttl}
    return json.dumps(said if fence is None else {**said, "fence": fence}).encode()


def fields_of(data: bytes) -> Mapping[str, Any]:
    """Return the fields that ``packed`` has put into a node."""
    said: Mapping[str, Any] = json.loads(data)
    return said
