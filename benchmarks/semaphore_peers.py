"""The Redis engine with a limit beside the semaphores of PyPI, and beside the floor."""

from __future__ import annotations

from collections.abc import Iterator

from tests.servers import Server

from . import semaphore_contenders as peers
from .contenders import Asyncio
from .measuring import Case, Effort, Slice, compete, paired
from .redis_contenders import Peer, Target, installed
from .redis_peers import PROCESSES, crews_of
from .report import Findings, Goal, Line
from .semaphore_contenders import LIMIT
from .statistics import median

WAITERS = 16
WORK = 0.001

Contest = dict[Peer, list[Slice]]


def limited(effort: Effort) -> Iterator[Findings]:
    """Three at once: one key, limit=3, 16 waiters in 2 processes, 1 ms of work."""
    found: Contest = {peer: [] for peer in installed(peers.PEERS)}
    with Server() as server, crews_of(tuple(found), Target(server.port)) as crews:
        for crew in crews.values():
            compete(crew, WAITERS, WORK, 0.1, at_once=LIMIT)  # opens everything
        for _ in range(effort.rounds):
            for peer, crew in crews.items():
                found[peer].append(compete(crew, WAITERS, WORK, 2 * effort.slice, at_once=LIMIT))
    yield _findings(found)


CASES: dict[str, Case] = {"redis-limit": limited}


def _findings(found: Contest) -> Findings:
    rates = {peer: [each.rate for each in slices] for peer, slices in found.items()}
    lines = []
    for peer, slices in found.items():
        fairness = median(each.jain for each in slices)
        figures = [
            f"{median(rates[peer]):,.0f}",
            f"{paired(rates[peer], rates[peers.PUSH]):.2f} x",
            f"{fairness:.3f}",
            f"{max(each.longest_wait for each in slices):.2f}",
        ]
        ours = peers.WEBLOCK_ASYNCIO if peer.kind is Asyncio else peers.WEBLOCK
        ratio = None if peer is ours else paired(rates[ours], rates[peer])
        is_ours = peer in (peers.WEBLOCK, peers.WEBLOCK_ASYNCIO)
        goals = [Goal.at_least(0.99, fairness, "Jain")] if is_ours else []
        lines.append(Line(peer.name, figures, ratio, goals))
    title = (
        f"Redis, one key, limit={LIMIT}, {WAITERS} waiters in {PROCESSES} processes,"
        f" {1000 * WORK:g} ms of work"
    )
    return Findings(title, ["sections/s", "÷ push floor", "Jain", "longest wait s"], lines)
