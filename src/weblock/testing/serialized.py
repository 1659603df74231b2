"""Finds out whether concurrent calls overlap."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from .sections import Section, Sections, Watch, most_at_once, watch_function

R = TypeVar("R")

MORE: Final = 4
"""Calls beyond the limit."""

WIDTH: Final = 40
"""Characters of a time line."""

MOST_PAIRS: Final = 10


def assert_serialized(
    call: Callable[[], R],
    *,
    inside: str | Watch,
    times: int | None = None,
    pause: float = 0.1,
    limit: int = 1,
) -> list[R]:
    """Make several calls at once, each in a thread of its own, and return what they returned.

    Args:
        call: What to call.
        inside: What must not overlap: the dotted path of a function or method, as its callers look it
            up.
        times: How many calls to make: by default, four more than ``limit``.
        pause: Seconds by which each pass through it is stretched, at most, so that calls that can meet
            do.
        limit: How many may be inside at once.

    Raises:
        AssertionError: More were inside at once, and the report says which; or there was nothing to
            see, since no more than ``limit`` calls got inside.
        BaseExceptionGroup: Calls failed.
    """
    sections = Sections(pause=pause, limit=limit)
    outcomes: list[R | BaseException] = []
    with _watching(inside, sections):
        calls = _count(times, limit)
        start = threading.Barrier(calls)

        def run() -> None:
            start.wait()
            try:
                outcomes.append(call())
            except BaseException as error:  # noqa: BLE001 - it is raised below
                outcomes.append(error)

        threads = [threading.Thread(target=run, name=f"call {n}") for n in range(1, calls + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return _judged(sections, outcomes, limit)


async def assert_serialized_async(
    call: Callable[[], Awaitable[R]],
    *,
    inside: str | Watch,
    times: int | None = None,
    pause: float = 0.1,
    limit: int = 1,
) -> list[R]:
    """Assert that calls that are awaited, as tasks of the running loop, do not overlap.

    Arguments and errors are those of ``assert_serialized``.
    """
    sections = Sections(pause=pause, limit=limit)
    with _watching(inside, sections):
        calls = (call() for _ in range(_count(times, limit)))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    return _judged(sections, outcomes, limit)


def _count(times: int | None, limit: int) -> int:
    """Return how many calls to make. Raises ``ValueError`` if they cannot be too many."""
    if limit < 1:
        raise ValueError(f"limit={limit} must be 1 or more")
    if times is None:
        return limit + MORE
    if times <= limit:
        raise ValueError(f"times={times} calls can never be more than limit={limit} at once")
    return times


def _watching(inside: str | Watch, sections: Sections) -> Any:
    watch = watch_function(inside) if isinstance(inside, str) else inside
    return watch(sections)


def _judged(sections: Sections, outcomes: Sequence[R | BaseException], limit: int) -> list[R]:
    seen = sections.all()
    if most_at_once(seen) > limit:
        raise AssertionError(report(seen, outcomes, limit))
    errors = [each for each in outcomes if isinstance(each, BaseException)]
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} of {len(outcomes)} calls failed", errors)
    if len(seen) <= limit:
        raise AssertionError(
            f"{len(seen)} of {len(outcomes)} concurrent calls got inside, which proves nothing:"
            f" at least {'two' if limit == 1 else limit + 1} must. {told(outcomes)}"
        )
    if all(each.blocking for each in seen) and len({each.thread for each in seen}) == 1:
        raise AssertionError(
            f"all calls ran in one thread ({seen[0].thread.name}), where blocking code cannot"
            " overlap, locked or not: this proves nothing about the lock. Call from threads, with"
            " assert_serialized and a blocking client"
        )
    return [each for each in outcomes if not isinstance(each, BaseException)]


def report(sections: list[Section], outcomes: Sequence[Any], limit: int) -> str:
    """Return how many were inside at once, and which, with a time line of each."""
    more = f", and limit={limit} allows {limit}" if limit > 1 else ""
    inside = f"{most_at_once(sections)} were inside at once{more}."
    lines = [f"{len(outcomes)} concurrent calls were not serialized: {inside}"]
    start = sections[0].enter
    ends = [each.enter if each.leave is None else each.leave for each in sections]
    step = (max(ends) - start) / WIDTH or 1.0
    for number, (section, end) in enumerate(zip(sections, ends, strict=True), 1):
        first = min(WIDTH - 1, int((section.enter - start) / step))
        last = min(WIDTH - 1, int((end - start) / step))
        bar = f"{'#' * (last - first + 1):>{last + 1}}"
        lines.append(
            f"{number:>4} [{bar:<{WIDTH}}] {section.enter - start:.3f} to {end - start:.3f} s,"
            f" {section.thread.name}"
        )
    numbered = itertools.combinations(enumerate(sections, 1), 2)  # Entered in this order.
    pairs = [f"{first} with {then}" for (first, a), (then, b) in numbered if a.covers(b.enter)]
    if len(pairs) > MOST_PAIRS:
        pairs[MOST_PAIRS:] = [f"and {len(pairs) - MOST_PAIRS} more pairs"]
    return "\n".join([*lines, f"overlapping: {', '.join(pairs)}", told(outcomes)])


def told(outcomes: Sequence[Any]) -> str:
    """Return what the callers got."""
    counted: Counter[str] = Counter()
    for each in outcomes:
        status = getattr(each, "status_code", getattr(each, "status", None))
        if isinstance(each, BaseException):
            counted[f"{type(each).__name__}: {each}"[:200]] += 1
        else:
            counted[f"status {status}" if isinstance(status, int) else f"{each!r:.80}"] += 1
    return f"outcomes: {', '.join(f'{count} x {what}' for what, count in counted.items())}"
