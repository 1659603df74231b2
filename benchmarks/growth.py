"""How costs grow: with waiters, leases, keys and processes, and sections. Each table is also a plot."""

from __future__ import annotations

import asyncio
import itertools
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.servers import Postgres, Server
from weblock import AsyncLocks, Locks

from . import machine
from .contenders import Blocking, Section
from .measuring import Case, Effort, compete
from .report import Findings, at_most
from .workers import Crew

WAITERS: Final = (8, 64, 256, 1000)
LEASES: Final = (100, 1_000, 10_000)
KEYS: Final = (50, 500, 5_000)
PROCESSES: Final = (1, 5, 20)
ROUNDS: Final = 3

CROWD: Final = 8  # So many waiters come at once.

Curve = dict[int, float]
"""From a size to a figure."""


def growth(effort: Effort) -> Iterator[Findings]:
    """Growth with the waiters for a key, with leases, keys and processes, and sections."""
    seconds, sections = 5 * effort.slice, 20_000 if effort.fastest else 1_000_000
    with Server() as server, Postgres() as postgres, machine.scratch() as directory:
        urls = {
            "memory": "memory://growth",
            "file": f"file://{directory}/locks?allow_container=true",
            "Redis": f"redis://127.0.0.1:{server.port}?recovery=off",
            "PostgreSQL": f"{postgres.url()}?create=true&recovery=off",
        }
        # A row of PostgreSQL has all waiters for its key, and is read and written whole.
        sizes = dict.fromkeys(urls, WAITERS) | {"PostgreSQL": WAITERS[:2]}
        curves = {
            name: _relative(_least(sizes[name], partial(_hand_over, url)))
            for name, url in urls.items()
        }
        yield _table("Time of a hand-over ÷ with 8 waiters, by waiters for a key", curves, 1.3)
        curves = {"Redis": _least(LEASES, partial(_stop, server, urls["Redis"]))}
        yield _table("Stop of the server at a time, ms, by leases of a keeper", curves, 20)
        curves = {
            f"file, {each} process{'es' * (each > 1)}": _relative(
                {keys: _section_of_many_keys(each, seconds, keys) for keys in KEYS}
            )
            for each in PROCESSES
        }
        yield _table("Time of a section ÷ with 50 keys, by keys", curves, 1.3)
        del urls["PostgreSQL"]
        curves = {
            f"{name}, {what}": _relative(curve)
            for name, url in urls.items()
            for what, curve in _used(server, url, sections).items()
        }
        yield _table("Use of a process ÷ after a fifth, by sections", curves, 1.1)


CASES: dict[str, Case] = {"growth": growth}


def draw(found: Sequence[Findings], path: Path, conditions: str) -> None:
    """Draw the tables as plots into an SVG file."""
    from matplotlib.ticker import StrMethodFormatter  # The workers have no need for it.

    from demo.picture import PALE, TOGETHER, new_figure, save

    figure = new_figure(11, 8)
    for axes, findings in zip(figure.subplots(2, 2).flat, found, strict=True):
        sizes = [int(head.replace(",", "")) for head in findings.heads[:-1]]
        for name, *figures, _goal in findings.rows:
            axes.plot(sizes, [float(each or "nan") for each in figures], marker=".", label=name)
        bound = float(findings.rows[0][-1].strip("≤ ").partition(":")[0])
        axes.axhline(bound, color=TOGETHER, ls="--", lw=1, label="goal")
        axes.set_title(findings.title, loc="left", fontsize=10)
        axes.set(xscale="log", xticks=sizes, ylim=(0, None))
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.legend(frameon=False)
    figure.supxlabel(conditions, color=PALE, fontsize=8)
    save(figure, path, "How costs grow")


def _table(title: str, curves: Mapping[str, Curve], bound: float) -> Findings:
    sizes = next(iter(curves.values()))
    rows = []
    for name, curve in curves.items():
        cells = [f"{curve[size]:.2f}" if size in curve else "" for size in sizes]
        rows.append([name, *cells, at_most(bound, [*curve.values()][-1])])
    return Findings(title, [*(f"{size:,}" for size in sizes), "goal"], rows)


def _least(sizes: Sequence[int], measure: Callable[[int], float]) -> Curve:
    """Measure at each size, round by round; the least disturbed round counts."""
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _, size in itertools.product(range(ROUNDS), sizes):
        found[size].append(measure(size))
    return {size: min(each) for size, each in found.items()}


def _relative(curve: Curve) -> Curve:
    first = next(iter(curve.values()))
    return {size: each / first for size, each in curve.items()}


def _hand_over(url: str, waiters: int) -> float:
    """Seconds from the end of a section to the start of the next, while all queue."""
    gaps: list[float] = []
    left = 0.0
    turns = 3 + 200 // waiters

    async def visit(locks: AsyncLocks) -> None:
        nonlocal left
        for _ in range(turns):
            async with locks.hold("hot"):
                gaps.append(time.monotonic() - left)
                left = time.monotonic()

    async def run() -> None:
        async with AsyncLocks.from_url(url, wait=None) as locks:
            tasks: list[asyncio.Task[None]] = []
            async with locks.hold("hot"):
                while len(tasks) < waiters:
                    tasks += [asyncio.create_task(visit(locks)) for _ in range(CROWD)]
                    while not any(each.done() for each in tasks):
                        await asyncio.sleep(0.01)
                        found = await locks.inspect("hot")
                        if found and len(found.waiters) == len(tasks):
                            break
            await asyncio.gather(*tasks)

    asyncio.run(run())
    return median(gaps[waiters:-waiters])


def _stop(server: Server, url: str, leases: int) -> float:
    """Milliseconds for which the renewal of so many leases keeps the server from other clients at a time.

    The server runs all scripts that it has read from a connection before it turns to the next one. So this
    is the mean time of a read's scripts, by the server's own counts of their time and of its reads: it does
    not depend on when another client, which would notice the stop, gets a processor.
    """

    async def run() -> list[dict[str, Any]]:
        async with AsyncLocks.from_url(url, ttl=10) as locks:
            held = await asyncio.gather(*(locks.acquire(f"key-{n}") for n in range(leases)))
            counts = []
            with server.client() as client:
                # The first renewals, after a third of the ttl, load the script.
                for seconds in (4, 7):
                    await asyncio.sleep(seconds)
                    counts.append(client.info("all"))
            await asyncio.gather(*(lease.release() for lease in held))
        return counts

    before, after = asyncio.run(run())
    micros: int = after["cmdstat_evalsha"]["usec"] - before["cmdstat_evalsha"]["usec"]
    reads: int = after["total_reads_processed"] - before["total_reads_processed"]
    return micros / reads / 1000


def _section_of_many_keys(processes: int, seconds: float, keys: int) -> float:
    """Seconds for each section that all processes together have, each in an order of its own."""
    with machine.scratch() as directory:
        crew = Crew(Blocking("many keys", partial(_many_keys, keys)), directory, processes)
        with crew.working():
            slices = [
                compete(crew, processes, 0.0, seconds, one_key=False) for _ in range(ROUNDS + 1)
            ]
    return 1 / max(each.rate for each in slices[1:])  # Once all has been opened.


def _many_keys(keys: int, directory: Path) -> Section:
    locks = Locks.from_url(f"file://{directory}/locks?allow_container=true", wait=None)
    names = [f"key-{number}" for number in range(keys)]
    random.shuffle(names)
    turns = itertools.cycle(names)
    return lambda: locks.hold(next(turns))


def _used(server: Server, url: str, sections: int) -> dict[str, Curve]:
    """The memory and descriptors of this process, and the memory of Redis, after each fifth of the sections."""
    memory, descriptors, of_server = Curve(), Curve(), Curve()
    with Locks.from_url(url) as locks:
        for number in range(1, sections + 1):
            with locks.hold(f"key-{number}"):
                pass
            if number % (sections // 5) == 0:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                memory[number] = pages * resource.getpagesize()
                descriptors[number] = len([*Path("/proc/self/fd").iterdir()])
                if url.startswith("redis:"):
                    with server.client() as client:
                        of_server[number] = client.info("memory")["used_memory"]
    curves = {"memory": memory, "descriptors": descriptors}
    return curves | {"memory of the server": of_server} if of_server else curves
