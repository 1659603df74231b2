"""``memory://``: the threads and tasks of one process. For tests, and for one-process services."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from threading import Lock, get_ident
from typing import Final

from .._core import table
from .._core.ports import Engine, Reply, Runtime, Store, Switchboard
from .._core.table import GONE, RELEASED, Claim, Grant, Held, KeyState, Moment, Step, current
from .._platform.forks import heed_forks
from ..errors import EngineUnavailable
from .cells import CellStore, Done, LocalBells, Transition
from .marks import MarksInProcess
from .transport.options import options_in
from .url import without_secrets

PRUNED_FROM: Final = 128
"""How many keys there may be before ended leases are searched and dropped."""

_BLANK: Final = KeyState()

_new: Final = tuple.__new__
"""Makes a named tuple in half the time that a call of its class takes."""


class MemoryEngine(Engine):
    """Keeps the leases in a dict. A fork leaves the child with an empty one."""

    scope = "process"

    def __init__(self, name: str = "memory://") -> None:
        self.name = name
        self.switchboard = Switchboard()
        self.after_fork()
        heed_forks(self)

    def connect(self, runtime: Runtime) -> Store:
        return _MemoryStore(_MemoryCells(self, runtime), LocalBells(self.switchboard))

    def after_fork(self) -> None:
        """Start empty in a forked child: no leases, no marks."""
        self.states: dict[str, KeyState] = {}
        self.marks = MarksInProcess()
        self.fence = 0
        """The highest fence of all keys that have no state any more."""
        self.pruned_above = PRUNED_FROM
        self.mutex = Lock()
        self.inside = 0
        """The thread that has the mutex."""

    def refuse_to_wait_for_oneself(self) -> None:
        """Raise ``EngineUnavailable`` in a thread that has the mutex.

        The collector of garbage may run at any allocation, and end a generator that holds a lease: the
        keeper then gives that lease back.
        """
        if self.inside == get_ident() and self.mutex.locked():
            raise EngineUnavailable(self.name, "its own thread is at work in it")

    def state_of(self, key: str) -> KeyState:
        """Return the state of a key, which may be blank."""
        return self.states.get(key) or KeyState(self.fence)

    def keep(self, key: str, state: KeyState, now: float) -> None:
        """Replace the state of a key by one that is not blank."""
        self.states[key] = state
        if len(self.states) > self.pruned_above:
            self._prune(now)

    def forget(self, key: str, fence: int) -> None:
        """Drop a key whose state is blank but for this fence."""
        self.states.pop(key, None)
        self.fence = max(self.fence, fence)

    def _prune(self, now: float) -> None:
        """Drop keys without holder or waiters that were not released.

        Done whenever their number has doubled, so that it costs each acquisition next to nothing.
        """
        moment = Moment(now, 0)
        for key, state in tuple(self.states.items()):
            left = current(state, moment)
            if left.blank:
                self.forget(key, left.fence)
        self.pruned_above = max(PRUNED_FROM, 2 * len(self.states))


class _MemoryStore(CellStore):
    """Takes the short way: nothing here has to be waited for, and ``LocalBells`` watch nothing.

    A key that one caller wants at a time goes through neither ``table.acquire`` nor ``table.release``,
    but what happens to it is the same.
    """

    process = LocalBells.process  # There is only one, in which all waiters are.

    def __init__(self, cells: _MemoryCells, bells: LocalBells) -> None:
        super().__init__(cells, bells, patience=0, beat_patience=0)
        self._change = cells.change
        self._engine = cells.engine
        self._now = cells.now

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        engine, thread = self._engine, get_ident()
        if engine.inside == thread:
            engine.refuse_to_wait_for_oneself()
        with engine.mutex:
            engine.inside = thread
            if free := key not in engine.states:
                now, floor = self._now(), time.time_ns() // 1000
                fence = floor if floor > engine.fence else engine.fence + 1
                until = now + claim.ttl
                grant = _new(Grant, (claim, fence, now, until, True))
                engine.keep(key, _new(KeyState, (fence, (grant,), (), (), 0)), now)
            engine.inside = 0
        if free:
            return _new(Reply, (_new(Held, (fence, until, True, False)), now))
        return self._reply_to(self._change(key, partial(table.acquire, claim=claim, room=room)))

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        engine, thread = self._engine, get_ident()
        if engine.inside == thread:
            engine.refuse_to_wait_for_oneself()
        with engine.mutex:
            engine.inside = thread
            fence, grants, queue, voided, _ = engine.states.get(key) or _BLANK
            alone = len(grants) == 1 and not (queue or voided or void)
            if ours := alone and grants[0].claim.owner == owner:
                now = self._now()
                engine.forget(key, fence)
            engine.inside = 0
        if ours:
            return _new(Reply, (RELEASED if now < grants[0].until else GONE, now))
        return self._reply_to(self._change(key, partial(table.release, owner=owner, void=void)))


class _MemoryCells:
    def __init__(self, engine: MemoryEngine, runtime: Runtime) -> None:
        self.engine = engine
        self.now = runtime.now

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        return Done(*self.change(key, transition))

    def change(self, key: str, transition: Transition) -> tuple[Step, float]:
        engine, thread = self.engine, get_ident()
        engine.refuse_to_wait_for_oneself()
        with engine.mutex:
            engine.inside = thread  # Without a call before it, after which the collector could run.
            now = self.now()
            step = transition(engine.state_of(key), Moment(now, time.time_ns() // 1000))
            state = step.state
            if state.blank:
                engine.forget(key, state.fence)
            else:
                engine.keep(key, state, now)
            engine.inside = 0
        return step, now

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done]:
        return {key: Done(*self.change(key, transition)) for key, transition in changes.items()}

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        return [key for key in tuple(self.engine.states) if key.startswith(prefix)]

    async def mark(self, key: str, keep: float | None) -> None:
        self.engine.marks.put(key, keep)

    async def marked(self, key: str) -> bool:
        return self.engine.marks.has(key)


def open_engine(url: str) -> MemoryEngine:
    """Return the engine of a URL, one for each: ``memory://``, ``memory://tests``."""
    options_in(url.partition("?")[2], {}, engine="memory://")
    return MemoryEngine(without_secrets(url))
