"""One seed, from the choice of its world to the look at what is left of it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .clients import Application, Client
from .engine import Faults, Network, Server
from .properties import Referee
from .world import Clock, Task, Violation, World

FAULTS_END = 5.0
LIMIT = 300.0


class Outcome(NamedTuple):
    """How a schedule went."""

    seed: int
    violation: str
    counts: Counter[str]
    events: int
    world: World

    def story(self, last: int = 30) -> str:
        """What to read when it failed."""
        return "\n".join(
            [
                f"seed {self.seed}: {self.violation}",
                *self.world.lines()[-last:],
                f"replay with: scripts/simulate --replay {self.seed}",
            ]
        )


def simulate(seed: int, faults: Faults | None = None) -> Outcome:
    """Runs the schedule of a seed, with its own faults or with those that are given."""
    world = World(seed)
    violation = ""
    try:
        Schedule(world, faults).run()
    except Violation as error:
        violation = str(error)
    except Exception as error:  # noqa: BLE001 - whatever the core raises is a finding
        violation = f"P0 no surprise: {error!r}"
    world.end()
    return Outcome(seed, violation, world.counts, world.events, world)


class Schedule:
    """The world of a seed."""

    def __init__(self, world: World, faults: Faults | None) -> None:
        self.world = world
        self.rng = rng = world.rng
        chosen = Faults.chosen(rng)
        self.faults = faults or chosen
        network = Network(world, self.faults, FAULTS_END, rng.choice((0.0002, 0.01, 0.05)))
        self.referee = Referee(world)
        self.server = Server(
            world,
            self._clock(),
            network,
            self.faults,
            self.referee,
            op_timeout=rng.choice((0.3, 0.5)),
            knows_deaths=rng.random() < 0.3,
        )
        self.referee.server = self.server
        self.keys = [f"k{number}" for number in range(rng.choice((1, 1, 2, 3)))]
        self.apps = [
            Application(world, f"p{number}", self._clock(), self.server) for number in range(3)
        ]
        ttl = rng.choice((0.3, 1.0, 1.0, 2.5, 6.0))
        for app in self.apps:
            for number in range(rng.choice((1, 2, 2, 3))):
                client = Client(app, f"{app.name}.{number}", self.keys, ttl)
                if self.faults.cancels:
                    client.task.after_step = self._perhaps_cancel

    def run(self) -> None:
        self._prepare_faults()
        self.world.run(self.referee.look, LIMIT)
        self.referee.at_end(self.apps)

    def _clock(self) -> Clock:
        skew = self.faults.skew
        return Clock(1 + self.rng.choice((-skew, 0, skew)), self.rng.random() * 1000)

    def _perhaps_cancel(self, task: Task) -> None:
        world = self.world
        if world.now < FAULTS_END and self.rng.random() < self.faults.cancels:
            world.at(world.now + self.rng.random() * self.rng.choice((0.01, 0.5)), task.cancel)

    def _prepare_faults(self) -> None:
        for count, fault in (
            (self.faults.engine_pauses, self._pause_engine),
            (self.faults.pauses, self._pause),
            (self.faults.stalls, self._stall),
            (self.faults.crashes, self._crash),
            (self.faults.robberies, self._rob),
        ):
            for _ in range(count):
                self.world.at(self.rng.random() * FAULTS_END, fault)

    def _seconds(self) -> float:
        return self.rng.random() * self.rng.choice((0.3, 1.5, 3.0, 5.0))

    def _pause_engine(self) -> None:
        seconds = min(self._seconds(), 2.0)
        self.server.paused_until = max(self.server.paused_until, self.world.now + seconds)
        self.world.disturb(self.server.paused_until + self.server.op_timeout)
        self.world.note("fault: the engine pauses for", f"{seconds:.3f}")

    def _pause(self) -> None:
        app, seconds = self.rng.choice(self.apps), self._seconds()
        app.pause(seconds)
        self.world.disturb(app.paused_until)
        self.world.note("fault:", app.name, "pauses for", f"{seconds:.3f}")

    def _stall(self) -> None:
        """The clients of a process do not run, as when one blocks their event loop."""
        app, seconds = self.rng.choice(self.apps), self._seconds()
        app.stall(seconds)
        self.world.disturb(app.stalled_until)
        self.world.note("fault:", app.name, "stalls for", f"{seconds:.3f}")

    def _crash(self) -> None:
        app = self.rng.choice(self.apps)
        if app.crashed:
            return
        self.world.note("fault:", app.name, "crashes")
        self.world.disturb(self.world.now)
        self.world.count("crashed while holding" if self._holds(app) else "crashed")
        app.crashed = True
        for task in self.world.tasks:
            if task.process is app:
                task.close()
        if self.server.knows_deaths:
            self.server.tell_death()

    def _holds(self, app: Application) -> bool:
        return any(record.process is app for record in self.referee.records)

    def _rob(self) -> None:
        held = [key for key, state in self.server.states.items() if state.grant]
        self.server.rob(self.rng.choice(held or self.keys), everything=self.rng.random() < 0.3)
