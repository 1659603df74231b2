"""A hot key on a Redis server that is some way off: each hand-over then waits for the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from tests.servers import Server

from . import machine
from . import redis_contenders as peers
from .distance import distant, round_trip
from .measuring import Case, Effort, Slice, compete, paired
from .redis_contenders import Peer, Target, installed
from .report import Findings, Line
from .statistics import median, percentile
from .workers import Crew

ROUND_TRIPS: Final = (0.0002, 0.0005, 0.001)
"""Seconds that the network adds to a round trip."""

WAITERS: Final = 16
PROCESSES: Final = 2

COMPARED: Final = (
    peers.WEBLOCK,
    peers.WEBLOCK_ASYNCIO,
    peers.PUSH,
    peers.REDIS_PY,
    peers.REDIS_PY_ASYNCIO,
    peers.PYTHON_REDIS_LOCK,
    peers.REDIS_FIFO_LOCK,
)


def far(effort: Effort) -> Iterator[Findings]:
    """One key, 16 waiters in 2 processes, on a network of 0.2, 0.5 and 1 ms."""
    for added in ROUND_TRIPS:
        yield _at(added, effort)


CASES: dict[str, Case] = {"redis-far": far}


def _at(added: float, effort: Effort) -> Findings:
    compared = installed(COMPARED)
    slices: dict[Peer, list[Slice]] = {peer: [] for peer in compared}
    with Server() as server, ExitStack() as stack:
        crews = {}
        for peer in compared:
            # One for each: the others' connections are none of its business.
            port = stack.enter_context(distant(server.port, added / 2))
            directory = stack.enter_context(machine.scratch())
            crews[peer] = Crew(peer.at(Target(port)), directory, PROCESSES)
            stack.enter_context(crews[peer].working())
        for crew in crews.values():
            compete(crew, WAITERS, 0.0, 0.1)  # opens everything
        trip = round_trip(stack.enter_context(distant(server.port, added / 2)))
        for _ in range(effort.rounds):
            for peer, crew in crews.items():
                slices[peer].append(compete(crew, WAITERS, 0.0, 2 * effort.slice))
    return _findings(added, trip, slices)


def _findings(added: float, trip: float, slices: dict[Peer, list[Slice]]) -> Findings:
    rates = {peer: [each.rate for each in found] for peer, found in slices.items()}
    lines = []
    for peer, found in slices.items():
        gaps = [1000 * gap for each in found for gap in each.gaps]
        figures = [
            f"{median(rates[peer]):,.0f}",
            f"{paired(rates[peer], rates[peers.PUSH]):.2f} x",
            f"{percentile(gaps, 0.5):.2f} / {percentile(gaps, 0.99):.2f}" if gaps else "none",
            f"{median(each.jain for each in found):.3f}",
            f"{max(each.longest_wait for each in found):.2f}",
        ]
        ours = peers.WEBLOCK_ASYNCIO if peer.kind is peers.PUSH.kind else peers.WEBLOCK
        lines.append(
            Line(peer.name, figures, None if peer is ours else paired(rates[ours], rates[peer]))
        )
    title = (
        f"Redis, one key, {WAITERS} waiters in {PROCESSES} processes, {1000 * added:g} ms of network"
        f" (a PING takes {1000 * trip:.2f} ms)"
    )
    heads = ["sections/s", "÷ push floor", "hand-off p50 / p99 ms", "Jain", "longest wait s"]
    return Findings(title, heads, lines)
