"""A quorum of three Redis servers beside one, and beside the Redlock libraries of PyPI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.servers import Server

from . import machine
from . import redlock_contenders as peers
from .contenders import Asyncio
from .measuring import Case, Effort, Slice, compete, paired
from .redlock_contenders import Peer, installed
from .report import Findings, Goal, Line
from .statistics import median, percentile
from .workers import Crew

SERVERS = 3

Contest = dict[Peer, list[Slice]]


def alone(effort: Effort) -> Iterator[Findings]:
    """A quorum, and nobody else wants the key."""
    with _servers() as servers:
        found = _contest(installed(), servers, effort, processes=1, waiters=1)
    lines = []
    for peer, slices in found.items():
        rate = median(each.rate for each in slices)
        ratio = _ratio(peer, found)
        goal = _ALONE.get(peer)
        goals = [Goal.at_least(goal, ratio)] if goal and ratio else []
        lines.append(Line(peer.name, [f"{1e6 / rate:.0f}", f"{rate:,.0f}"], ratio, goals))
    yield Findings("Three servers, no contention", ["µs a section", "sections/s"], lines)


_ALONE = {
    peers.SINGLE_ASYNCIO: 0.7,
    peers.POTTERY: 3.0,
    peers.POTTERY_ASYNCIO: 3.0,
    peers.REDLOCK_NG: 1.5,
    peers.REDLOCK_NG_ASYNCIO: 1.5,
}
"""By how much we want to be faster than these."""


def hot64(effort: Effort) -> Iterator[Findings]:
    """A quorum, one key, and 64 waiters in 4 processes, with 1 ms of work."""
    longer = Effort(effort.rounds, 4 * effort.slice, effort.idle)
    with _servers() as servers:
        found = _contest(
            installed(waiters=64), servers, longer, processes=4, waiters=64, work=0.001
        )
    rates = {peer: median(each.rate for each in slices) for peer, slices in found.items()}
    fastest = max((peer for peer in found if peer not in _OURS), key=rates.__getitem__)
    lines = []
    for peer, slices in found.items():
        gaps = [1000 * gap for each in slices for gap in each.gaps]
        fairness, ratio = median(each.jain for each in slices), _ratio(peer, found)
        figures = [
            f"{rates[peer]:,.0f}",
            f"{percentile(gaps, 0.5):.2f} / {percentile(gaps, 0.99):.2f}" if gaps else "none",
            f"{fairness:.3f}",
            f"{max(each.longest_wait for each in slices):.2f}",
        ]
        goals = [Goal.at_least(0.9, fairness, "Jain")] if peer in _QUORUMS else []
        if peer is fastest and ratio:
            goals = [Goal.at_least(1.3, ratio)]
        lines.append(Line(peer.name, figures, ratio, goals))
    heads = ["sections/s", "hand-off p50 / p99 ms", "Jain", "longest wait s"]
    title = "Three servers, one key, 64 waiters in 4 processes, 1 ms of work"
    yield Findings(title, heads, lines)


_QUORUMS = (peers.WEBLOCK, peers.WEBLOCK_ASYNCIO)
_OURS = (*_QUORUMS, peers.SINGLE, peers.SINGLE_ASYNCIO)


def down(effort: Effort) -> Iterator[Findings]:
    """A quorum with one of its three servers down, beside one that is whole."""
    compared = [peers.WEBLOCK, peers.WEBLOCK_ASYNCIO]
    with _servers() as whole, _servers() as maimed:
        maimed[-1].kill()
        before = _contest(compared, whole, effort, processes=1, waiters=1)
        after = _contest(compared, maimed, effort, processes=1, waiters=1)
    lines = []
    for peer in compared:
        rates = [[each.rate for each in found[peer]] for found in (before, after)]
        share = paired(rates[1], rates[0])
        figures = [f"{median(rate):,.0f}" for rate in rates]
        lines.append(Line(peer.name, [*figures, f"{share:.2f} x"]))
    heads = ["3 of 3 up, sections/s", "2 of 3 up, sections/s", "2 ÷ 3"]
    yield Findings("Three servers, one down, no contention", heads, lines)


CASES: dict[str, Case] = {"redlock-alone": alone, "redlock-hot64": hot64, "redlock-down": down}


@contextmanager
def _servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Server()) for _ in range(SERVERS)]


def _contest(
    compared: Sequence[Peer],
    servers: Sequence[Server],
    effort: Effort,
    *,
    processes: int,
    waiters: int,
    work: float = 0.0,
) -> Contest:
    """Each in turn, round by round."""
    ports = [server.port for server in servers]
    found: Contest = {peer: [] for peer in compared}
    with ExitStack() as stack:
        crews = {}
        for peer in compared:
            directory = stack.enter_context(machine.scratch())
            crews[peer] = Crew(peer.on(ports), directory, processes)
            stack.enter_context(crews[peer].working())
            compete(crews[peer], waiters, 0.0, 0.1)  # opens everything
        for _ in range(effort.rounds):
            for peer, crew in crews.items():
                found[peer].append(compete(crew, waiters, work, effort.slice))
    return found


def _ratio(peer: Peer, found: Contest) -> float | None:
    """Our rate over this one's, of the API of its kind."""
    ours = peers.WEBLOCK_ASYNCIO if peer.kind is Asyncio else peers.WEBLOCK
    if peer is ours:
        return None
    return paired([each.rate for each in found[ours]], [each.rate for each in found[peer]])
