"""The tables of goals: every case that has one, in one run, each contender of each case in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from statistics import median_low
from typing import Final

from tests.servers import Server
from tests.support.way import Way
from weblock import AsyncLocks, Locks

from . import web_apps
from .measuring import Effort
from .races import HEADS, TABLES, run
from .report import Findings, Goal, Line
from .web import UvicornServer

LOOPBACK: Final = ("redis", "redlock", "file", "postgresql")

_CALLS: Final = {("memory", "blocking"): 30, ("redis", "blocking"): 50, ("redis", "asyncio"): 58}
"""The most calls of functions of ours for an acquire and a release."""

_SERVER: Final = 3.2
"""How many times as long a section may take the server as the two commands of the floor."""


def tables(effort: Effort) -> Iterator[Findings]:
    """Measure every case that has a goal: behind a network, on loopback, in web applications, calls."""
    network = chain(*(run(effort, [each]) for each in TABLES["redis-far"]))
    lines = [race.line(effort) for race in network]
    yield Findings("Behind a network", HEADS, lines, compares=False)
    races = run(effort, [*chain(*(TABLES[name] for name in LOOPBACK))])
    lines = [race.line(effort) for race in races]
    yield Findings("On loopback", HEADS, lines, compares=False)
    with ExitStack() as stack:
        sites = {app.name: stack.enter_context(UvicornServer(app)) for app in web_apps.APPS}
        for site in sites.values():
            site.measure(0.05)  # Opens everything.
        for _ in range(effort.rounds):
            for site in sites.values():
                site.slices.append(site.measure(effort.slice))
    figures = [_web_line(effort, sites, site) for site in sites.values() if site.app.goal]
    with Server() as server:
        for (engine, api), bound in _CALLS.items():
            url = f"redis://127.0.0.1:{server.port}/0?recovery=off"
            url = url if engine == "redis" else "memory://calls"
            found = asyncio.run(_asyncio_calls(url)) if api == "asyncio" else _blocking_calls(url)
            title = f"calls of an acquire and a release, {engine}://, {api}"
            figures.append(Line(title, [f"{found}"], goals=[Goal.at_most(bound, found)]))
    title = "In web applications: requests a CPU second; calls of weblock's functions"
    yield Findings(title, ["weblock"], figures, compares=False)


def _web_line(effort: Effort, sites: dict[str, UvicornServer], site: UvicornServer) -> Line:
    app = site.app
    assert app.bare
    assert app.goal
    share = effort.ratio(site.rates_on_cpu(), sites[app.bare].rates_on_cpu())
    return Line(f"{app.name} ÷ bare", [f"{share:.2f}"], goals=[Goal.at_least(app.goal, share, "")])


def _blocking_calls(url: str) -> int:
    ways = [Way() for _ in range(9)]
    with Locks.from_url(url) as locks:
        for way in ways:
            with way.noted():
                locks.acquire("a").release()
    return median_low(way.calls for way in ways)


async def _asyncio_calls(url: str) -> int:
    ways = [Way() for _ in range(9)]
    async with AsyncLocks.from_url(url) as locks:
        for way in ways:
            with way.noted():
                await (await locks.acquire("a")).release()
    return median_low(way.calls for way in ways)
