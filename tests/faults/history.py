"""Whether what the workers saw can have been right: two checkers that must agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Hold(NamedTuple):
    """A lease as its holder saw it: it surely had it from ``began`` until ``held_at``."""

    began: int
    held_at: int
    fence: int
    limit: int = 1


class Span(NamedTuple):
    """A time in which leases were voided, and their holders had not all been told."""

    began: int
    ended: int

    def __contains__(self, at: object) -> bool:
        return isinstance(at, int) and self.began <= at <= self.ended


class History(NamedTuple):
    """All that was written down."""

    holds: list[Hold]
    fences: list[tuple[int, int]]
    """When an exclusive lease was seen for the first time, and its fence."""
    errors: Counter[str]


def read(folder: Path) -> History:
    """What all workers have written; of one that was killed the last line may be missing."""
    holds: list[Hold] = []
    fences: list[tuple[int, int]] = []
    errors: Counter[str] = Counter()
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            facts = _facts(line)
            match facts.get("event"):
                case "began" if facts["limit"] == 1:
                    fences.append((facts["at"], facts["fence"]))
                case "ended":
                    holds.append(Hold(*(facts[name] for name in Hold._fields)))
                case "error":
                    errors[facts["error"]] += 1
    return History(sorted(holds), sorted(fences), errors)


def overlaps(holds: Sequence[Hold]) -> list[tuple[Hold, Hold]]:
    """Pairs that surely held at the same time, though there were more than one of them allows.

    A sweep in the order in which they began: with each that is one too many comes the one that ended last.
    """
    found: list[tuple[Hold, Hold]] = []
    at_once: list[Hold] = []
    for hold in sorted(holds):
        at_once = [each for each in at_once if hold.began <= each.held_at]
        if len(at_once) >= min([hold.limit, *(each.limit for each in at_once)]):
            found.append((max(at_once, key=lambda each: each.held_at), hold))
        at_once.append(hold)
    return found


def unexcused(
    pairs: Sequence[tuple[Hold, Hold]], losses: Sequence[Span]
) -> list[tuple[Hold, Hold]]:
    """Pairs whose first lease was not voided: it began before a loss, and the other one after it."""
    return [
        (one, other)
        for one, other in pairs
        if not any(one.began <= loss.ended and other.began in loss for loss in losses)
    ]


def overlap_by_force(holds: Sequence[Hold]) -> bool:
    """The same by looking at each moment, to check the checker."""
    moments = {at for hold in holds for at in (hold.began, hold.held_at)}
    at_once = ([hold.limit for hold in holds if hold.began <= at <= hold.held_at] for at in moments)
    return any(len(limits) > min(limits) for limits in at_once)


def out_of_order(fences: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Fences that are not above all that were seen before."""
    found, highest = [], 0
    for at, fence in sorted(fences):
        if fence <= highest:
            found.append((at, fence))
        highest = max(highest, fence)
    return found


def _facts(line: str) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return facts
