"""The operations of operators, in every tool: inspect keys, and take a lease away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from ._platform.logs import printable
from .aio import AsyncLocks
from .inspection import KeyInfo
from .sync import Locks

HEADER: Final = ("KEY", "HOLDER", "FENCE", "HELD", "LEFT", "WAITING")
"""The columns of ``row``."""


LOOK_AGAIN: Final = 0.2
"""Seconds between two looks at a key whose holder was asked to release it."""

GENTLY: Final = 30.0
"""Seconds that a holder has for it, unless it is said."""

STILL_HELD: Final = 75
"""How a command exits if the holder goes on."""

MOST: Final = 1000
"""How many keys are listed, unless it is said."""

NOTHING: Final = "No key is held or waited for."

CONFIRM: Final = "Release it by force?"

NO_TERMINAL: Final = (
    "standard input is not a terminal, so this cannot ask for confirmation: use --force"
)


class NotReleased(Exception):
    """Nothing was released. With ``still_held``, the holder was asked to release the key, and goes on."""

    def __init__(self, text: str, *, still_held: bool = False) -> None:
        super().__init__(text)
        self.still_held = still_held


class ChangedHands(NotReleased):
    """The key has another holder than the one whose lease was to be taken."""

    def __init__(self, key: str, now: KeyInfo | None) -> None:
        holder = f"is held by {printable(now.holder)} now" if now and now.holder else "is free now"
        super().__init__(f"{printable(repr(key))} has changed hands: it {holder}")


def release(
    locks: Locks,
    key: str,
    *,
    by: str,
    agrees: Callable[[str], bool] | None,
    gently: float | None = None,
    fence: int | None = None,
) -> tuple[str, KeyInfo | None]:
    """Release a key for an operator; return what to say of it, and what was taken away by force.

    Args:
        by: Who asks for it, for the audit log.
        agrees: Asked whether to take the key away; ``None`` with ``--force``.
        gently: For how many seconds to wait until the holder, which is asked to, has released the key.
        fence: The fence of the holder that is meant; by default, the first holder.

    Raises ``NotReleased``, and what ``Locks.force_release`` raises.
    """
    info, name = locks.inspect(key), printable(key)
    if info is None or info.holder is None:
        raise NotReleased(f"{name} is not held")
    wanted = info.fence if fence is None else fence
    if gently is not None:
        fences = _fences_of(info)
        if wanted not in fences:
            raise ChangedHands(key, info)
        meant = fences if fence is None else {fence}
        locks.ask_release(key)
        give_up_at = time.monotonic() + gently
        now = locks.inspect(key)
        while (left := _fences_of(now) & meant) and time.monotonic() < give_up_at:
            time.sleep(LOOK_AGAIN)
            now = locks.inspect(key)
        if not left:
            return f"Released {name}, as asked.", None
        if agrees:
            raise NotReleased(
                f"{name} is still held by {holder_of(now or info)}, which was asked to release it:"
                " raise --timeout, or release it with --force",
                still_held=True,
            )
        wanted = min(left)  # Others may have released it, as asked.
    elif agrees:
        many = len(info.holders)
        all_lose = f" All {many} holders will lose it." if many > 1 else ""
        told = (
            f"{name} is held by {holder_of(info)}, for {duration(info.held_for)}. If the holder is"
            f" still running, it and the next holder will overlap.{all_lose}"
        )
        if not agrees(told):
            raise NotReleased("nothing was released")
    taken = take_away(locks, key, fence=wanted, by=by)
    if taken is None:
        raise NotReleased(f"{name} is no longer held")
    passed = f" It passes to {printable(taken.waiters[0])}." if taken.waiters else ""
    return f"Released {name}, taken from {holder_of(taken)}.{passed}", taken


def _fences_of(info: KeyInfo | None) -> frozenset[int]:
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


def listed(infos: Sequence[KeyInfo], *, as_json: bool) -> str:
    """Return what to print of several keys."""
    if as_json:
        return json.dumps([as_dict(info) for info in infos])
    return table(HEADER, map(row, infos)) if infos else NOTHING


def more_than(limit: int, what: str = "keys") -> str:
    """Return what to warn of where just as many were found as were to be listed."""
    return f"Only {limit} {what} are shown, and there may be more: raise --limit."


def shown(key: str, info: KeyInfo | None, *, as_json: bool) -> str:
    """Return what to print of one key: a fact on each line, and its queue in order."""
    if as_json:
        return json.dumps(info and as_dict(info))
    if info is None:
        return f"{printable(key)} is free."
    facts = zip(HEADER, row(info), strict=True)
    lines = [f"{name.lower() + ':':<9}{value}" for name, value in facts]
    if any(each.limit != 1 for each in info.holders):
        for each in info.holders:
            limit = "shared" if each.limit is None else f"limit {each.limit}"
            lines.append(
                f"{'-':>10} {printable(each.label)} (fence {each.fence}, {limit}):"
                f" {duration(each.held_for)}, {duration(each.remaining)} left"
            )
    lines += [f"{place:>9}. {printable(each)}" for place, each in enumerate(info.waiters, 1)]
    return "\n".join(lines)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text below a header, in columns, whatever their width."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
