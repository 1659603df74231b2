"""The cases in which locks compete, and their tables: behind a network first, then on loopback.

Each case is a ``Race``: weblock first, then what its rate is divided by, if that is not the best peer, then
peers. The races of a table are run in turn, slice by slice, each contender with processes of its own.
On a machine that does other things too, the fastest slice of each is the least disturbed one:
``--quick`` takes these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.servers import Postgres, Server

from . import contenders as peers
from . import machine
from .contenders import Contender, Peer, Target
from .distance import distant
from .measuring import Case, Effort, Slice, compete, shares
from .report import Findings, at_least
from .workers import Crew, Job

HEADS: Final = ("floor", "best peer", "weblock", "÷ before", "Jain", "server µs", "goal")

ROUND_TRIPS: Final = (0.0002, 0.0005, 0.001)
"""Seconds that the network adds to a round trip."""

QUEUED: Final = 4
"""How many times as long a slice lasts in which many waiters want one key."""

SLOW_DISK: Final = 0.002
"""Seconds that a flush of PostgreSQL's log takes longer than the disk does."""


@dataclass
class Racer:
    """One contender of a race, and what it did in each round."""

    crew: Crew
    slices: list[Slice] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the contender is called."""
        return self.crew.contender.name

    @property
    def is_floor(self) -> bool:
        """Whether it is no lock to be used, but what bare code needs for the same job."""
        return self.name.startswith("floor")

    @property
    def is_earlier(self) -> bool:
        """Whether it is weblock as it was at an earlier commit."""
        return self.crew.contender.sources is not None

    @property
    def rates(self) -> list[float]:
        """Sections a second, round by round."""
        return [each.rate for each in self.slices]

    @property
    def jain(self) -> float:
        """Jain's index of fairness."""
        return median(each.jain for each in self.slices)


@dataclass
class Race:
    """A case: ours first, then what it is divided by, then peers."""

    title: str
    racers: list[Racer]
    goal: float
    target: Target
    waiters: int = 1
    work: float = 0.0
    server: Server | None = None
    """The server whose time is measured."""
    against_best: bool = False
    """Whether our rate is divided by that of the best peer."""
    took: list[float] = field(default_factory=list)
    """Microseconds that our scripts took on the server for each section, round by round."""

    def round(self, seconds: float) -> None:
        """Give each racer a slice, a longer one where all must have queued up before it counts."""
        if not self.target.own_keys and self.waiters > 1:
            seconds *= QUEUED
        for number, racer in enumerate(self.racers):
            before = script_time(self.server) if self.server else 0.0
            one_key = not self.target.own_keys
            found = compete(racer.crew, self.waiters, self.work, seconds, one_key=one_key)
            racer.slices.append(found)
            if number == 0 and self.server:
                spent = script_time(self.server) - before
                self.took.append(spent / max(1.0, found.rate * seconds))

    def row(self, effort: Effort) -> list[str]:
        """Return what the slices come to: a row below ``HEADS``."""
        ours, base = self.racers[:2]
        before = [each for each in self.racers if each.is_earlier]
        others = [each for each in self.racers[1:] if not (each.is_floor or each.is_earlier)]
        best = max(others, key=lambda each: effort.ratio(each.rates, base.rates), default=base)
        base = best if self.against_best else base
        floors = [each for each in self.racers if each.is_floor and each is not base]
        share = effort.ratio(ours.rates, base.rates)
        fastest = ours.rates.index(max(ours.rates))
        took = self.took and (self.took[fastest] if effort.fastest else median(self.took))
        return [
            f"{self.title} ÷ {base.name.removeprefix('floor: ')}",
            *([f"{effort.ratio(each.rates, base.rates):.2f}" for each in floors[:1]] or [""]),
            "" if best is base else f"{effort.ratio(best.rates, base.rates):.2f} {best.name}",
            f"{share:.2f}",
            *([f"{effort.ratio(ours.rates, each.rates):.2f}" for each in before] or [""]),
            f"{ours.jain:.3f}" if self.waiters > 1 and not self.target.own_keys else "",
            f"{took:.1f}" if took else "",
            at_least(self.goal, share),
        ]

    def details(self) -> Findings:
        """Return what each contender did."""
        rows = [
            [
                racer.name,
                f"{median(racer.rates):,.0f}",
                f"{racer.jain:.3f}",
                f"{max(each.longest_wait for each in racer.slices):.2f}",
                f"{Effort(1, 0).ratio(self.racers[0].rates, racer.rates):.2f}",
            ]
            for racer in self.racers
        ]
        heads = ["sections/s", "Jain", "longest wait s", "weblock ÷ this"]
        return Findings(self.title, heads, rows)


class Course:
    """What the races of one run have in common: servers, and processes that are started once."""

    def __init__(self, stack: ExitStack, before: Path | None = None) -> None:
        self._stack = stack
        self._before = before
        self._crews: dict[tuple[Peer, Target, int], Crew] = {}

    @cached_property
    def servers(self) -> list[Server]:
        """Three Redis servers, of which the first is also used alone."""
        return [self._stack.enter_context(Server()) for _ in range(3)]

    @property
    def redis(self) -> Target:
        """One server."""
        return Target((self.servers[0].port,))

    @property
    def quorum(self) -> Target:
        """All three."""
        return Target(tuple(server.port for server in self.servers))

    @cached_property
    def postgres(self) -> Target:
        """A PostgreSQL server that waits for no disk."""
        return Target((self._stack.enter_context(Postgres()).port,), engine="postgresql")

    @cached_property
    def slow_postgres(self) -> Target:
        """One each of whose flushes takes a while, as on a disk of a cloud."""
        wait = f"commit_delay={round(1e6 * SLOW_DISK)}"
        server = Postgres("fsync=on", "synchronous_commit=on", wait, "commit_siblings=0")
        return Target((self._stack.enter_context(server).port,), engine="postgresql")

    def race(
        self,
        title: str,
        compared: Sequence[Peer],
        goal: float,
        target: Target,
        *,
        processes: int = 1,
        delay: float = 0.0,
        **options: Any,
    ) -> Race:
        """Return a race of those that are installed, all of them ``delay`` away in each direction."""
        racing = [peer for peer in compared if peer.installed]
        if self._before:
            racing.append(replace(compared[0], name="weblock, before", sources=self._before))
        racers = [Racer(self._crew(peer, target, processes, delay)) for peer in racing]
        return Race(title, racers, goal, target, **options)

    def _crew(self, peer: Peer, target: Target, processes: int, delay: float) -> Crew:
        if delay:
            # Each has its own way to the server: the others' connections are none of its business.
            ways = [self._stack.enter_context(distant(port, delay)) for port in target.ports]
            target = replace(target, ports=tuple(ways))
        key = peer, target, processes
        if key not in self._crews:
            directory = self._stack.enter_context(machine.scratch())
            crew = Crew(peer.at(target), directory, processes)
            self._stack.enter_context(crew.working())
            self._crews[key] = crew
        return self._crews[key]


Races = Callable[[Course], Iterator[Race]]


def far(added: float, course: Course) -> Iterator[Race]:
    """Yield the races on servers that are some way off."""
    away = f"{1000 * added:g} ms away"
    race = partial(course.race, delay=added / 2, against_best=True)
    own = replace(course.redis, own_keys=True)
    yield race(f"{away}, one caller, blocking", _BLOCKING, 1.0, course.redis)
    yield race(f"{away}, one caller, asyncio", _ASYNCIO, 1.0, course.redis)
    hot: dict[str, Any] = {"waiters": 16, "processes": 2}
    yield race(f"{away}, one key, 16 waiters, blocking", _FAR_BLOCKING, 1.5, course.redis, **hot)
    yield race(f"{away}, one key, 16 waiters, asyncio", _FAR_ASYNCIO, 1.5, course.redis, **hot)
    yield race(f"{away}, 32 tasks on 32 keys", _ASYNCIO, 3.0, own, waiters=32)
    yield race(f"{away}, Redlock, 3 servers, blocking", _REDLOCK, 2.0, course.quorum)
    many = replace(course.quorum, own_keys=True)
    yield race(f"{away}, Redlock, 32 tasks on 32 keys", _REDLOCK_ASYNCIO, 2.5, many, waiters=32)
    yield race(f"{away}, PostgreSQL, one caller", _POSTGRESQL, 0.8, course.postgres)


def on_redis(course: Course) -> Iterator[Race]:
    """Yield the races on one Redis server of loopback."""
    target, server = course.redis, course.servers[0]
    race = course.race
    threads = (peers.WEBLOCK, peers.RAW, *_BLOCKING[1:])
    yield race("no contention, blocking", threads, 1.0, target, server=server)
    tasks = (peers.WEBLOCK_ASYNCIO, peers.RAW_ASYNCIO, peers.PUSH, *_ASYNCIO[1:])
    yield race("no contention, asyncio, one task", tasks, 1.1, target, server=server)
    own = replace(target, own_keys=True)
    many: dict[str, Any] = {"waiters": 32, "server": server}
    yield race("asyncio, 32 tasks on 32 keys", tasks, 3.2, own, **many)
    for work, on_asyncio, blocking in ((0.0, 0.6, 0.5), (0.001, 0.95, 0.95)):
        title = f"hot key, 64 waiters, {1000 * work:g} ms"
        hot: dict[str, Any] = {"processes": 2, "waiters": 64, "work": work, "server": server}
        yield race(f"{title}, asyncio", _HOT_ASYNCIO, on_asyncio, target, **hot)
        yield race(f"{title}, blocking", _HOT_BLOCKING, blocking, target, **hot)


def on_quorum(course: Course) -> Iterator[Race]:
    """Yield the races on three Redis servers of loopback."""
    yield course.race("Redlock, 3 servers, blocking", _REDLOCK, 1.05, course.quorum)
    own = replace(course.quorum, own_keys=True)
    title = "Redlock, 3 servers, 32 tasks on 32 keys"
    yield course.race(title, _REDLOCK_ASYNCIO, 2.5, own, waiters=32)
    hot: dict[str, Any] = {"processes": 4, "waiters": 64, "work": 0.001}
    title = "Redlock, 3 servers, hot key, 64 waiters, 1 ms"
    yield course.race(title, _REDLOCK, 1.3, course.quorum, **hot)


def on_files(course: Course) -> Iterator[Race]:
    """Yield the races of the embedded engine."""
    file = Target(engine="file")
    blocking = (peers.WEBLOCK, peers.FILELOCK, peers.SQLITE)
    on_asyncio = (peers.WEBLOCK_ASYNCIO, peers.FILELOCK_ASYNCIO)
    yield course.race("no contention, file://, blocking", blocking, 1.8, file)
    yield course.race("no contention, file://, asyncio", on_asyncio, 8.0, file)
    for waiters, goal in ((8, 0.5), (64, 0.4)):
        title = f"hot key, file://, {waiters} waiters, blocking"
        yield course.race(title, blocking[:2], goal, file, processes=4, waiters=waiters)


def on_postgresql(course: Course) -> Iterator[Race]:
    """Yield the races on PostgreSQL with a slow disk."""
    own = replace(course.slow_postgres, own_keys=True)
    for tasks in (1, 8, 32):
        title = f"PostgreSQL, slow fsync, {tasks} {'key' if tasks == 1 else 'keys'} in one process"
        yield course.race(title, _POSTGRESQL_ASYNCIO, 1.0, own, waiters=tasks, against_best=True)
    for work in (0.0, 0.001):
        title = f"PostgreSQL, slow fsync, one key, 16 waiters, {1000 * work:g} ms"
        hot: dict[str, Any] = {"processes": 2, "waiters": 16, "work": work, "against_best": True}
        yield course.race(title, _POSTGRESQL_ASYNCIO, 1.0, course.slow_postgres, **hot)


def in_memory(course: Course) -> Iterator[Race]:
    """Yield the races of the memory engine with a lock that serves one event loop."""
    compared, target = (peers.WEBLOCK_ASYNCIO, peers.ASYNCIO_LOCK), Target(engine="memory")
    yield course.race("memory://, asyncio, no contention", compared, 0.0, target)
    for waiters in (8, 1000):
        title = f"memory://, asyncio, one key, {waiters:,} waiters"
        # A task that gives way while it has the key: else no other one ever waits.
        yield course.race(title, compared, 0.0, target, waiters=waiters, work=1e-6)


_BLOCKING: Final = (peers.WEBLOCK, peers.REDIS_PY, peers.PYTHON_REDIS_LOCK, peers.SHERLOCK)
_ASYNCIO: Final = (peers.WEBLOCK_ASYNCIO, peers.REDIS_PY_ASYNCIO, peers.GRELMICRO)
_FAR_BLOCKING: Final = (peers.WEBLOCK, peers.PUSH, peers.REDIS_PY, peers.PYTHON_REDIS_LOCK)
_FAR_ASYNCIO: Final = (peers.WEBLOCK_ASYNCIO, peers.PUSH, *_ASYNCIO[1:])
_HOT_BLOCKING: Final = (peers.WEBLOCK, peers.PUSH, peers.PYTHON_REDIS_LOCK)
_HOT_ASYNCIO: Final = (peers.WEBLOCK_ASYNCIO, peers.PUSH, peers.REDIS_PY_ASYNCIO)
_REDLOCK: Final = (peers.WEBLOCK, peers.REDLOCK_PY)
_REDLOCK_ASYNCIO: Final = (peers.WEBLOCK_ASYNCIO, peers.POTTERY_ASYNCIO)
_POSTGRESQL: Final = (peers.WEBLOCK, peers.UPDATES, peers.ADVISORY)
_UNWRITTEN: Final = replace(peers.ADVISORY, name=f"floor, never written: {peers.ADVISORY.name}")
_POSTGRESQL_ASYNCIO: Final = (peers.WEBLOCK_ASYNCIO, _UNWRITTEN, peers.GRELMICRO)

TABLES: Final[dict[str, Sequence[Races]]] = {
    "redis-far": [partial(far, added) for added in ROUND_TRIPS],
    "redis": [on_redis],
    "redlock": [on_quorum],
    "file": [on_files],
    "postgresql": [on_postgresql],
    "memory": [in_memory],
}
"""The first is that of a network, where users are; the others are on loopback."""


def run(effort: Effort, some: Sequence[Races]) -> list[Race]:
    """Measure races, in turn."""
    with ExitStack() as stack:
        course = Course(stack, effort.before)
        races = [*chain(*(each(course) for each in some))]
        races = [race for race in races if len(race.racers) > 1]
        for race in races:  # Opens everything.
            race.round(0.05)
            race.took.clear()
            for racer in race.racers:
                racer.slices.clear()
        for _ in range(effort.rounds):
            for race in races:
                race.round(effort.slice)
        return races


def goals(effort: Effort) -> Iterator[Findings]:
    """Yield the tables of the races that have a goal: behind a network, and on loopback."""
    rows = [race.row(effort) for each in TABLES["redis-far"] for race in run(effort, [each])]
    yield Findings("Behind a network", HEADS, rows)
    loopback = chain(*(TABLES[name] for name in ("redis", "redlock", "file", "postgresql")))
    yield Findings("On loopback", HEADS, [race.row(effort) for race in run(effort, [*loopback])])


def _case(name: str) -> Case:
    def case(effort: Effort) -> Iterator[Findings]:
        for each in TABLES[name]:
            for race in run(effort, [each]):
                yield race.details()

    return case


def idle(effort: Effort) -> Iterator[Findings]:
    """Yield the CPU time of 50 waiters in 4 processes while the key is held elsewhere."""
    seconds, rows = max(1.0, effort.rounds * effort.slice), []
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        file, redis = Target(engine="file"), Target((server.port,))
        embedded = (
            peers.WEBLOCK,
            peers.WEBLOCK_ASYNCIO,
            peers.FILELOCK,
            peers.FILELOCK_ASYNCIO,
            peers.SQLITE,
        )
        on_redis = (peers.WEBLOCK, peers.WEBLOCK_ASYNCIO, *_BLOCKING[1:3], peers.REDIS_PY_ASYNCIO)
        for where, target, compared in (("file", file, embedded), ("Redis", redis, on_redis)):
            for peer in (each for each in compared if each.installed):
                share = _idle_share(peer.at(target), seconds)
                rows.append([f"{where}: {peer.name}", f"{share:.2%}"])
    yield Findings("50 idle waiters in 4 processes", ["CPU, share of one core"], rows)


def _idle_share(contender: Contender, seconds: float) -> float:
    """The share of one core that 50 waiters use between them while another process holds."""
    with machine.scratch() as directory:
        crew = Crew(contender, directory, 5)
        with crew.working():
            start = time.monotonic() + 0.2
            held = Job(1, start, start + 0.1, work=1.5 + seconds)
            waiting = Job(0, start + 0.5, start + 1)  # Each begins to wait, and then gets it once.
            crew.start([held, *(replace(waiting, waiters=share) for share in shares(50, 4))])
            pids = [process.pid or 0 for process in crew.processes[1:]]
            time.sleep(1.2)
            before = sum(map(machine.cpu_seconds, pids))
            time.sleep(seconds)
            spent = sum(map(machine.cpu_seconds, pids)) - before
            crew.visits()
    return spent / seconds


CASES: Final[dict[str, Case]] = {**{name: _case(name) for name in TABLES}, "idle": idle}


def script_time(server: Server) -> float:
    """Return the microseconds that a server has spent in scripts."""
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    return float(stats.get("cmdstat_evalsha", {}).get("usec", 0))
