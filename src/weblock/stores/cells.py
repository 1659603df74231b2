"""A store on top of any engine that can change one small value atomically, and notify a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, Protocol

from .._core import table
from .._core.ports import Grasp, Look, Pulse, Reply, Runtime, Store, Switchboard
from .._core.table import Answer, Claim, Gone, Grant, KeyState, Moment, Step, Waiting
from ..errors import EngineUnavailable

Transition = Callable[[KeyState, Moment], Step]

_PORTION: Final = 1000
"""How many keys are read at once when keys are listed."""


class Done(NamedTuple):
    """A transition that has taken effect, at ``now`` on the engine's clock."""

    step: Step
    now: float


class Acquire(partial[Step]):
    """The transition by which a claim takes a key, or joins its queue: ``table.acquire`` with both.

    It says what it is, and so do the others: cells that can do the most common case of it in one
    request need not look at the state first.
    """

    @property
    def claim(self) -> Claim:
        """The caller that wants the key, and for how long."""
        claim: Claim = self.keywords["claim"]
        return claim


class Transfer(partial[Step]):
    """The transition by which a lease passes to another owner: ``table.transfer`` with both."""


class Release:
    """The transition by which an owner gives back what it has."""

    def __init__(self, owner: str, void: float) -> None:
        self.owner = owner
        self.void = void
        self.following: Claim | None = None
        """The claim directly behind a place that was given back."""

    def __call__(self, state: KeyState, moment: Moment) -> Step:
        self.following = table.behind(state, self.owner) if state.queue else None
        return table.release(state, moment, self.owner, void=self.void)


class Heartbeats:
    """The transition of a key by all heartbeats for it, and their answers by owner."""

    def __init__(self) -> None:
        self.pulses: list[Pulse] = []
        self.answers: dict[str, Answer] = {}

    def __call__(self, state: KeyState, moment: Moment) -> Step:
        beats = [(pulse.owner, pulse.ttl) for pulse in self.pulses]
        state, answers, woken = table.refresh_many(state, moment, beats)
        self.answers = {owner: answer for (owner, _), answer in zip(beats, answers, strict=True)}
        return Step(state, answers[-1], woken)


class Cells(Protocol):
    """The values of all keys."""

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        """Replace the value of ``key``; no other process changes it in between.

        Raises ``EngineUnavailable`` if the cell is not available within ``patience`` seconds.
        """

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> Mapping[str, Done | EngineUnavailable]:
        """Replace the values of several keys, each by itself, as cheaply as possible."""

    async def names(self, prefix: str, *, patience: float) -> Sequence[str]:
        """Return the keys that have a value and begin with ``prefix``.

        Raises ``EngineUnavailable`` if not all of them can be read.
        """

    async def mark(self, key: str, keep: float | None) -> None:
        """See ``Store.mark``."""

    async def marked(self, key: str) -> bool:
        """See ``Store.marked``."""


class Renewing(set[str]):
    """The keys of this process whose heartbeats have lost a race: all other callers let them pass.

    Engines that write a key only if nobody has changed it since it was read have no fair order. The
    keeper of a process with a thousand callers would lose to one of them each time, until its leases
    have ended. A caller looks here before it reads a key, so each of those that have read it already
    can win once more, and then the heartbeats do.
    """

    @contextmanager
    def first(self, key: str) -> Iterator[None]:
        """Surround the heartbeats of a key that come before all other changes of it."""
        self.add(key)
        try:
            yield
        finally:
            self.discard(key)

    def let_pass(self, key: str, runtime: Runtime, patience: float) -> Iterator[float]:
        """Yield the seconds to sleep until the caller may read the key."""
        give_up_at = runtime.now() + patience
        while key in self and runtime.now() < give_up_at:
            yield 0.002 * (1 + runtime.jitter())


class Bells(Protocol):
    """How to notify the other processes that lock here."""

    @property
    def process(self) -> str: ...

    def ring(self, process: str, owner: str, grasp: Grasp) -> None:
        """Notify a waiter of a process that it has the lease. May fail silently."""

    def watch(self, key: str, owner: str, ahead: Sequence[str], *, first: bool) -> None:
        """Record that ``owner`` waits here for ``key``, behind these processes. Called repeatedly.

        The nearest process comes first. Before the ``first`` waiter there are only holders, any of
        whom may make room for it. If no process can notify another, this polls for the
        waiters; if deaths can be noticed, it makes the waiter ask when the process before it dies.
        """

    def close_up(self, process: str, owner: str) -> None:
        """Record that the waiter directly before this one has left the queue. May fail silently.

        If a waiter watches only the one before it, it asks which one that is now.
        """


class LocalBells:
    """The bells of an engine that serves only this process."""

    process = ""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard

    def ring(self, process: str, owner: str, grasp: Grasp) -> None:
        self._switchboard.ring(owner, grasp)

    def watch(self, key: str, owner: str, ahead: Sequence[str], *, first: bool) -> None:
        pass

    def close_up(self, process: str, owner: str) -> None:
        pass


class CellStore(Store):
    """The lock protocol on cells and bells."""

    def __init__(
        self, cells: Cells, bells: Bells, *, patience: float, beat_patience: float
    ) -> None:
        self._cells = cells
        self._bells = bells
        self._patience = patience
        self._beat_patience = beat_patience

    @property
    def process(self) -> str:
        return self._bells.process

    def hasty(self) -> CellStore:
        """Return the same with no more patience than heartbeats have, for the keeper's other requests."""
        patience = self._beat_patience
        return CellStore(self._cells, self._bells, patience=patience, beat_patience=patience)

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        # The process of a caller that asks again may have another name by now.
        if claim.process != (process := self._bells.process):
            claim = claim._replace(process=process)
        reply = await self._apply(key, Acquire(table.acquire, claim=claim, room=room))
        if isinstance(reply.answer, Waiting):
            self._watch(key, claim.owner, reply.answer)
        return reply

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        transition = Release(owner, void)
        reply = await self._apply(key, transition)
        if following := transition.following:
            self._bells.close_up(following.process, following.owner)
        return reply

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        by_key: dict[str, Heartbeats] = {}
        for pulse in pulses:
            by_key.setdefault(pulse.key, Heartbeats()).pulses.append(pulse)
        outcomes = await self._cells.update_many(by_key, patience=self._beat_patience)
        replies: dict[str, Reply | EngineUnavailable] = {}
        for key, outcome in outcomes.items():
            replies |= self._replies_to(by_key[key], outcome)
        return [replies[pulse.owner] for pulse in pulses]

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        return await self._apply(key, Transfer(table.transfer, owner=owner, claim=claim))

    async def force_release(self, key: str) -> Reply:
        return await self._apply(key, table.force_release)

    async def ask_release(self, key: str) -> Reply:
        return await self._apply(key, table.ask_release)

    async def look(self, key: str) -> Look:
        glance = _Glance()
        _, now = await self._cells.update(key, glance, patience=self._patience)
        return Look(glance.state, now)

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        found: list[str] = []
        names = await self._cells.names(prefix, patience=self._patience)
        for start in range(0, len(names), _PORTION):
            if len(found) >= limit:
                break
            found += await self._in_use(names[start : start + _PORTION])
        return found[:limit]

    async def mark(self, key: str, keep: float | None) -> None:
        await self._cells.mark(key, keep)

    async def marked(self, key: str) -> bool:
        return await self._cells.marked(key)

    async def _in_use(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that have a holder or waiters; others are remembered for a while only."""
        glances = {key: _Glance() for key in keys}
        outcomes = await self._cells.update_many(glances, patience=self._patience)
        for outcome in outcomes.values():
            if isinstance(outcome, EngineUnavailable):
                raise outcome
        return [key for key, glance in glances.items() if glance.state.grants or glance.state.queue]

    def _replies_to(
        self, heartbeats: Heartbeats, outcome: Done | EngineUnavailable
    ) -> dict[str, Reply | EngineUnavailable]:
        if isinstance(outcome, EngineUnavailable):
            return dict.fromkeys((pulse.owner for pulse in heartbeats.pulses), outcome)
        for grant in outcome.step.woken:
            self._ring(grant)
        for pulse in heartbeats.pulses:
            answer = heartbeats.answers[pulse.owner]
            if isinstance(answer, Waiting):
                self._watch(pulse.key, pulse.owner, answer)
        return {owner: Reply(answer, outcome.now) for owner, answer in heartbeats.answers.items()}

    def _watch(self, key: str, owner: str, waiting: Waiting) -> None:
        self._bells.watch(key, owner, waiting.ahead, first=waiting.position == 0)

    async def _apply(self, key: str, transition: Transition) -> Reply:
        return self._reply_to(await self._cells.update(key, transition, patience=self._patience))

    def _reply_to(self, done: tuple[Step, float]) -> Reply:
        (_, answer, woken), now = done
        for grant in woken:
            self._ring(grant)
        return Reply(answer, now)

    def _ring(self, grant: Grant) -> None:
        claim, fence, _, until, _ = grant
        self._bells.ring(claim.process, claim.owner, Grasp(fence, until))


class _Glance:
    """A transition that changes nothing, and keeps what it saw."""

    def __init__(self) -> None:
        self.state = KeyState()

    def __call__(self, state: KeyState, moment: Moment) -> Step:
        self.state = table.current(state, moment)
        return Step(state, Gone())
