"""What operators do to locks: to look at them, and to take a lease away."""

from __future__ import annotations

import logging

from ...inspection import KeyInfo
from .registry import locks

audit = logging.getLogger("weblock.audit")
"""Who took which lease from whom, one line for each."""


class ChangedHands(Exception):
    """The key has another holder than the one whose lease was to be taken; that one is ``now``."""

    def __init__(self, key: str, now: KeyInfo | None) -> None:
        holder = f"is held by {printable(now.holder)} now" if now and now.holder else "is free now"
        super().__init__(f"{key!r} has changed hands: it {holder}")
        self.key = key
        self.now = now


def take_away(alias: str, key: str, *, fence: int | None = None, by: str) -> KeyInfo | None:
    """Takes a key from its holder by force, which is logged; ``None`` if nobody held it.

    With ``fence``, only from the holder that has it, as far as can be seen just before: raises
    ``ChangedHands``. Raises as ``Locks.force_release`` does, too.
    """
    found = locks[alias].inspect(key)
    if fence is not None and (found is None or found.fence != fence):
        raise ChangedHands(key, found)
    if found is None or found.holder is None or not locks[alias].force_release(key):
        return None
    audit.warning(
        "%s took %r of %r from %s by force (fence %d, held for %.1f s, %d waiting)",
        *(by, key, alias, printable(found.holder), found.fence, found.held_for, len(found.waiters)),
    )
    return found


def printable(label: str | None) -> str:
    """A label for a terminal or a log: what others wrote into it moves no cursor."""
    return "".join(each if each.isprintable() else "?" for each in label or "")


def duration(seconds: float) -> str:
    """Seconds as people read them: 0.8 s, 12 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
