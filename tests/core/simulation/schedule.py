"""One schedule: everything that one seed decides, run to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from weblock._core.keeping import BEAT
from weblock._core.table import HANDOFF, PLACE

from .attempts import Attempt, Plan
from .client import Client
from .engine import EngineServer
from .faults import Faults
from .network import Network
from .process import Process
from .properties import PROPERTIES
from .swarm import Swarm
from .truth import Truth
from .world import World

AUDIT = 0.25
"""Seconds between looks at what is bounded in time."""

AUDITS_AFTERWARDS = 10
"""How many more there are when all attempts have ended, for what they leave behind."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a schedule that violated nothing."""

    events: int
    counts: Counter[str]
    fingerprint: str


class Schedule:
    """Processes and their attempts, an engine, a network, faults; and the truth about them."""

    def __init__(
        self,
        random: Random,
        swarm: Swarm | None = None,
        engine: Callable[..., EngineServer] = EngineServer,
    ) -> None:
        self.swarm = swarm = swarm or Swarm.drawn(random)
        self.world = World(random)
        self.network = Network(self.world, swarm)
        self.engine = engine(
            self.world,
            granularity=swarm.granularity,
            alive=self._alive,
            notify=self.network.notify,
        )
        self.truth = Truth(self.world, swarm, self.engine)
        self.engine.observer = self.truth
        self.network.connect(self.engine, self.truth)
        self.truth.add([each(self.truth) for each in PROPERTIES])
        self.world.after_event = self.truth.after_event
        self._slots = [self._new_client(slot) for slot in range(swarm.processes)]
        self._audits_left = AUDITS_AFTERWARDS
        self._planned = swarm.attempts
        for number in range(swarm.attempts):
            self._plan_attempt(number)
        Faults(self)
        self.world.after(swarm.calm_at, self._calm_down)

    def run(self) -> None:
        """Runs it; raises ``Violation`` if a property does not hold."""
        try:
            self._audit()
            self.world.run(self._latest_end())
            self.world.run(self.world.now + self._time_to_forget())
            self.truth.at_end()
            self.world.raise_violation()
        finally:
            for client in self.truth.clients:
                client.process.close()

    def outcome(self) -> Outcome:
        return Outcome(self.world.events, self.truth.counts, self.world.fingerprint())

    def _alive(self, process: str) -> bool:
        return self.truth.alive(process)

    def replace(self, client: Client) -> None:
        """Starts another process in the place of one that is no more."""
        for slot, each in enumerate(self._slots):
            if each is client:
                self._slots[slot] = self._new_client(slot)

    def _new_client(self, slot: int) -> Client:
        random, swarm = self.world.random, self.swarm
        process = Process(
            self.world,
            f"p{slot}.{len(self.truth.clients)}",
            rate=1 + swarm.drift * random.choice([-1.0, 1.0, random.uniform(-1, 1)]),
            offset=random.uniform(0, 100),
        )
        client = self._client_in(process)
        self.truth.clients.append(client)
        return client

    def _client_in(self, process: Process) -> Client:
        return Client(process, self.network, self.swarm, self.truth)

    def _plan_attempt(self, number: int) -> None:
        random, swarm = self.world.random, self.swarm
        plan = Plan.drawn(random, swarm)
        slot = random.randrange(swarm.processes)
        start = partial(self._start_attempt, f"a{number}", slot, plan)
        self.world.after(random.random() * swarm.spread, start)

    def _start_attempt(self, name: str, slot: int, plan: Plan) -> None:
        self._planned -= 1
        random, swarm = self.world.random, self.swarm
        attempt = Attempt(name, self._slots[slot], plan, self.truth)
        self.truth.attempts[name] = attempt
        if random.random() < swarm.cancels:
            soon = random.choice([4 * swarm.delay, plan.section, swarm.ttl])
            delay = random.random() * soon
            self.world.after(delay, attempt.cancel)
            if random.random() < 0.3:  # The second one hits it while it cleans up.
                self.world.after(delay + random.random() * 4 * swarm.delay, attempt.cancel)

    def _calm_down(self) -> None:
        self.network.faulty = False

    def _audit(self) -> None:
        self.truth.audit()
        self._audits_left = self._audits_left - 1 if self._is_over() else AUDITS_AFTERWARDS
        if self._audits_left:
            self.world.after(AUDIT, self._audit)
        else:
            self.world.halt()

    def _is_over(self) -> bool:
        return (
            self._planned == 0
            and self.world.now > self.swarm.calm_at
            and all(attempt.over for attempt in self.truth.attempts.values())
        )

    def _latest_end(self) -> float:
        """When all attempts must have ended: they hold the keys one after the other."""
        swarm = self.swarm
        each = 1.5 * swarm.section + HANDOFF + BEAT
        recovered_at = swarm.calm_at + 2 * self.engine.recovery + HANDOFF
        return recovered_at + swarm.latest + 4 * swarm.ttl + PLACE + swarm.attempts * each

    def _time_to_forget(self) -> float:
        """How long the engine may remember those who cannot say goodbye."""
        return self.swarm.latest + 2 * self.swarm.ttl + PLACE + HANDOFF


def run_seed(seed: int) -> Outcome:
    schedule = Schedule(Random(seed))
    schedule.run()
    return schedule.outcome()
