"""How the cost of a lock grows: with waiters, with keys, with processes, and with the masters of a cluster."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression
from typing import Any

from tests.servers import Cluster, Server
from weblock import AsyncLocks

from . import machine
from .contenders import WEBLOCK_ASYNCIO, Target
from .measuring import Case, Effort, compete
from .races import script_time
from .report import Findings, Goal, Line
from .workers import Crew

WAITERS = (1, 8, 64, 512, 4096)
KEYS = (1, 100, 10_000)
PROCESSES = (1, 2, 4, 8, 16)
MASTERS = (1, 3)

TASKS = 32
"""With a key each, where keys are to be spread over masters."""

FLAT = 0.1
"""The largest exponent that counts as flat: ten times as many cost at most a quarter more."""


@dataclass(frozen=True)
class Cost:
    """What one section took, in microseconds: in all, and of the server's scripts."""

    whole: float
    scripts: float


Measure = Callable[[int], Coroutine[Any, Any, Cost]]


def growth(effort: Effort) -> Iterator[Findings]:
    """How the cost of a section on Redis grows with waiters, keys, processes and masters."""
    few = 3 if effort.slice < 0.2 else None  # Of a quick run.
    with Server() as server, Cluster() as cluster:
        url = f"redis://127.0.0.1:{server.port}/0?recovery=off"
        one, three = (url, [server]), (cluster.url(recovery="off"), cluster.nodes)

        async def with_waiters(count: int) -> Cost:
            return await _cost(*one, [["hot"]] * count, effort.slice)

        async def with_keys(count: int) -> Cost:
            return await _cost(*one, [_names(count)], effort.slice)

        async def with_masters(count: int) -> Cost:
            own = [[name] for name in _names(TASKS)]
            return await _cost(*(one if count == 1 else three), own, effort.slice)

        async def with_processes(count: int) -> Cost:
            return await asyncio.to_thread(_cost_in_processes, server, count, effort.slice)

        # One waiter is handed nothing over.
        yield _grown("waiters for one key", WAITERS[:few], with_waiters, effort, flat_from=8)
        yield _grown("keys", KEYS[:few], with_keys, effort, flat_from=1)
        title = "processes, a waiter each, for one key"
        yield _grown(title, PROCESSES[:few], with_processes, effort, flat_from=2)
        yield _grown("masters", MASTERS, with_masters, effort)


CASES: dict[str, Case] = {"growth": growth}


def exponent(costs: Mapping[int, float]) -> float:
    """Return how a cost grows: 0 if it is flat, 1 if it is in proportion."""
    sizes, values = zip(*costs.items(), strict=True)
    return linear_regression([*map(math.log, sizes)], [*map(math.log, values)]).slope


def _grown(
    what: str, sizes: Sequence[int], measure: Measure, effort: Effort, *, flat_from: int = 0
) -> Findings:
    """Measure the cost at each size, round by round, and how it grows; the lowest of each counts."""
    found: dict[int, list[Cost]] = {size: [] for size in sizes}
    for _, size in itertools.product(range(effort.rounds), sizes):
        found[size].append(asyncio.run(measure(size)))
    whole = {size: min(cost.whole for cost in costs) for size, costs in found.items()}
    scripts = {size: min(cost.scripts for cost in costs) for size, costs in found.items()}
    lines = [
        Line(
            f"{size:,}", [f"{1e6 / whole[size]:,.0f}", f"{whole[size]:.0f}", f"{scripts[size]:.1f}"]
        )
        for size in sizes
    ]
    slopes = [
        exponent({size: cost for size, cost in costs.items() if size >= flat_from})
        for costs in (whole, scripts)
    ]
    goals = [
        Goal.at_most(FLAT, slope, name)
        for slope, name in zip(slopes, ("µs", "server µs"), strict=True)
    ]
    title = f"exponent, from {flat_from:,} on" if flat_from > 1 else "exponent"
    figures = ["", *(f"{slope:+.2f}" for slope in slopes)]
    lines.append(Line(title, figures, goals=goals if flat_from else []))
    heads = ["sections/s", "µs a section", "server µs"]
    return Findings(f"Redis: how the cost grows with {what}", heads, lines, compares=False)


def _names(count: int) -> list[str]:
    return [f"key-{number}" for number in range(count)]


async def _cost(
    url: str, servers: Sequence[Server], ways: Sequence[Sequence[str]], seconds: float
) -> Cost:
    """What a section costs tasks that go from key to key, each by its own way, over and over."""
    done = 0
    async with AsyncLocks.from_url(url, wait=None, max_waiters=len(ways)) as locks:
        for key in {way[0] for way in ways}:  # It opens everything.
            await (await locks.acquire(key)).release()
        before = sum(map(script_time, servers))
        start = time.monotonic()
        end = start + seconds

        async def visit(way: Sequence[str]) -> None:
            nonlocal done
            for key in itertools.cycle(way):
                if time.monotonic() >= end:
                    break
                async with locks.hold(key):
                    done += 1

        await asyncio.gather(*map(visit, ways))
        elapsed = time.monotonic() - start
        spent = sum(map(script_time, servers)) - before
    return Cost(1e6 * elapsed / done, spent / done)


def _cost_in_processes(server: Server, processes: int, seconds: float) -> Cost:
    contender = WEBLOCK_ASYNCIO.at(Target((server.port,), "processes"))
    with machine.scratch() as directory:
        crew = Crew(contender, directory, processes)
        with crew.working():
            compete(crew, processes, 0.0, 0.05)  # It opens everything.
            before = script_time(server)
            rate = max(1.0, compete(crew, processes, 0.0, seconds).rate)
            return Cost(1e6 / rate, (script_time(server) - before) / (rate * seconds))
