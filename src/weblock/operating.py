"""The operations of operators, in every tool: inspect keys, and take a lease away."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from ._platform.logs import printable
from .aio import AsyncLocks
from .inspection import HolderInfo, KeyInfo
from .sync import Locks

HEADER: Final = ("KEY", "HOLDER", "FENCE", "HELD", "LEFT", "WAITING")
"""The columns of ``row``."""


LOOK_AGAIN: Final = 0.2
"""Seconds between two looks at a key whose holder was asked to release it."""

GENTLY: Final = 30.0
"""Seconds that a holder has for it, unless it is said."""

STILL_HELD: Final = 75
"""How a command exits if the holder goes on."""


class ChangedHands(Exception):
    """The key has another holder than the one whose lease was to be taken; that one is ``now``."""

    def __init__(self, key: str, now: KeyInfo | None) -> None:
        holder = f"is held by {printable(now.holder)} now" if now and now.holder else "is free now"
        super().__init__(f"{printable(repr(key))} has changed hands: it {holder}")
        self.key = key
        self.now = now


def step_down(locks: Locks, key: str, fences: Collection[int], *, timeout: float) -> bool:
    """Ask the holders with these fences to release; return whether all have done so in time.

    ``timeout`` is in seconds. Raises as ``Locks.ask_release`` does.
    """
    locks.ask_release(key)
    give_up_at = time.monotonic() + timeout
    while not fences_of(locks.inspect(key)).isdisjoint(fences):
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(LOOK_AGAIN)
    return True


def fences_of(info: KeyInfo | None) -> frozenset[int]:
    """Return the fences of all holders of a key."""
    return frozenset(holder.fence for holder in info.holders) if info else frozenset()


def take_away(locks: Locks, key: str, *, fence: int | None = None, by: str) -> KeyInfo | None:
    """Take a key from its holder by force, which the audit log tells; ``None`` if nobody held it.

    With ``fence``, only from the holder that has it, as far as can be seen just before: raises
    ``ChangedHands``. ``by`` says who asked for it. Raises as ``Locks.force_release`` does, too.
    """
    found = _still(key, locks.inspect(key), fence)
    return found if found and locks.force_release(key, by=by) else None


async def take_away_async(
    locks: AsyncLocks, key: str, *, fence: int | None = None, by: str
) -> KeyInfo | None:
    """Take a key from its holder by force, as ``take_away`` does, in a task."""
    found = _still(key, await locks.inspect(key), fence)
    return found if found and await locks.force_release(key, by=by) else None


def _still(key: str, found: KeyInfo | None, fence: int | None) -> KeyInfo | None:
    """Return the holder of the key, or ``None``. Raises ``ChangedHands`` if it is another one."""
    if fence is not None and (found is None or fence not in [one.fence for one in found.holders]):
        raise ChangedHands(key, found)
    return found if found and found.holder is not None else None


def duration(seconds: float) -> str:
    """Return seconds as people read them: 0.8 s, 12 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def as_dict(info: KeyInfo) -> dict[str, Any]:
    """Return what JSON says of a key; durations are seconds."""
    facts = asdict(info)
    for holder in facts["holders"]:
        holder |= {name: round(holder[name], 3) for name in ("held_for", "remaining")}
    return facts | {
        "held_for": round(info.held_for, 3),
        "remaining": round(info.remaining, 3),
        "waiters": list(info.waiters),
        "holders": list(facts["holders"]),
    }


def holder_of(info: KeyInfo) -> str:
    """Return what to call the holder of a key: the first, and how many there are besides."""
    more = len(info.holders) - 1
    return printable(info.holder or "") + (f" (+{more})" if more > 0 else "")


def row(info: KeyInfo) -> tuple[str, ...]:
    """Return what a table says of a key, in the columns of ``HEADER``."""
    waiting = str(len(info.waiters)) if info.waiters else "-"
    if info.holder is None:
        return printable(info.key), "-", "-", "-", "-", waiting
    return (
        *(printable(info.key), holder_of(info), str(info.fence)),
        *(duration(info.held_for), duration(info.remaining), waiting),
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text below a header, in columns, whatever their width."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def sheet(info: KeyInfo) -> str:
    """Return all that there is to say of one key, a fact on each line, and its queue in order."""
    facts = zip(HEADER, row(info), strict=True)
    lines = [f"{name.lower() + ':':<9}{value}" for name, value in facts]
    if any(each.limit != 1 for each in info.holders):
        lines += map(_of, info.holders)
    lines += [f"{place:>9}. {printable(each)}" for place, each in enumerate(info.waiters, 1)]
    return "\n".join(lines)


def _of(holder: HolderInfo) -> str:
    limit = "shared" if holder.limit is None else f"limit {holder.limit}"
    held, left = duration(holder.held_for), duration(holder.remaining)
    return (
        f"{'-':>10} {printable(holder.label)} (fence {holder.fence}, {limit}): {held}, {left} left"
    )


def question(info: KeyInfo) -> str:
    """Return what to know before a lease is taken away."""
    return (
        f"{printable(info.key)} is held by {holder_of(info)}, for {duration(info.held_for)}."
        f" If that is still running, it and the next holder overlap.{_all_lose(info)}"
    )


def said_of(taken: KeyInfo) -> str:
    """Return what has happened where a lease was taken away."""
    passed = f" It passes to {printable(taken.waiters[0])}." if taken.waiters else ""
    return f"Released {printable(taken.key)}, taken from {holder_of(taken)}.{passed}"


def said_of_stepping_down(key: str) -> str:
    """Return what has happened where a holder has released a key because it was asked to."""
    return f"Released {printable(key)}, as asked."


def still_held(info: KeyInfo) -> str:
    """Return what to do about a holder that was asked to release a key, and goes on."""
    return (
        f"{printable(info.key)} is still held by {holder_of(info)}, which was asked to release it:"
        " raise --timeout, or take it away with --force"
    )


def _all_lose(info: KeyInfo) -> str:
    return f" All {len(info.holders)} holders lose it." if len(info.holders) > 1 else ""
