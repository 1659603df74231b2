"""The Redis engine beside other locks on Redis, and beside the floor: what raw commands cost.

The server is one of the wheels' or one on PATH, without persistence, on a free port of loopback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import redis

from tests.servers import Server

from . import machine
from . import redis_contenders as peers
from .contenders import Asyncio, Blocking
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
from .redis_contenders import Peer, Target, installed
from .report import Findings, Goal, Line
from .statistics import median, percentile
from .workers import Crew, Job

PROCESSES = 2

_HOT = (
    peers.WEBLOCK,
    peers.WEBLOCK_ASYNCIO,
    peers.PUSH,
    peers.REDIS_PY,
    peers.REDIS_PY_ASYNCIO,
    peers.PYTHON_REDIS_LOCK,
    peers.REDIS_FIFO_LOCK,
    peers.POTTERY,
    peers.POTTERY_ASYNCIO,
    peers.SHERLOCK,
)

_WAITING = tuple(peer for peer in _HOT if peer is not peers.PUSH)

_OURS = (peers.WEBLOCK, peers.WEBLOCK_ASYNCIO)


def alone(effort: Effort) -> Iterator[Findings]:
    """Nobody else wants the key: one thread, one task, and 32 tasks with a key each."""
    with machine.scratch() as directory, Server() as server:
        target = Target(server.port)
        blocking = [
            contender
            for peer in installed(
                (
                    peers.WEBLOCK,
                    peers.RAW,
                    peers.REDIS_PY,
                    peers.PYTHON_REDIS_LOCK,
                    peers.POTTERY,
                    peers.SHERLOCK,
                )
            )
            if isinstance(contender := peer.at(target), Blocking)
        ]
        rates = blocking_rates(blocking, directory, effort)
        yield _alone("Redis, no contention, blocking, one thread", rates, peers.RAW, 0.9)
        rates = asyncio.run(asyncio_rates(_on_asyncio(target), directory, effort))
        yield _alone("Redis, no contention, asyncio, one task", rates, peers.RAW_ASYNCIO, 1.0)
        rates = asyncio.run(_rates_of_many(target, effort))
        title = "Redis, no contention, asyncio, 32 tasks on 32 keys"
        yield _alone(title, rates, peers.RAW_ASYNCIO, 4.0)


def hot8(effort: Effort) -> Iterator[Findings]:
    """One key, 8 waiters in 2 processes, with 0 ms and 1 ms of work."""
    yield from _hot(8, effort)


def hot64(effort: Effort) -> Iterator[Findings]:
    """One key, 64 waiters in 2 processes, with 0 ms and 1 ms of work."""
    yield from _hot(64, effort)


def hot256(effort: Effort) -> Iterator[Findings]:
    """One key, 256 waiters in 2 processes, beside 8 of them."""
    compared = (*_OURS, peers.PUSH)
    few: dict[Peer, list[Slice]] = {peer: [] for peer in compared}
    many: dict[Peer, list[Slice]] = {peer: [] for peer in compared}
    with Server() as server, crews_of(compared, Target(server.port)) as crews:
        for crew in crews.values():
            compete(crew, 256, 0.0, 0.1)  # opens everything
        for _ in range(effort.rounds):
            for peer, crew in crews.items():
                few[peer].append(compete(crew, 8, 0.0, effort.slice))
                many[peer].append(compete(crew, 256, 0.0, effort.slice))
    lines = []
    for peer in compared:
        rates = [[each.rate for each in found[peer]] for found in (few, many)]
        share = paired(rates[1], rates[0])
        goals = [Goal.at_least(0.9, share, f"of the rate of 8 ({share:.2f})")]
        figures = [f"{median(found):,.0f}" for found in rates]
        figures.append(f"{median(each.jain for each in many[peer]):.3f}")
        lines.append(Line(peer.name, figures, goals=goals if peer in _OURS else []))
    yield Findings(
        "Redis, one key, 256 waiters beside 8, in 2 processes, 0 ms of work",
        ["8 waiters, sections/s", "256 waiters, sections/s", "Jain of 256"],
        lines,
    )


def idle(effort: Effort) -> Iterator[Findings]:
    """What 200 waiters in 2 processes cost while the key is held elsewhere."""
    lines = []
    for peer in installed(_WAITING):
        with Server() as server:
            lines.append(_idle_line(peer, server, effort.idle))
    yield Findings(
        f"Redis, 200 idle waiters in 2 processes, for {effort.idle:g} s",
        ["connections a process", "commands/s a process", "CPU, share of one core"],
        lines,
    )


def takeover(effort: Effort) -> Iterator[Findings]:
    """How long after a holder is killed a waiter has its key, with a ttl of 2 s."""
    ttl = 2.0
    lines = []
    for peer in installed((*_OURS, peers.REDIS_PY)):
        with Server() as server:
            found = [
                _takeover(peer, Target(server.port, key=f"round-{number}", ttl=ttl))
                for number in range(min(effort.rounds, 3))
            ]
        goals = [Goal.at_most(ttl + 0.5, max(found), "s")] if peer in _OURS else []
        lines.append(Line(peer.name, [f"{median(found):.2f}", f"{max(found):.2f}"], goals=goals))
    yield Findings(f"Redis, takeover after kill -9, ttl {ttl:g} s", ["median s", "worst s"], lines)


CASES: dict[str, Case] = {
    "redis-alone": alone,
    "redis-hot8": hot8,
    "redis-hot64": hot64,
    "redis-hot256": hot256,
    "redis-idle": idle,
    "redis-takeover": takeover,
}


def _on_asyncio(target: Target) -> list[Asyncio]:
    compared = (
        peers.WEBLOCK_ASYNCIO,
        peers.RAW_ASYNCIO,
        peers.PUSH,
        peers.REDIS_PY_ASYNCIO,
        peers.REDIS_FIFO_LOCK,
        peers.POTTERY_ASYNCIO,
    )
    return [
        contender
        for peer in installed(compared)
        if isinstance(contender := peer.at(target), Asyncio)
    ]


async def _rates_of_many(target: Target, effort: Effort) -> Rates:
    """32 tasks of one loop, each with a key of its own."""
    by_key = [_on_asyncio(target.for_key(f"key-{number}")) for number in range(32)]
    rates: Rates = {}
    with machine.scratch() as directory:
        sections = [
            (alike[0], [contender.open(directory) for contender in alike])
            for alike in zip(*by_key, strict=True)
        ]
    for _ in range(effort.rounds):
        for contender, of_keys in sections:
            counters, counts = [0] * len(of_keys), [0] * len(of_keys)
            start = time.monotonic()

            async def visit(number: int, section: Any, end: float) -> None:
                while not counts[number] or time.monotonic() < end:  # noqa: B023 - awaited below
                    async with section():
                        counters[number] += 1  # noqa: B023
                    counts[number] += 1  # noqa: B023

            end = start + effort.slice
            await asyncio.gather(*(visit(*each, end) for each in enumerate(of_keys)))
            check(contender, sum(counters), sum(counts))
            rates.setdefault(contender, []).append(sum(counts) / (time.monotonic() - start))
    return rates


def _alone(title: str, rates: Rates, floor: Peer, bound: float) -> Findings:
    ours, *_ = rates
    lines = []
    for contender, found in rates.items():
        rate = median(found)
        ratio = None if contender is ours else paired(rates[ours], found)
        judged = contender.name == floor.name and ratio is not None
        goals = [Goal.at_least(bound, ratio)] if judged and ratio is not None else []
        lines.append(Line(contender.name, [f"{1e6 / rate:.1f}", f"{rate:,.0f}"], ratio, goals))
    return Findings(title, ["µs a section", "sections/s"], lines)


@contextmanager
def crews_of(compared: Sequence[Peer], target: Target) -> Iterator[dict[Peer, Crew]]:
    """A crew of each peer, all of which want that key, while the block runs."""
    with ExitStack() as stack:
        crews = {}
        for peer in compared:
            directory = stack.enter_context(machine.scratch())
            crews[peer] = Crew(peer.at(target), directory, PROCESSES)
            stack.enter_context(crews[peer].working())
        yield crews


@dataclass(frozen=True)
class _Contest:
    """What one peer did with the hot key, slice by slice, and the commands it took."""

    slices: list[Slice]
    commands: list[float]
    """Commands that the server ran for each section, those inside scripts among them."""

    @property
    def rates(self) -> list[float]:
        return [each.rate for each in self.slices]


def _hot(waiters: int, effort: Effort) -> Iterator[Findings]:
    compared = installed(_HOT)
    seconds = 2 * effort.slice  # So that each of 64 has its turn often enough to tell who is fair.
    with Server() as server, crews_of(compared, Target(server.port)) as crews:
        client = server.client()
        for crew in crews.values():
            compete(crew, waiters, 0.0, 0.1)  # opens everything
        for work in (0.0, 0.001):
            contests = {peer: _Contest([], []) for peer in compared}
            for _ in range(effort.rounds):
                for peer, crew in crews.items():
                    before = _commands(client)
                    found = compete(crew, waiters, work, seconds)
                    spent = _commands(client) - before
                    contests[peer].slices.append(found)
                    contests[peer].commands.append(spent / max(1.0, found.rate * seconds))
            yield _hot_findings(waiters, work, contests)


def script_time(server: Server) -> float:
    """Return the microseconds that a server has spent in scripts."""
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    return float(stats.get("cmdstat_evalsha", {}).get("usec", 0))


def _commands(client: redis.Redis) -> int:
    return sum(each["calls"] for each in client.info("commandstats").values())


def _hot_findings(waiters: int, work: float, contests: dict[Peer, _Contest]) -> Findings:
    floor = contests[peers.PUSH]
    lines = []
    for peer, contest in contests.items():
        rate = median(contest.rates)
        gaps = [1000 * gap for each in contest.slices for gap in each.gaps]
        figures = [
            f"{rate:,.0f}",
            f"{paired(contest.rates, floor.rates):.2f} x",
            f"{percentile(gaps, 0.5):.2f} / {percentile(gaps, 0.99):.2f}" if gaps else "none",
            f"{median(each.jain for each in contest.slices):.3f}",
            f"{max(each.longest_wait for each in contest.slices):.2f}",
            f"{median(contest.commands):.1f}",
        ]
        ours = peers.WEBLOCK_ASYNCIO if peer.kind is Asyncio else peers.WEBLOCK
        ratio = None if peer is ours else paired(contests[ours].rates, contest.rates)
        goals = _hot_goals(peer, waiters, work, contests) if peer in _OURS else []
        lines.append(Line(peer.name, figures, ratio, goals))
    title = (
        f"Redis, one key, {waiters} waiters in {PROCESSES} processes, {1000 * work:g} ms of work"
    )
    heads = [
        "sections/s",
        "÷ push floor",
        "hand-off p50 / p99 ms",
        "Jain",
        "longest wait s",
        "commands a section",
    ]
    return Findings(title, heads, lines)


def _hot_goals(peer: Peer, waiters: int, work: float, contests: dict[Peer, _Contest]) -> list[Goal]:
    """What an API of ours is held to."""
    mine = contests[peer]
    goals = []
    if waiters == 64:
        bounds: dict[Peer, float] = {peers.PUSH: 0.95}
        if not work:
            on_asyncio = {
                peers.PUSH: 0.7,
                peers.REDIS_PY_ASYNCIO: 1.6,
                peers.PYTHON_REDIS_LOCK: 2.5,
            }
            blocking = {peers.PUSH: 0.45, peers.PYTHON_REDIS_LOCK: 1.3}
            bounds = on_asyncio if peer is peers.WEBLOCK_ASYNCIO else blocking
        for other, bound in bounds.items():
            if other in contests:
                found = paired(mine.rates, contests[other].rates)
                goals.append(Goal.at_least(bound, found, f"x {other.name} ({found:.2f})"))
    fairness = median(each.jain for each in mine.slices)
    goals.append(Goal.at_least(0.99, fairness, "Jain"))
    waits = [each.longest_wait * each.rate / waiters for each in mine.slices if each.rate]
    goals.append(Goal.at_most(2, median(waits), f"turns of waiting ({median(waits):.1f})"))
    return goals


def _idle_line(peer: Peer, server: Server, seconds: float) -> Line:
    with machine.scratch() as directory, ThreadPoolExecutor(1) as pool:
        # Not every peer renews, and none is to lose its lease meanwhile.
        crew = Crew(peer.at(Target(server.port, ttl=60)), directory, 1 + PROCESSES)
        with crew.working():
            start = time.monotonic() + 0.2
            held = Job(1, start, start, work=3.0 + seconds, limit=1)
            waiting = Job(0, start + 0.5, start + 2.5 + seconds, settle=2.0, limit=1)
            jobs = [replace(waiting, waiters=share) for share in shares(200, PROCESSES)]
            running = pool.submit(crew.run, [held, *jobs])
            time.sleep(max(0.0, waiting.start + waiting.settle - time.monotonic()))
            names = [f"weblock-{process.pid}" for process in crew.processes[1:]]
            commands = _commands_of(_connections(server, names), server, seconds)
            connections = len(_connections(server, names)) / PROCESSES
            _, *outcomes = running.result()
    share = sum(outcome.cpu for outcome in outcomes) / seconds
    rate = commands / seconds / PROCESSES
    goals = [
        Goal.at_most(4, connections, "connections"),
        Goal.at_most(2, rate, "commands/s"),
        Goal.at_most(1, 100 * share, "%"),
    ]
    figures = [f"{connections:.1f}", f"{rate:,.1f}", f"{share:.2%}"]
    return Line(peer.name, figures, goals=goals if peer in _OURS else [])


def _connections(server: Server, names: Sequence[str]) -> set[str]:
    """The addresses from which these processes are connected."""
    with server.client() as client:
        return {each["addr"] for each in client.client_list() if each["name"] in names}


def _commands_of(addresses: set[str], server: Server, seconds: float) -> int:
    """How many commands come from there in so many seconds, without those inside scripts."""
    count, end = 0, time.monotonic() + seconds
    with server.client() as client, client.monitor() as monitor:
        while time.monotonic() < end:
            if monitor.connection.can_read(timeout=0.1):
                command = monitor.next_command()
                count += f"{command['client_address']}:{command['client_port']}" in addresses
    return count


def _takeover(peer: Peer, target: Target) -> float:
    """Seconds from the death of a holder to its successor's section."""
    with machine.scratch() as directory:
        holder = Crew(peer.at(target), directory, 1)
        waiter = Crew(peer.at(target), directory, 1)
        with holder.working(), waiter.working():
            now = time.monotonic()
            holder.start([Job(1, now, now, work=60, limit=1)])
            waiter.start([Job(1, now + 0.5, now + 0.5, limit=1)])
            time.sleep(1.5)
            killed = time.monotonic()
            holder.processes[0].kill()
            ((visit,),) = (visits for outcome in waiter.outcomes() for visits in outcome.visits)
    if visit.entered < killed:
        raise RuntimeError(f"{peer.name} let two sections overlap")
    return visit.entered - killed
