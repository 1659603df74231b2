"""The PostgreSQL engine beside the server's own advisory locks.

The server is that of the tests, with ``fsync=off``: what a disk costs is not measured. Each change of
a lease is one COMMIT, which waits for the disk in production; advisory locks are never written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

import psycopg

from tests.servers import Postgres
from weblock import AsyncLocks, Locks

from . import machine
from .contenders import KEY, Asyncio, AsyncSection, Blocking, Contender, Section
from .measuring import Case, Effort, Slice, asyncio_rates, blocking_rates, compete, paired
from .report import Findings, Line
from .statistics import median, percentile
from .workers import Crew

PROCESSES = 2


def alone(effort: Effort) -> Iterator[Findings]:
    """PostgreSQL, and nobody else wants the key: one thread, and one task."""
    with machine.scratch() as directory, Postgres() as server:
        weblock, advisory, on_asyncio = _contenders(server.url())
        rates = blocking_rates([weblock, advisory], directory, effort)
        rates |= asyncio.run(asyncio_rates([on_asyncio], directory, effort))
    lines = []
    for contender, found in rates.items():
        rate = median(found)
        ratio = paired(rates[weblock], found) if contender is advisory else None
        lines.append(Line(contender.name, [f"{1e6 / rate:.0f}", f"{rate:,.0f}"], ratio))
    yield Findings("PostgreSQL, no contention", ["µs a section", "sections/s"], lines)


def hot8(effort: Effort) -> Iterator[Findings]:
    """PostgreSQL, one key, 8 waiters in 2 processes, with 0 ms and 1 ms of work."""
    with ExitStack() as stack:
        server = stack.enter_context(Postgres())
        crews = []
        for contender in _contenders(server.url()):
            crew = Crew(contender, stack.enter_context(machine.scratch()), PROCESSES)
            stack.enter_context(crew.working())
            crews.append(crew)
        for crew in crews:
            compete(crew, 8, 0.0, 0.1)  # opens everything
        for work in (0.0, 0.001):
            slices: dict[Contender, list[Slice]] = {crew.contender: [] for crew in crews}
            for _ in range(effort.rounds):
                for crew in crews:
                    slices[crew.contender].append(compete(crew, 8, work, effort.slice))
            yield _hot_findings(work, slices)


CASES: dict[str, Case] = {"postgresql": alone, "postgresql-hot8": hot8}


def _hot_findings(work: float, slices: dict[Contender, list[Slice]]) -> Findings:
    lines = []
    ours = [each.rate for each in next(iter(slices.values()))]
    for number, (contender, found) in enumerate(slices.items()):
        gaps = [1000 * gap for each in found for gap in each.gaps]
        figures = [
            f"{median(each.rate for each in found):,.0f}",
            f"{percentile(gaps, 0.5):.2f} / {percentile(gaps, 0.99):.2f}" if gaps else "none",
            f"{median(each.jain for each in found):.3f}",
        ]
        ratio = paired(ours, [each.rate for each in found]) if number == 1 else None
        lines.append(Line(contender.name, figures, ratio))
    title = f"PostgreSQL, one key, 8 waiters in {PROCESSES} processes, {1000 * work:g} ms of work"
    return Findings(title, ["sections/s", "hand-off p50 / p99 ms", "Jain"], lines)


def _contenders(url: str) -> tuple[Blocking, Blocking, Asyncio]:
    engine = f"{url}?create=true&recovery=off"
    return (
        Blocking("weblock postgresql://", partial(_weblock, engine)),
        Blocking("pg_advisory_lock, psycopg", partial(_advisory, url)),
        Asyncio("weblock postgresql://, asyncio", partial(_weblock_asyncio, engine)),
    )


@cache
def _locks(url: str) -> Locks:
    return Locks.from_url(url, wait=None)


@cache
def _asyncio_locks(url: str) -> AsyncLocks:
    return AsyncLocks.from_url(url, wait=None)


def _weblock(url: str, _directory: Path) -> Section:
    return partial(_locks(url).hold, KEY)


def _weblock_asyncio(url: str, _directory: Path) -> AsyncSection:
    return partial(_asyncio_locks(url).hold, KEY)


def _advisory(url: str, _directory: Path) -> Section:
    # It belongs to a session: each waiter needs a connection of its own, also while it waits.
    connection = psycopg.connect(url, autocommit=True)

    @contextlib.contextmanager
    def section() -> Iterator[None]:
        connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [KEY])
        try:
            yield
        finally:
            connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", [KEY])

    return section
