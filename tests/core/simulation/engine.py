"""The simulated engine: a server with its own clock, which keeps the state of each key."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from weblock._core import table
from weblock._core.ports import Granted, Look, Pulse, Reply
from weblock._core.table import Claim, Grant, KeyState, Moment, Step

from .world import Action, World

EPOCH = 1000.0
"""The engine's time at the start; no process's clock shows it."""


@dataclass(frozen=True, slots=True)
class Acquire:
    key: str
    claim: Claim
    room: int


@dataclass(frozen=True, slots=True)
class Refresh:
    pulses: tuple[Pulse, ...]


@dataclass(frozen=True, slots=True)
class Release:
    key: str
    owner: str
    void: float


@dataclass(frozen=True, slots=True)
class Transfer:
    key: str
    owner: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class AskRelease:
    key: str


@dataclass(frozen=True, slots=True)
class Glance:
    """A look at a key, which changes nothing: a taker whose transfer failed looks at the lease."""

    key: str


Request = Acquire | Refresh | Release | Transfer | AskRelease | Glance

Changing = Acquire | Pulse | Release | Transfer | AskRelease


class Change:
    """One transition of one key, as it happened in the engine.

    ``granted`` are the leases that it granted, in the order of their fences.
    """

    __slots__ = ("after", "before", "granted", "key", "now", "owner", "request", "step")

    def __init__(
        self,
        request: Changing,
        owner: str,
        before: KeyState,
        step: Step,
        now: float,
    ) -> None:
        self.request = request
        self.key = request.key
        self.owner = owner
        self.before = before
        self.step = step
        self.after = step.state
        self.now = now
        self.granted = _new(before.grants, step.state.grants)


class Observer(Protocol):
    def applied(self, change: Change) -> None: ...

    def forgot(self) -> None: ...

    def disturb(self, what: str, lasting: float) -> None: ...


class EngineServer:
    """Serves one request at a time. Its clock goes on while it is stopped, or down."""

    remembers = False
    """Whether it keeps its promises over a loss of its memory, and only takes its time."""

    recovery = 0.0
    """Seconds for which it grants nothing after one."""

    def __init__(
        self,
        world: World,
        *,
        granularity: float,
        alive: Callable[[str], bool],
        notify: Callable[[str, str, Granted], None],
    ) -> None:
        self.states: dict[str, KeyState] = {}
        self.up = True
        self.observer: Observer | None = None
        self._world = world
        self._granularity = granularity
        self._alive = alive
        self._notify = notify
        self._last_fence = 0
        self._stopped = False
        self._backlog: list[Action] = []

    def now(self) -> float:
        now = EPOCH + self._world.now
        return math.floor(now / self._granularity) * self._granularity if self._granularity else now

    @staticmethod
    def true_time(engine_time: float) -> float:
        return engine_time - EPOCH

    def state(self, key: str) -> KeyState:
        return self.states.get(key) or KeyState(self._last_fence)

    def receive(self, serve: Action) -> None:
        """Takes a request: serves it now, or when it goes on, or never when it is down."""
        if self._stopped:
            self._backlog.append(serve)
        elif self.up:
            serve()

    def serve(self, request: Request) -> list[Any]:
        now = self.now()
        if isinstance(request, Refresh):
            return [self._serve(pulse, now) for pulse in request.pulses]
        if isinstance(request, Glance):
            return [Look(table.current(self.state(request.key), self._moment(now)), now)]
        return [self._serve(request, now)]

    def stop(self) -> None:
        self._stopped = True

    def resume(self) -> None:
        self._stopped = False
        backlog, self._backlog = self._backlog, []
        for serve in backlog:
            self.receive(serve)

    def crash(self, *, forget: bool) -> None:
        """Goes down. What it had not served yet is gone; with ``forget``, all else too."""
        self.up = False
        self._backlog = []
        if forget:
            if self.observer is not None:
                self.observer.forgot()
            self.states = {}
            self._last_fence = 0

    def restart(self) -> None:
        self.up = True

    def _moment(self, now: float) -> Moment:
        return Moment(now, int(now * 1_000_000), self._alive)

    def _serve(self, request: Changing, now: float) -> Reply:
        before = self.state(request.key)
        step, owner = _step(before, self._moment(now), request)
        self._keep(request.key, step.state)
        if self.observer is not None:
            self.observer.applied(Change(request, owner, before, step, now))
        for grant in step.woken:
            self._notify(grant.claim.process, grant.claim.owner, Granted(grant.fence, grant.until))
        return Reply(step.answer, now)

    def _keep(self, key: str, state: KeyState) -> None:
        if state.blank:  # As real engines do: of a free key only the fence stays.
            self.states.pop(key, None)
            self._last_fence = max(self._last_fence, state.fence)
        else:
            self.states[key] = state


def _new(before: tuple[Grant, ...], after: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """The leases that were not there before; one that was renewed was."""
    if before is after or not after:
        return ()
    known = [grant[:3] for grant in before]
    return tuple(grant for grant in after if grant[:3] not in known)


def _step(before: KeyState, moment: Moment, request: Changing) -> tuple[Step, str]:
    # By their module, so that a mutant of the table is what is called.
    if isinstance(request, Acquire):
        step = table.acquire(before, moment, request.claim, room=request.room)
        return step, request.claim.owner
    if isinstance(request, Pulse):
        return table.refresh(before, moment, request.owner, request.ttl), request.owner
    if isinstance(request, Transfer):
        step = table.transfer(before, moment, request.owner, request.claim)
        return step, request.claim.owner
    if isinstance(request, AskRelease):
        return table.ask_release(before, moment), ""
    return table.release(before, moment, request.owner, void=request.void), request.owner
