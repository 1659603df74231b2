"""What is measured. Each case gives one or more tables."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from . import contenders, machine
from .contenders import Asyncio, AsyncSection, Contender
from .measuring import (
    Case,
    Effort,
    Rates,
    Slice,
    asyncio_rates,
    blocking_rates,
    check,
    compete,
    paired,
    shares,
)
from .report import Findings, Goal, Line
from .statistics import median, percentile
from .workers import Crew, Job

PROCESSES = 4


def uncontended(effort: Effort) -> Iterator[Findings]:
    """Acquire and release, blocking and asyncio, with nobody else there."""
    blocking = (contenders.EMBEDDED, contenders.FILELOCK, contenders.SQLITE)
    on_asyncio = (contenders.EMBEDDED_ASYNCIO, contenders.FILELOCK_ASYNCIO)
    with machine.scratch() as directory:
        rates = blocking_rates(blocking, directory, effort)
        yield _uncontended("Uncontended, blocking", rates, {contenders.FILELOCK.name: 2.0})
        rates = asyncio.run(asyncio_rates(on_asyncio, directory, effort))
        yield _uncontended("Uncontended, asyncio", rates, {contenders.FILELOCK_ASYNCIO.name: 8.0})


def memory(effort: Effort) -> Iterator[Findings]:
    """The memory engine beside asyncio.Lock: uncontended, and handed from task to task."""
    compared = (contenders.MEMORY_ASYNCIO, contenders.ASYNCIO_LOCK)
    goal = {contenders.ASYNCIO_LOCK.name: 0.25}
    with machine.scratch() as directory:
        rates = asyncio.run(asyncio_rates(compared, directory, effort))
        yield _uncontended("One process, uncontended, asyncio", rates, goal)
        for waiters in (8, 64):
            rates = asyncio.run(_task_rates(compared, directory, waiters, effort))
            yield _uncontended(f"One process, one key, {waiters} tasks, 0 ms", rates, goal)


def hot8(effort: Effort) -> Iterator[Findings]:
    """One key, 8 waiters in 4 processes, with 0 ms and 1 ms of work."""
    yield from _hot(8, effort)


def hot64(effort: Effort) -> Iterator[Findings]:
    """One key, 64 waiters in 4 processes, with 0 ms and 1 ms of work."""
    yield from _hot(64, effort)


def idle(effort: Effort) -> Iterator[Findings]:
    """The CPU time of 50 waiters in 4 processes while the key is held elsewhere."""
    used = {}
    for contender in _HOT:
        with machine.scratch() as directory:
            used[contender] = _idle_share(contender, directory, effort.idle)
    lines = []
    for contender, share in used.items():
        ratio, goals = None, []
        if contender in (contenders.EMBEDDED, contenders.EMBEDDED_ASYNCIO):
            goals = [Goal.at_most(1, 100 * share, "%")]
        else:
            ratio = used[_ours(contender)] / max(share, 1e-6)
        lines.append(Line(contender.name, [f"{share:.2%}"], ratio, goals))
    yield Findings("50 idle waiters in 4 processes", ["CPU, share of one core"], lines)


CASES: dict[str, Case] = {
    "uncontended": uncontended,
    "memory": memory,
    "hot8": hot8,
    "hot64": hot64,
    "idle": idle,
}

_HOT: Sequence[Contender] = (
    contenders.EMBEDDED,
    contenders.EMBEDDED_ASYNCIO,
    contenders.FILELOCK,
    contenders.FILELOCK_ASYNCIO,
    contenders.SQLITE,
)


def _uncontended(title: str, rates: Rates, goals: dict[str, float]) -> Findings:
    ours, *_ = rates
    lines = []
    for contender, found in rates.items():
        rate = median(found)
        figures = [f"{1e6 / rate:.1f}", f"{rate:,.0f}"]
        ratio = None if contender is ours else paired(rates[ours], found)
        goal = goals.get(contender.name)
        kept = [Goal.at_least(goal, ratio)] if goal and ratio else []
        lines.append(Line(contender.name, figures, ratio, kept))
    return Findings(title, ["µs a section", "sections/s"], lines)


def _ours(peer: Contender) -> Contender:
    """Which of our APIs a peer is compared with."""
    return contenders.EMBEDDED_ASYNCIO if isinstance(peer, Asyncio) else contenders.EMBEDDED


async def _task_rates(
    compared: Sequence[Asyncio], directory: Path, waiters: int, effort: Effort
) -> Rates:
    """Tasks of one loop that all want one key, and give way once while they have it."""
    rates: Rates = {contender: [] for contender in compared}
    for _ in range(effort.rounds):
        for contender in compared:
            counter = 0
            counts = [0] * waiters
            section = contender.open(directory)
            end = time.monotonic() + effort.slice

            async def visit(number: int, section: AsyncSection = section, end: float = end) -> None:
                nonlocal counter
                while time.monotonic() < end:
                    async with section():
                        before = counter
                        await asyncio.sleep(0)
                        counter = before + 1
                    counts[number] += 1  # noqa: B023 - awaited before the next round

            start = time.monotonic()
            await asyncio.gather(*map(visit, range(waiters)))
            check(contender, counter, sum(counts))
            rates[contender].append(sum(counts) / (time.monotonic() - start))
    return rates


def _hot(waiters: int, effort: Effort) -> Iterator[Findings]:
    with ExitStack() as stack:
        crews = []
        for contender in _HOT:
            crew = Crew(contender, stack.enter_context(machine.scratch()), PROCESSES)
            stack.enter_context(crew.working())
            crews.append(crew)
        for crew in crews:
            compete(crew, waiters, 0.0, 0.1)  # opens everything
        for work in (0.0, 0.001):
            slices: dict[Contender, list[Slice]] = {contender: [] for contender in _HOT}
            for _ in range(effort.rounds):
                for crew in crews:
                    slices[crew.contender].append(compete(crew, waiters, work, effort.slice))
            title = (
                f"One key, {waiters} waiters in {PROCESSES} processes, {1000 * work:g} ms of work"
            )
            yield _hot_findings(title, slices, judged=waiters == 8 and work == 0)


def _hot_findings(title: str, slices: dict[Contender, list[Slice]], *, judged: bool) -> Findings:
    lines = []
    for contender, found in slices.items():
        gaps = [1000 * gap for each in found for gap in each.gaps]
        fairness = median(each.jain for each in found)
        figures = [
            f"{median(each.rate for each in found):,.0f}",
            f"{median(each.passed_on for each in found):,.0f}",
            f"{percentile(gaps, 0.5):.2f} / {percentile(gaps, 0.99):.2f}",
            f"{fairness:.3f}",
        ]
        ratio, goals = None, []
        if contender in (contenders.EMBEDDED, contenders.EMBEDDED_ASYNCIO):
            goals = [Goal.at_least(0.98, fairness, "Jain")] if judged else []
        else:
            ours = slices[_ours(contender)]
            ratio = paired([each.rate for each in ours], [each.rate for each in found])
            if judged and contender is not contenders.SQLITE:
                goals = [Goal.at_least(4, ratio)]
        lines.append(Line(contender.name, figures, ratio, goals))
    return Findings(title, ["sections/s", "passed on/s", "hand-off p50 / p99 ms", "Jain"], lines)


def _idle_share(contender: Contender, directory: Path, seconds: float) -> float:
    """The share of one core that 50 waiters use between them while another process holds."""
    crew = Crew(contender, directory, 1 + PROCESSES)
    with crew.working():
        start = time.monotonic() + 0.2
        held = Job(1, start, start, work=1.5 + seconds, limit=1)
        waiting = Job(0, start + 0.5, start + 1 + seconds, settle=0.5, limit=1)
        jobs = [replace(waiting, waiters=share) for share in shares(50, PROCESSES)]
        _, *outcomes = crew.run([held, *jobs])
    return sum(outcome.cpu for outcome in outcomes) / seconds
