"""The store of every engine that can replace one small value atomically, and notify a process.

Such an engine provides ``Cells`` and ``Notifier``, and hands both to a ``CellStore``:

1. The store turns each request into a *transition*: a function of ``table`` that takes the state of a
   key and a moment, and returns the next state, the answer, and the waiters that have got a lease.
2. The cells read the state, call the transition, and write the next state, while nobody else changes
   that key: with a mutex, or by comparing when they write, and calling the transition again if
   another process was quicker. So a transition has no effect of its own.
3. The store notifies those that have got a lease, which may run in other processes. A lost
   notification is made up for by the next heartbeat of the waiter.

``memory`` is the shortest example. Engines may recognize ``Acquire``, ``Release`` and ``Heartbeats``,
to do their most common case in one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final, Protocol

from .._core import table
from .._core.ports import Granted, Look, Pulse, Reply, Runtime, Store, Switchboard, Texts
from .._core.table import GONE, Answer, Claim, Grant, KeyState, Moment, Step, Waiting
from ..errors import EngineUnavailable

Transition = Callable[[KeyState, Moment], Step]

PATIENCE: Final = 5.0
"""Seconds of losing to other callers that change the same key, before that is an error."""

BEAT_PATIENCE: Final = 1.0
"""Patience of heartbeats: the next comes soon."""

TOO_MANY: Final = "too many callers change the same key at once"
"""Why a caller did not get to change a key."""

PORTION: Final = 500
"""How many keys are read or written in one request."""


@dataclass(slots=True)
class Done:
    """A transition that has taken effect, at ``now`` on the engine's clock."""

    step: Step
    now: float


class Cells(Protocol):
    """The states of all keys."""

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        """Replace the state of ``key``; no other process changes it in between.

        Raises ``EngineUnavailable`` if the cell is not available within ``patience`` seconds.
        """

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> Mapping[str, Done | EngineUnavailable]:
        """Replace the states of several keys, each by itself, as cheaply as possible."""

    async def names(self, prefix: str, *, patience: float) -> Sequence[str]:
        """Return the keys that have a state and begin with ``prefix``.

        Raises ``EngineUnavailable`` if not all of them can be read.
        """

    async def mark(self, key: str, keep: float | None) -> None:
        """See ``Store.mark``."""

    async def marked(self, key: str) -> bool:
        """See ``Store.marked``."""


class Notifier(Protocol):
    """How to notify the other processes that lock here."""

    @property
    def process(self) -> str:
        """The name under which other processes notify this one."""

    def notify(self, process: str, owner: str, granted: Granted) -> None:
        """Notify a waiter of a process that it has the lease. May fail silently."""

    def watch(self, key: str, owner: str, ahead: Iterable[str], *, first: bool) -> None:
        """Record that ``owner`` waits here for ``key``, behind these processes. Called repeatedly.

        The nearest process comes first. Before the ``first`` waiter there are only holders, any of
        whom may make room for it. If no process can notify another, this polls for the
        waiters; if deaths can be noticed, it makes the waiter ask when the process before it dies.
        """

    def close_up(self, process: str, owner: str) -> None:
        """Record that the waiter directly before this one has left the queue. May fail silently.

        If a waiter watches only the one before it, it asks which one that is now.
        """


class Acquire(partial[Step]):
    """The transition by which a claim takes a key, or joins its queue."""

    @property
    def claim(self) -> Claim:
        claim: Claim = self.keywords["claim"]
        return claim


class Release(partial[Step]):
    """The transition by which an owner gives back what it has."""

    @property
    def owner(self) -> str:
        owner: str = self.keywords["owner"]
        return owner

    @property
    def void(self) -> float:
        void: float = self.keywords["void"]
        return void


class Heartbeats:
    """The transition of a key by all heartbeats for it, and their answers by owner.

    Where an engine recovers, leases are renewed also if a waiter could be let in: it stays outside.
    """

    def __init__(self) -> None:
        self.pulses: list[Pulse] = []
        self.answers: dict[str, Answer] = {}

    def __call__(self, state: KeyState, moment: Moment) -> Step:
        beats = [(pulse.owner, pulse.ttl) for pulse in self.pulses]
        left, answers, woken = table.refresh_many(state, moment, beats)
        if left.fence > state.fence and not moment.grants:
            left, answers, woken = table.refresh_many(state._replace(places={}), moment, beats)
            left = left._replace(places=state.places)
        self.answers = {owner: answer for (owner, _), answer in zip(beats, answers, strict=True)}
        return Step(left, answers[-1], woken)


class WhileHeld:
    """A transition that changes nothing. If ``owner`` holds the key, it does something else meanwhile.

    For cells that call a transition once, and let no other caller change the key until it has returned.
    """

    def __init__(self, owner: str, work: Callable[[], object]) -> None:
        self._owner = owner
        self._work = work
        self.done = False

    def __call__(self, state: KeyState, moment: Moment) -> Step:
        if table.holds(state, moment, self._owner):
            self._work()
            self.done = True
        return Step(state, GONE)


class _Glance:
    """A transition that changes nothing, and keeps what it saw."""

    def __init__(self) -> None:
        self.state = KeyState()

    def __call__(self, state: KeyState, moment: Moment) -> Step:
        self.state = table.current(state, moment)
        return Step(state, GONE)


class CellStore(Store):
    """The lock protocol on cells, with a notifier."""

    def __init__(
        self,
        cells: Cells,
        notifier: Notifier,
        *,
        patience: float = PATIENCE,
        beat_patience: float = BEAT_PATIENCE,
        texts: Texts | None = None,
    ) -> None:
        self.texts = texts
        self._cells = cells
        self._notifier = notifier
        self._patience = patience
        self._beat_patience = beat_patience

    process = property(attrgetter("_notifier.process"))

    def impatient(self) -> CellStore:
        """Return the same with no more patience than heartbeats have."""
        patience = self._beat_patience
        return CellStore(self._cells, self._notifier, patience=patience, beat_patience=patience)

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        # The process of a caller that asks again may have another name by now.
        if claim.process != (process := self._notifier.process):
            claim = claim._replace(process=process)
        done = await self._cells.update(
            key, Acquire(table.acquire, claim=claim, room=room), patience=self._patience
        )
        step = done.step
        if step.woken:
            self._notify(step.woken)
        if isinstance(step.answer, Waiting):
            self._watch(key, claim.owner, step.answer, step.state)
        return Reply(step.answer, done.now)

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        done = await self._cells.update(
            key, Release(table.release, owner=owner, void=void), patience=self._patience
        )
        step = done.step
        if step.woken:
            self._notify(step.woken)
        if step.following:
            self._notifier.close_up(step.following.process, step.following.owner)
        return Reply(step.answer, done.now)

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        by_key: dict[str, Heartbeats] = {}
        for pulse in pulses:
            by_key.setdefault(pulse.key, Heartbeats()).pulses.append(pulse)
        outcomes = await self._cells.update_many(by_key, patience=self._beat_patience)
        for outcome in outcomes.values():
            if isinstance(outcome, Done):
                self._notify(outcome.step.woken)
        replies: list[Reply | EngineUnavailable] = []
        for pulse in pulses:
            outcome = outcomes[pulse.key]
            if isinstance(outcome, EngineUnavailable):
                replies.append(outcome)
                continue
            answer = by_key[pulse.key].answers[pulse.owner]
            if isinstance(answer, Waiting):
                self._watch(pulse.key, pulse.owner, answer, outcome.step.state)
            replies.append(Reply(answer, outcome.now))
        return replies

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        return await self._apply(key, partial(table.transfer, owner=owner, claim=claim))

    async def force_release(self, key: str) -> Reply:
        return await self._apply(key, table.force_release)

    async def ask_release(self, key: str) -> Reply:
        return await self._apply(key, table.ask_release)

    async def look(self, key: str) -> Look:
        glance = _Glance()
        done = await self._cells.update(key, glance, patience=self._patience)
        return Look(glance.state, done.now)

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        found: list[str] = []
        names = await self._cells.names(prefix, patience=self._patience)
        for start in range(0, len(names), PORTION):
            glances = {key: _Glance() for key in names[start : start + PORTION]}
            outcomes = await self._cells.update_many(glances, patience=self._patience)
            for outcome in outcomes.values():
                if isinstance(outcome, EngineUnavailable):
                    raise outcome
            # Other keys are only remembered for a while.
            found += [
                key for key, each in glances.items() if each.state.grants or each.state.places
            ]
            if len(found) >= limit:
                break
        return found[:limit]

    async def mark(self, key: str, keep: float | None) -> None:
        await self._cells.mark(key, keep)

    async def marked(self, key: str) -> bool:
        return await self._cells.marked(key)

    async def _apply(self, key: str, transition: Transition) -> Reply:
        done = await self._cells.update(key, transition, patience=self._patience)
        self._notify(done.step.woken)
        return Reply(done.step.answer, done.now)

    def _watch(self, key: str, owner: str, waiting: Waiting, state: KeyState) -> None:
        ahead = table.processes_ahead(state, waiting.position)
        self._notifier.watch(key, owner, ahead, first=waiting.position == 0)

    def _notify(self, woken: Sequence[Grant]) -> None:
        for claim, fence, _, until, _ in woken:
            self._notifier.notify(claim.process, claim.owner, Granted(fence, until))


class LocalNotifier:
    """The notifier of an engine that serves only this process."""

    process = ""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard

    def notify(self, process: str, owner: str, granted: Granted) -> None:
        self._switchboard.notify(owner, granted)

    def watch(self, key: str, owner: str, ahead: Iterable[str], *, first: bool) -> None:
        pass

    def close_up(self, process: str, owner: str) -> None:
        pass


class RacingCells(Cells):
    """The cells of an engine that writes a key only if nobody has changed it since it was read.

    Such an engine has no fair order. The keeper of a process with a thousand callers would lose to one of
    them each time, until its leases have ended. So the other callers of the process let heartbeats that
    have lost a race pass. A caller looks whether there are any before it reads a key, so each of those
    that have read it already can win once more, and then the heartbeats do.
    """

    def __init__(self, runtime: Runtime, renewing: set[str]) -> None:
        self.runtime = runtime
        self._renewing = renewing
        """The keys of this process whose heartbeats have lost a race."""

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done | EngineUnavailable]:
        outcomes: dict[str, Done | EngineUnavailable] = {}
        keys = list(changes)
        for start in range(0, len(keys), PORTION):
            portion = {key: changes[key] for key in keys[start : start + PORTION]}
            outcomes |= await self._update_at_once(portion)
        for key in changes.keys() - outcomes.keys():
            try:
                if isinstance(changes[key], Heartbeats):
                    self._renewing.add(key)
                outcomes[key] = await self.update(key, changes[key], patience=patience)
            except EngineUnavailable as error:
                outcomes[key] = error
            finally:
                self._renewing.discard(key)
        return outcomes

    async def _update_at_once(
        self, changes: Mapping[str, Transition]
    ) -> Mapping[str, Done | EngineUnavailable]:
        """Replace several cells. Those that another caller changed first are left out."""
        raise NotImplementedError

    async def _let_pass(self, key: str, transition: Transition, patience: float) -> None:
        """Wait until the heartbeats of the key have had their turn, unless these are some."""
        runtime = self.runtime
        give_up_at = runtime.now() + patience
        while key in self._renewing and runtime.now() < give_up_at:
            if isinstance(transition, Heartbeats):
                return
            await runtime.sleep(0.002 * (1 + runtime.jitter()))
