"""The table of goals: every case that has one, in one run, each contender of each case in turn.

A rate is a ratio to the floor of its case or to a peer, of slices of the same round. On a machine
that does other things too, the fastest slice of each is the least disturbed one: ``--quick`` takes
these.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.servers import Server
from tests.support.way import Way
from weblock import AsyncLocks, Locks

from . import contenders as embedded
from . import machine, web_apps
from . import redis_contenders as one
from . import redlock_contenders as quorum
from .contenders import Asyncio, Contender
from .measuring import Effort, compete, paired
from .redis_contenders import Peer, Target, installed
from .redis_peers import script_time
from .report import Findings, Goal, Line
from .statistics import median, median_low
from .web import UvicornServer
from .workers import Crew

HEADS: Final = ("floor", "best peer", "weblock", "server µs", "calls")

QUEUED: Final = 4
"""How many times as long a slice lasts in which many waiters want one key."""

_BLOCKING = (one.WEBLOCK, one.RAW, one.REDIS_PY, one.PYTHON_REDIS_LOCK, one.SHERLOCK)
_ASYNCIO = (one.WEBLOCK_ASYNCIO, one.RAW_ASYNCIO, one.PUSH, one.REDIS_PY_ASYNCIO)
_OWN_KEYS = (*_ASYNCIO, one.REDIS_LOCK_PY, one.COREDIS)
_HOT_BLOCKING = (one.WEBLOCK, one.PUSH, one.PYTHON_REDIS_LOCK)
_HOT_ASYNCIO = (one.WEBLOCK_ASYNCIO, one.PUSH, one.REDIS_PY_ASYNCIO, one.AIOREDLOCK)

_CALLS: Final = {"memory": 45, "redis": 70}


@dataclass
class Racer:
    """One contender of a case, and its rate in each round."""

    crew: Crew
    rates: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the contender is called."""
        return self.crew.contender.name


@dataclass
class Race:
    """A case: ours first, then what it is divided by, then peers."""

    title: str
    racers: list[Racer]
    goal: float
    engine: str = ""
    waiters: int = 1
    work: float = 0.0
    one_key: bool = True
    """Whether all want the same key, and not each its own."""
    server: Server | None = None
    """The server whose time is measured."""
    took: list[float] = field(default_factory=list)
    """Microseconds that our scripts took there for each section, round by round."""

    def round(self, seconds: float) -> None:
        """Give each racer a slice, a longer one where all must have queued up before it counts."""
        if self.one_key and self.waiters > 1:
            seconds *= QUEUED
        for number, racer in enumerate(self.racers):
            before = self._time_of_scripts()
            found = compete(racer.crew, self.waiters, self.work, seconds, one_key=self.one_key)
            racer.rates.append(found.rate)
            if number == 0:
                spent = self._time_of_scripts() - before
                self.took.append(spent / max(1.0, found.rate * seconds))

    def line(self, effort: Effort, calls: str) -> Line:
        """Return what the slices come to."""
        ours, base, *_ = self.racers
        ratios = {racer.name: ratio(effort, racer.rates, base.rates) for racer in self.racers}
        floors = [name for name in ratios if name.startswith("floor") and name != base.name]
        peers = [name for name in ratios if name != ours.name and not name.startswith("floor")]
        best = max(peers, key=ratios.__getitem__, default=None)
        figures = [
            f"{ratios[floors[0]]:.2f}" if floors else "",
            f"{ratios[best]:.2f} {best}" if best else "",
            f"{ratios[ours.name]:.2f}",
            f"{self.script_time(effort):.1f}" if self.server else "",
            calls,
        ]
        title = f"{self.title} ÷ {base.name.removeprefix('floor: ')}"
        return Line(title, figures, goals=[Goal.at_least(self.goal, ratios[ours.name], "")])

    def script_time(self, effort: Effort) -> float:
        """Return the microseconds that our scripts took for a section."""
        if not effort.fastest:
            return median(self.took)
        rates = self.racers[0].rates
        return self.took[rates.index(max(rates))]

    def _time_of_scripts(self) -> float:
        return 0.0 if self.server is None else script_time(self.server)


def ratio(effort: Effort, ours: list[float], theirs: list[float]) -> float:
    """Return our rate over theirs: of the fastest slices, or the median of the rounds."""
    if effort.fastest:
        return max(ours) / max(1e-6, *theirs)
    return paired(ours, theirs)


class Entries:
    """The processes of all contenders of one run, each started once."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._crews: dict[tuple[Contender, int], Crew] = {}

    def racers(self, contenders: Sequence[Contender], processes: int) -> list[Racer]:
        """Return these contenders, ready to run."""
        return [Racer(self._crew(contender, processes)) for contender in contenders]

    def _crew(self, contender: Contender, processes: int) -> Crew:
        if (contender, processes) not in self._crews:
            directory = self._stack.enter_context(machine.scratch())
            crew = Crew(contender, directory, processes)
            self._stack.enter_context(crew.working())
            self._crews[contender, processes] = crew
        return self._crews[contender, processes]


def table(effort: Effort) -> Findings:
    """Measure every case that has a goal, in one interleaved run."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(3)]
        entries = Entries(stack)
        races = [
            *_on_redis(entries, servers[0]),
            *_on_quorum(entries, servers),
            *_on_files(entries),
        ]
        sites = {app.name: stack.enter_context(UvicornServer(app)) for app in web_apps.APPS}
        for race in races:  # Opens everything.
            race.round(0.05)
            race.took.clear()
            for racer in race.racers:
                racer.rates.clear()
        for site in sites.values():
            site.measure(0.05)
        for _ in range(effort.rounds):
            for race in races:
                race.round(effort.slice)
            for site in sites.values():
                site.slices.append(site.measure(effort.slice))
        calls = _calls(servers[0].port)
    lines = [race.line(effort, calls.get(_api_of(race), "")) for race in races]
    took = races[0].script_time(effort)
    lines.append(_figure("server's time for one section, µs", took, 8))
    lines += [_web_line(effort, sites, site) for site in sites.values() if site.app.goal]
    for (engine, api), found in calls.items():
        if bound := _CALLS.get(engine):
            title = f"calls of an acquire and a release, {engine}://, {api}"
            lines.append(_figure(title, float(found), bound))
    return Findings("Goals", HEADS, lines, compares=False)


def _on_redis(entries: Entries, server: Server) -> Iterator[Race]:
    target = Target(server.port)
    race = partial(Race, engine="redis", server=server)

    def racers(peers: Sequence[Peer]) -> list[Racer]:
        return entries.racers([peer.at(target) for peer in installed(peers)], 2)

    yield race("no contention, blocking", racers(_BLOCKING), 1.0)
    yield race("no contention, asyncio, one task", racers(_ASYNCIO), 1.2)
    own = [_with_own_keys(peer, target) for peer in installed(_OWN_KEYS)]
    title = "asyncio, 32 tasks on 32 keys"
    yield race(title, entries.racers(own, 1), 4.0, waiters=32, one_key=False)
    for work, on_asyncio, blocking in ((0.0, 0.75, 0.55), (0.001, 0.97, 0.95)):
        title = f"hot key, 64 waiters, {1000 * work:g} ms"
        hot = partial(race, waiters=64, work=work)
        yield hot(f"{title}, asyncio", racers(_HOT_ASYNCIO), on_asyncio)
        yield hot(f"{title}, blocking", racers(_HOT_BLOCKING), blocking)


def _on_quorum(entries: Entries, servers: Sequence[Server]) -> Iterator[Race]:
    ports = [server.port for server in servers]
    blocking = (quorum.WEBLOCK, quorum.REDLOCK_PY, quorum.REDLOCK_NG)
    contenders = [peer.on(ports) for peer in blocking if peer.installed()]
    if len(contenders) > 1:
        yield Race("Redlock, 3 servers, blocking", entries.racers(contenders, 1), 1.3)
    on_asyncio = (quorum.WEBLOCK_ASYNCIO, quorum.POTTERY_ASYNCIO, quorum.REDLOCK_NG_ASYNCIO)
    contenders = [peer.on_own_keys(ports) for peer in on_asyncio if peer.installed()]
    if len(contenders) > 1:
        title = "Redlock, 3 servers, 32 tasks on 32 keys"
        yield Race(title, entries.racers(contenders, 1), 3.0, waiters=32, one_key=False)


def _on_files(entries: Entries) -> Iterator[Race]:
    blocking = (embedded.EMBEDDED, embedded.FILELOCK)
    on_asyncio = (embedded.EMBEDDED_ASYNCIO, embedded.FILELOCK_ASYNCIO)
    for waiters, goal in ((8, 1.0), (64, 0.6)):
        title = f"hot key, file://, {waiters} waiters, blocking"
        yield Race(title, entries.racers(blocking, 4), goal, engine="file", waiters=waiters)
    title = "no contention, file://"
    yield Race(f"{title}, blocking", entries.racers(blocking, 1), 2.0, engine="file")
    yield Race(f"{title}, asyncio", entries.racers(on_asyncio, 1), 8.0, engine="file")


def _with_own_keys(peer: Peer, target: Target) -> Contender:
    """Return a contender each of whose waiters has a key of its own."""
    return peer.kind(peer.name, partial(_open_own, peer, target))


_numbers = itertools.count()


def _open_own(peer: Peer, target: Target, directory: Path) -> Any:
    return peer.open(target.for_key(f"{os.getpid()}-{next(_numbers)}"), directory)


def _api_of(race: Race) -> tuple[str, str]:
    ours = race.racers[0].crew.contender
    return race.engine, "asyncio" if isinstance(ours, Asyncio) else "blocking"


def _figure(title: str, found: float, bound: float) -> Line:
    return Line(title, ["", "", f"{found:.4g}", "", ""], goals=[Goal.at_most(bound, found)])


def _web_line(effort: Effort, sites: dict[str, UvicornServer], site: UvicornServer) -> Line:
    app = site.app
    assert app.bare
    assert app.goal
    share = ratio(effort, site.rates_on_cpu(), sites[app.bare].rates_on_cpu())
    title = f"{app.name}, requests a CPU second ÷ bare"
    return Line(title, ["", "", f"{share:.2f}", "", ""], goals=[Goal.at_least(app.goal, share, "")])


def _calls(port: int) -> dict[tuple[str, str], str]:
    """Count the calls of functions of ours in an acquire and a release, by engine and API."""
    found = {}
    with machine.scratch() as directory:
        urls = {
            "memory": "memory://calls",
            "file": f"file://{directory}/locks?allow_container=true",
            "redis": f"redis://127.0.0.1:{port}/0?recovery=off",
        }
        for engine, url in urls.items():
            found[engine, "blocking"] = str(_blocking_calls(url))
            found[engine, "asyncio"] = str(asyncio.run(_asyncio_calls(url)))
    return found


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
