"""The view that operators and their tools have of a key: its holders and its waiters."""

from __future__ import annotations

from dataclasses import dataclass

from ._core.ports import Look
from ._core.table import SHARED
from .keys import unqualified


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """One holder of a key."""

    label: str
    """What it is called: by default, host and process id."""
    fence: int
    """Its fencing token."""
    held_for: float
    """Seconds since it acquired the key."""
    remaining: float
    """Seconds until its lease ends unless it is renewed."""
    limit: int | None
    """How many may hold the key while it is one of them; ``None`` if its lease is shared."""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """The holders and the waiters of a key at one moment.

    A key with waiters and without a holder is about to be passed on: its lease has ended, and no
    process has touched it since.
    """

    key: str
    holder: str | None
    """The label of the holder, of several the first; ``None`` if the key is not held."""
    fence: int | None
    """The holder's fencing token."""
    held_for: float
    """Seconds since the holder acquired the key; 0 if it is not held."""
    remaining: float
    """Seconds until the lease ends unless it is renewed; 0 if the key is not held."""
    waiters: tuple[str, ...]
    """The labels of the waiters, in the order of their turn."""
    holders: tuple[HolderInfo, ...] = ()
    """All holders, in the order of their fences: several, if their limit is above 1 or they share."""


KeyInfos = list[KeyInfo]
"""A list under a name of its own, for classes that have a method ``list``."""


def info_of(qualified_key: str, look: Look) -> KeyInfo | None:
    """Return what may be shown of a key, or ``None`` for a key that is not in use.

    The owner is a secret, and is never part of it.
    """
    state, now = look
    grant = state.grant
    if not grant and not state.queue:
        return None
    return KeyInfo(
        key=unqualified(qualified_key),
        holder=grant.claim.label if grant else None,
        fence=grant.fence if grant else None,
        held_for=max(0.0, now - grant.since) if grant else 0.0,
        remaining=max(0.0, grant.until - now) if grant else 0.0,
        waiters=tuple(place.claim.label for place in state.queue),
        holders=tuple(
            HolderInfo(
                label=each.claim.label,
                fence=each.fence,
                held_for=max(0.0, now - each.since),
                remaining=max(0.0, each.until - now),
                limit=None if each.claim.limit == SHARED else each.claim.limit,
            )
            for each in state.grants
        ),
    )
