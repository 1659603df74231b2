"""The engine: a server with a clock of its own, behind a network that delays and loses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from weblock._core import table
from weblock._core.ports import Ask, Grasp, Pulse, Reply, Switchboard
from weblock._core.table import Claim, KeyState, Moment, Step
from weblock.errors import EngineUnavailable

from .properties import Referee
from .world import Clock, Process, Task, World, suspended

if TYPE_CHECKING:
    from .clients import Application

SLOWEST: Final = 3.0
"""Seconds that a message may be late, at most."""


@dataclass
class Faults:
    """What may go wrong, and how often: probabilities, and of crashes and the like, numbers."""

    lost_requests: float = 0
    lost_replies: float = 0
    slow: float = 0
    lost_rings: float = 0
    engine_pauses: int = 0
    pauses: int = 0
    stalls: int = 0
    crashes: int = 0
    cancels: float = 0
    robberies: int = 0
    skew: float = 0

    @classmethod
    def chosen(cls, rng: Random) -> Faults:
        """A random subset, the swarm's: sometimes none at all."""
        if rng.random() < 0.12:
            return cls(skew=rng.choice([0, 0.004]))
        faults = cls()
        for name, rates in _RATES.items():
            if rng.random() < 0.4:
                setattr(faults, name, rng.choice(rates))
        return faults

    @property
    def any(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self) if field.name != "skew")


_RATES: Final[dict[str, tuple[float, ...]]] = {
    "lost_requests": (0.02, 0.1, 0.3),
    "lost_replies": (0.02, 0.1, 0.3),
    "slow": (0.02, 0.1, 0.3),
    "lost_rings": (0.2, 1.0),
    "engine_pauses": (1, 3),
    "pauses": (1, 3),
    "stalls": (1, 3),
    "crashes": (1, 2),
    "cancels": (0.01, 0.05, 0.2),
    "robberies": (1, 3),
    "skew": (0.004,),
}


class Part(NamedTuple):
    """One operation of a request, which may carry several."""

    operation: str
    key: str
    owner: str
    length: float = 0
    claim: Claim | None = None
    room: int = 0

    def __str__(self) -> str:
        return f"{self.operation} {self.key} {self.owner}"


class Network:
    """Carries messages, each in its own time, until the faults end."""

    def __init__(self, world: World, faults: Faults, faults_end: float, pace: float) -> None:
        self._world = world
        self._faults = faults
        self._faults_end = faults_end
        self._pace = pace

    def strikes(self, chance: float) -> bool:
        world = self._world
        return chance > 0 and world.now < self._faults_end and world.rng.random() < chance

    def delay(self) -> float:
        world = self._world
        if self.strikes(self._faults.slow):
            seconds = world.rng.random() * SLOWEST
            world.disturb(world.now + seconds)
            return seconds
        return world.rng.random() * self._pace


class Server:
    """Applies the transitions of the table at its own time, and rings who was woken."""

    def __init__(
        self,
        world: World,
        clock: Clock,
        network: Network,
        faults: Faults,
        referee: Referee,
        *,
        op_timeout: float,
        knows_deaths: bool,
    ) -> None:
        self.world = world
        self.clock = clock
        self.network = network
        self.faults = faults
        self.referee = referee
        self.op_timeout = op_timeout
        self.knows_deaths = knows_deaths
        self.states: dict[str, KeyState] = {}
        self.paused_until = 0.0
        self.homes: dict[str, tuple[Process, Switchboard]] = {}

    def now(self) -> float:
        return self.clock.at(self.world.now)

    def alive(self, process: str) -> bool:
        return not (self.knows_deaths and self.homes[process][0].crashed)

    def receive(self, parts: Sequence[Part], reply: Callable[[list[Reply]], None]) -> bool:
        """Applies a request, now or when the pause is over."""
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until, self.receive, parts, reply)
            return False
        reply([self._apply(part) for part in parts])
        return True

    def _apply(self, part: Part) -> Reply:
        moment = Moment(self.now(), 0, self.alive)
        before = self.states.get(part.key) or KeyState()
        step = _transition(before, moment, part)
        self.states[part.key] = step.state
        self.world.note("engine:", part, "->", step.answer)
        self.referee.applied(part, before, step, moment.now)
        if step.woken:
            self._ring(step.woken)
        return Reply(step.answer, moment.now)

    def _ring(self, grant: table.Grant) -> None:
        world = self.world
        if self.network.strikes(self.faults.lost_rings):
            world.count("lost wake-up")
            world.disturb(world.now)
            return
        grasp = Grasp(grant.fence, grant.until)
        world.at(world.now + self.network.delay(), self._rung, grant.claim, grasp)

    def _rung(self, claim: Claim, grasp: Grasp) -> bool:
        process, switchboard = self.homes[claim.process]
        if process.crashed:
            return False
        if not process.runs:
            self.world.at(process.paused_until, self._rung, claim, grasp)
            return False
        switchboard.ring(claim.owner, grasp)
        return True

    def tell_death(self) -> None:
        """Has all who wait ask again, as an engine does that can tell."""
        for process, switchboard in self.homes.values():
            if process.runs:
                switchboard.ring_all(Ask())

    def rob(self, key: str, *, everything: bool) -> None:
        """Forgets a lease, as when somebody deletes it by hand; or the queue with it."""
        state = self.states.get(key)
        if state is None or state.grant is None:
            return
        self.world.note("fault: the engine forgets", key)
        self.referee.robbed(state)
        self.states[key] = state._replace(grant=None, queue=() if everything else state.queue)


def _transition(state: KeyState, moment: Moment, part: Part) -> Step:
    if part.operation == "acquire":
        assert part.claim is not None
        return table.acquire(state, moment, part.claim, room=part.room)
    if part.operation == "refresh":
        return table.refresh(state, moment, part.owner, part.length)
    return table.release(state, moment, part.owner, void=part.length)


class SimStore:
    """The port ``Store``: requests and replies, each of which may not arrive."""

    def __init__(self, server: Server, process: Application) -> None:
        self._server = server
        self._process = process

    @property
    def process(self) -> str:
        return self._process.name

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        part = Part("acquire", key, claim.owner, claim.ttl, claim, room)
        return (await self._call([part]))[0]

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        self._server.referee.beats(pulses)
        return await self._call([Part("refresh", *pulse) for pulse in pulses])

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        return (await self._call([Part("release", key, owner, void)]))[0]

    async def _call(self, parts: Sequence[Part]) -> list[Reply]:
        world, server, faults = self._process.world, self._server, self._server.faults
        task = self._process.runtime.task
        call = _Call(self._server, task, parts)
        if server.network.strikes(faults.lost_requests):
            world.count("lost request")
            world.note(task.name, "loses the request", *parts)
            world.disturb(world.now + server.op_timeout)
        else:
            world.at(world.now + server.network.delay(), server.receive, parts, call.reply)
        self._process.after(server.op_timeout, task.wake, task.turn, None)
        replies: list[Reply] | None = await suspended(task)
        if replies is None:
            world.note(task.name, "gives up on", *parts)
            call.given_up = True
            raise EngineUnavailable("sim", "no reply in time")
        return replies


class _Call:
    """One request that is under way."""

    def __init__(self, server: Server, task: Task, parts: Sequence[Part]) -> None:
        self._server = server
        self._task = task
        self._turn = task.turn
        self._parts = parts
        self.given_up = False

    def reply(self, replies: list[Reply]) -> None:
        world, network = self._server.world, self._server.network
        if self.given_up:
            world.count("applied after the client gave up")
        if network.strikes(self._server.faults.lost_replies):
            world.count("lost reply")
            world.note(self._task.name, "loses the reply to", *self._parts)
            world.disturb(world.now + self._server.op_timeout)
            return
        world.at(world.now + network.delay(), self._task.wake, self._turn, replies)
