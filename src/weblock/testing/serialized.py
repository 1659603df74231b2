"""Finds out whether concurrent calls overlap."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from .report import report, told
from .sections import Sections, Watch, overlapping, watch_function

R = TypeVar("R")


def assert_serialized(
    call: Callable[[], R], *, inside: str | Watch, times: int = 5, pause: float = 0.1
) -> list[R]:
    """Makes ``times`` calls at once, each in a thread of its own, and returns what they returned.

    ``inside`` is what must not overlap: the dotted path of a function or method, as its callers
    look it up. Each pass through it is stretched by up to ``pause`` seconds, so that a pair that
    can meet does. Raises ``AssertionError`` with a report of who overlapped; also if there was
    nothing to see, since fewer than two got inside. Errors of the calls are raised in a group.
    """
    sections = Sections(pause=pause)
    with _watching(inside, sections):
        outcomes = _in_threads(call, times)
    return _judged(sections, outcomes)


async def assert_serialized_async(
    call: Callable[[], Awaitable[R]], *, inside: str | Watch, times: int = 5, pause: float = 0.1
) -> list[R]:
    """Assert that calls that are awaited, as tasks of the running loop, do not overlap."""
    sections = Sections(pause=pause)
    with _watching(inside, sections):
        calls = (call() for _ in range(times))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    return _judged(sections, outcomes)


def _watching(inside: str | Watch, sections: Sections) -> Any:
    watch = watch_function(inside) if isinstance(inside, str) else inside
    return watch(sections)


def _in_threads(call: Callable[[], R], times: int) -> list[R | BaseException]:
    outcomes: list[R | BaseException] = []
    start = threading.Barrier(times)

    def run() -> None:
        start.wait()
        try:
            outcomes.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the calls are awaited
            outcomes.append(error)

    threads = [threading.Thread(target=run, name=f"call {n}") for n in range(1, times + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _judged(sections: Sections, outcomes: Sequence[R | BaseException]) -> list[R]:
    seen = sections.all()
    if overlapping(seen):
        raise AssertionError(report(seen, outcomes))
    errors = [each for each in outcomes if isinstance(each, BaseException)]
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} of {len(outcomes)} calls failed", errors)
    if len(seen) < 2:
        raise AssertionError(
            f"{len(seen)} of {len(outcomes)} concurrent calls got inside, which says nothing:"
            f" two or more must. {told(outcomes)}"
        )
    if all(each.blocking for each in seen) and len({each.thread for each in seen}) == 1:
        raise AssertionError(
            f"all calls ran in one thread ({seen[0].thread.name}), where blocking code cannot"
            " overlap, locked or not: this says nothing of the lock. Call from threads, with"
            " assert_serialized and a blocking client"
        )
    return [each for each in outcomes if not isinstance(each, BaseException)]
