"""Who holds a key, and who waits for it: what operators and their tools may see."""

from __future__ import annotations

from dataclasses import dataclass

from ._core.ports import Look
from ._core.table import KeyState
from .keys import unqualified


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """How a key stood at one moment; by the time it is read, it may have changed hands.

    A key that has a queue and no holder is about to be passed on: its lease has ended, and nobody
    has touched it since.
    """

    key: str
    holder: str | None
    """The holder's label; ``None`` if nobody holds the key."""
    fence: int | None
    """The holder's fencing token."""
    held_for: float
    """Seconds since the holder got the key; 0 if nobody holds it."""
    remaining: float
    """Seconds until the lease ends unless it is renewed; 0 if nobody holds the key."""
    waiters: tuple[str, ...]
    """The labels of those who wait, in the order in which it will be their turn."""


KeyInfos = list[KeyInfo]
"""By a name of its own, for those who also have a method that is called ``list``."""


def info_of(qualified_key: str, look: Look) -> KeyInfo | None:
    """What may be told of a key: never an owner, which is a secret; ``None`` of one not in use."""
    state, now = look
    if not _in_use(state):
        return None
    grant = state.grant
    return KeyInfo(
        key=unqualified(qualified_key),
        holder=grant.claim.label if grant else None,
        fence=grant.fence if grant else None,
        held_for=max(0.0, now - grant.since) if grant else 0.0,
        remaining=max(0.0, grant.until - now) if grant else 0.0,
        waiters=tuple(place.claim.label for place in state.queue),
    )


def _in_use(state: KeyState) -> bool:
    return state.grant is not None or bool(state.queue)
