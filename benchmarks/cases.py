"""What is measured. Each case gives one or more tables."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from . import contenders, machine
from .contenders import Asyncio, AsyncSection, Blocking, Contender
from .report import Findings, Goal, Line
from .statistics import jain, median, percentile
from .workers import Crew, Job, Outcome

PROCESSES = 4


@dataclass(frozen=True)
class Effort:
    """How long to measure: so many rounds of one slice for each contender in turn."""

    rounds: int
    slice: float
    """Seconds in which each contender has the machine for itself."""
    idle: float
    """Seconds for which waiters are watched waiting."""


Case = Callable[[Effort], Iterator[Findings]]


def uncontended(effort: Effort) -> Iterator[Findings]:
    """Acquire and release, blocking and asyncio, with nobody else there."""
    blocking = (contenders.EMBEDDED, contenders.FILELOCK, contenders.SQLITE)
    on_asyncio = (contenders.EMBEDDED_ASYNCIO, contenders.FILELOCK_ASYNCIO)
    with machine.scratch() as directory, machine.awake():
        rates = _blocking_rates(blocking, directory, effort)
        yield _uncontended("Uncontended, blocking", rates, {contenders.FILELOCK.name: 2.0})
        rates = asyncio.run(_asyncio_rates(on_asyncio, directory, effort))
        yield _uncontended("Uncontended, asyncio", rates, {contenders.FILELOCK_ASYNCIO.name: 8.0})


def memory(effort: Effort) -> Iterator[Findings]:
    """The memory engine beside asyncio.Lock: uncontended, and handed from task to task."""
    compared = (contenders.MEMORY_ASYNCIO, contenders.ASYNCIO_LOCK)
    goal = {contenders.ASYNCIO_LOCK.name: 0.25}
    with machine.scratch() as directory, machine.awake():
        rates = asyncio.run(_asyncio_rates(compared, directory, effort))
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
    shares = {}
    for contender in _HOT:
        with machine.scratch() as directory:
            shares[contender] = _idle_share(contender, directory, effort.idle)
    lines = []
    for contender, share in shares.items():
        ratio, goals = None, []
        if contender in (contenders.EMBEDDED, contenders.EMBEDDED_ASYNCIO):
            goals = [Goal.at_most(1, 100 * share, "%")]
        else:
            ratio = shares[_ours(contender)] / max(share, 1e-6)
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

Rates = dict[Contender, list[float]]
"""Sections per second of each contender, slice by slice."""


def _uncontended(title: str, rates: Rates, goals: dict[str, float]) -> Findings:
    ours, *_ = rates
    lines = []
    for contender, found in rates.items():
        rate = median(found)
        figures = [f"{1e6 / rate:.1f}", f"{rate:,.0f}"]
        ratio = None if contender is ours else _ratio(rates[ours], found)
        goal = goals.get(contender.name)
        kept = [Goal.at_least(goal, ratio)] if goal and ratio else []
        lines.append(Line(contender.name, figures, ratio, kept))
    return Findings(title, ["µs a section", "sections/s"], lines)


def _ours(peer: Contender) -> Contender:
    """Which of our faces a peer is compared with."""
    return contenders.EMBEDDED_ASYNCIO if isinstance(peer, Asyncio) else contenders.EMBEDDED


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over the rounds: each round's slices were measured one right after the other."""
    return median(our / max(their, 1e-6) for our, their in zip(ours, theirs, strict=True))


def _blocking_rates(compared: Sequence[Blocking], directory: Path, effort: Effort) -> Rates:
    sections = {contender: contender.open(directory) for contender in compared}
    rates: Rates = {contender: [] for contender in compared}
    for _ in range(effort.rounds):
        for contender, section in sections.items():
            counter, done, start = 0, 0, time.monotonic()
            while time.monotonic() - start < effort.slice:
                for _ in range(20):
                    with section():
                        counter += 1
                    done += 1
            _check(contender, counter, done)
            rates[contender].append(done / (time.monotonic() - start))
    return rates


async def _asyncio_rates(compared: Sequence[Asyncio], directory: Path, effort: Effort) -> Rates:
    sections = {contender: contender.open(directory) for contender in compared}
    rates: Rates = {contender: [] for contender in compared}
    for _ in range(effort.rounds):
        for contender, section in sections.items():
            counter, done, start = 0, 0, time.monotonic()
            while time.monotonic() - start < effort.slice:
                for _ in range(20):
                    async with section():
                        counter += 1
                    done += 1
            _check(contender, counter, done)
            rates[contender].append(done / (time.monotonic() - start))
    return rates


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

            async def compete(
                number: int, section: AsyncSection = section, end: float = end
            ) -> None:
                nonlocal counter
                while time.monotonic() < end:
                    async with section():
                        before = counter
                        await asyncio.sleep(0)
                        counter = before + 1
                    counts[number] += 1  # noqa: B023 - awaited before the next round

            start = time.monotonic()
            await asyncio.gather(*map(compete, range(waiters)))
            _check(contender, counter, sum(counts))
            rates[contender].append(sum(counts) / (time.monotonic() - start))
    return rates


def _check(contender: Contender, counted: int, done: int) -> None:
    if counted != done:
        raise RuntimeError(f"{contender.name} lost updates: {counted} counted of {done}")


@dataclass(frozen=True)
class _Slice:
    """What one contender did with the hot key in one slice."""

    rate: float
    passed_on: float
    """Sections a second that went to another waiter than the one before."""
    gaps: list[float]
    """Seconds from the end of a section to the start of another waiter's."""
    jain: float

    @classmethod
    def of(cls, outcomes: list[Outcome], start: float, end: float) -> _Slice:
        waiters = [each for outcome in outcomes for each in outcome.visits]
        counts = [sum(visit.left <= end for visit in visits) for visits in waiters]
        turns = sorted(
            (visit, waiter)
            for waiter, visits in enumerate(waiters)
            for visit in visits
            if visit.left <= end
        )
        gaps = [
            later.entered - earlier.left
            for (earlier, one), (later, another) in itertools.pairwise(turns)
            if one != another
        ]
        seconds = end - start
        return cls(sum(counts) / seconds, len(gaps) / seconds, gaps, jain(counts))


def _hot(waiters: int, effort: Effort) -> Iterator[Findings]:
    with ExitStack() as stack:
        stack.enter_context(machine.awake())
        crews = []
        for contender in _HOT:
            crew = Crew(contender, stack.enter_context(machine.scratch()), PROCESSES)
            stack.enter_context(crew.working())
            crews.append(crew)
        for crew in crews:
            _compete(crew, waiters, 0.0, 0.1)  # opens everything
        for work in (0.0, 0.001):
            slices: dict[Contender, list[_Slice]] = {contender: [] for contender in _HOT}
            for _ in range(effort.rounds):
                for crew in crews:
                    slices[crew.contender].append(_compete(crew, waiters, work, effort.slice))
            title = (
                f"One key, {waiters} waiters in {PROCESSES} processes, {1000 * work:g} ms of work"
            )
            yield _hot_findings(title, slices, judged=waiters == 8 and work == 0)


def _compete(crew: Crew, waiters: int, work: float, seconds: float) -> _Slice:
    start = time.monotonic() + 0.1
    end = start + seconds
    jobs = [Job(share, start, end, work) for share in _shares(waiters)]
    return _Slice.of(crew.run(jobs), start, end)


def _shares(waiters: int) -> list[int]:
    return [(waiters + number) // PROCESSES for number in range(PROCESSES)]


def _hot_findings(title: str, slices: dict[Contender, list[_Slice]], *, judged: bool) -> Findings:
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
            ratio = _ratio([each.rate for each in ours], [each.rate for each in found])
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
        jobs = [replace(waiting, waiters=share) for share in _shares(50)]
        _, *outcomes = crew.run([held, *jobs])
    return sum(outcome.cpu for outcome in outcomes) / seconds
