"""Reports which sections overlapped, for the reader of a failed test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from .sections import Section, most_at_once, overlapping

WIDTH: Final = 40
"""Characters of a time line."""

MOST_PAIRS: Final = 10


def report(sections: list[Section], outcomes: Sequence[Any], limit: int) -> str:
    """Return how many were inside at once, and which, with a time line of each."""
    more = f", and limit={limit} allows {limit}" if limit > 1 else ""
    inside = f"{most_at_once(sections)} were inside at once{more}."
    pairs = [f"{first} with {then}" for first, then in overlapping(sections)]
    if len(pairs) > MOST_PAIRS:
        pairs[MOST_PAIRS:] = [f"and {len(pairs) - MOST_PAIRS} more pairs"]
    return "\n".join(
        [
            f"{len(outcomes)} concurrent calls were not serialized: {inside}",
            *_time_lines(sections),
            f"overlapping: {', '.join(pairs)}",
            told(outcomes),
        ]
    )


def told(outcomes: Sequence[Any]) -> str:
    """Return what the callers got."""
    counted = Counter(_outcome(each) for each in outcomes)
    return f"outcomes: {', '.join(f'{count} x {what}' for what, count in counted.items())}"


def _outcome(outcome: Any) -> str:
    if isinstance(outcome, BaseException):
        return f"{type(outcome).__name__}: {outcome}"[:200]
    status = getattr(outcome, "status_code", getattr(outcome, "status", None))
    return f"status {status}" if isinstance(status, int) else f"{outcome!r:.80}"


def _time_lines(sections: list[Section]) -> list[str]:
    start = sections[0].enter
    ends = [each.enter if each.leave is None else each.leave for each in sections]
    step = (max(ends) - start) / WIDTH or 1.0
    lines = []
    for number, (section, end) in enumerate(zip(sections, ends, strict=True), 1):
        first = min(WIDTH - 1, int((section.enter - start) / step))
        last = min(WIDTH - 1, int((end - start) / step))
        bar = f"{'#' * (last - first + 1):>{last + 1}}"
        lines.append(
            f"{number:>4} [{bar:<{WIDTH}}] {section.enter - start:.3f} to {end - start:.3f} s,"
            f" {section.thread.name}"
        )
    return lines
