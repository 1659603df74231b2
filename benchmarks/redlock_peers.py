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
from .report import Findings, Line
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
        figures = [f"{1e6 / rate:.0f}", f"{rate:,.0f}"]
        lines.append(Line(peer.name, figures, _ratio(peer, found)))
    yield Findings("Three servers, no contention", ["µs a section", "sections/s"], lines)


def hot64(effort: Effort) -> Iterator[Findings]:
    """A quorum, one key, and 64 waiters in 4 processes."""
    longer = Effort(effort.rounds, 4 * effort.slice, effort.idle)
    with _servers() as servers:
        found = _contest(installed(), servers, longer, processes=4, waiters=64)
    lines = []
    for peer, slices in found.items():
        gaps = [1000 * gap for each in slices for gap in each.gaps]
        figures = [
            f"{median(each.rate for each in slices):,.0f}",
            f"{percentile(gaps, 0.5):.2f} / {percentile(gaps, 0.99):.2f}" if gaps else "none",
            f"{median(each.jain for each in slices):.3f}",
            f"{max(each.longest_wait for each in slices):.2f}",
        ]
        lines.append(Line(peer.name, figures, _ratio(peer, found)))
    heads = ["sections/s", "hand-off p50 / p99 ms", "Jain", "longest wait s"]
    yield Findings("Three servers, one key, 64 waiters in 4 processes", heads, lines)


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
) -> Contest:
    """Each in turn, round by round."""
    ports = [server.port for server in servers]
    found: Contest = {peer: [] for peer in compared}
    with machine.awake(), ExitStack() as stack:
        crews = {}
        for peer in compared:
            directory = stack.enter_context(machine.scratch())
            crews[peer] = Crew(peer.on(ports), directory, processes)
            stack.enter_context(crews[peer].working())
            compete(crews[peer], waiters, 0.0, 0.1)  # opens everything
        for _ in range(effort.rounds):
            for peer, crew in crews.items():
                found[peer].append(compete(crew, waiters, 0.0, effort.slice))
    return found


def _ratio(peer: Peer, found: Contest) -> float | None:
    """Our rate over this one's, of the face of its kind."""
    ours = peers.WEBLOCK_ASYNCIO if peer.kind is Asyncio else peers.WEBLOCK
    if peer is ours:
        return None
    return paired([each.rate for each in found[ours]], [each.rate for each in found[peer]])
