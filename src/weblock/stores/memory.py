"""``memory://``: the threads and tasks of one process. For tests, and for one-process services."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from .._core import table
from .._core.ports import Reply, Runtime, Store, Switchboard
from .._core.table import Claim, KeyState, Moment, Step, current
from .._platform.forks import heed_forks
from .._platform.greenlets import original
from .cells import CellStore, Done, LocalBells, Transition
from .marks import MarksInProcess
from .options import options_in
from .url import without_secrets

PRUNED_FROM: Final = 128
"""How many keys there may be before ended leases are searched and dropped."""


class MemoryEngine:
    """Keeps the leases in a dict. A fork leaves the child with an empty one."""

    scope = "process"
    real_keeper = True

    def __init__(self, name: str = "memory://") -> None:
        self.name = name
        self.switchboard = Switchboard()
        self.after_fork()
        heed_forks(self)

    def connect(self, runtime: Runtime) -> Store:
        return _MemoryStore(_MemoryCells(self, runtime), LocalBells(self.switchboard))

    def close(self) -> None:
        """Nothing is open."""

    def after_fork(self) -> None:
        """Start empty in a forked child: no leases, no marks."""
        self.states: dict[str, KeyState] = {}
        self.marks = MarksInProcess()
        self.unused = KeyState()
        """The state of all keys without any: the highest fence so far."""
        self.pruned_above = PRUNED_FROM
        self.mutex = original("threading", "Lock")()

    def prune(self, moment: Moment) -> None:
        """Drop keys without holder or waiters that were not released.

        Done whenever their number has doubled, so that it costs each acquisition next to nothing.
        """
        for key, state in tuple(self.states.items()):
            left = current(state, moment)
            if left.blank:
                self.forget(key, left)
        self.pruned_above = max(PRUNED_FROM, 2 * len(self.states))

    def forget(self, key: str, state: KeyState) -> None:
        """Drop a key whose ``state`` is blank."""
        self.states.pop(key, None)
        if state.fence > self.unused.fence:
            self.unused = state


class _MemoryStore(CellStore):
    """Takes the short way: nothing here has to be waited for, and ``LocalBells`` watch nothing."""

    process = LocalBells.process  # There is only one, in which all waiters are.

    def __init__(self, cells: _MemoryCells, bells: LocalBells) -> None:
        super().__init__(cells, bells, patience=0, beat_patience=0)
        self._change = cells.change

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        step, now = self._change(key, partial(table.acquire, claim=claim, room=room))
        return self._reply_to((step, now)) if step.woken else Reply(step.answer, now)

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        step, now = self._change(key, partial(table.release, owner=owner, void=void))
        return self._reply_to((step, now)) if step.woken else Reply(step.answer, now)


class _MemoryCells:
    def __init__(self, engine: MemoryEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        return Done(*self.change(key, transition))

    def change(self, key: str, transition: Transition) -> tuple[Step, float]:
        engine = self._engine
        with engine.mutex:
            now = self._runtime.now()
            state = engine.states.get(key, engine.unused)
            moment = Moment(now, time.time_ns() // 1000)
            step = transition(state, moment)
            state = step.state
            if not state.grants and state.blank:
                engine.forget(key, state)
            else:
                engine.states[key] = state
                if len(engine.states) > engine.pruned_above:
                    engine.prune(moment)
        return step, now

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done]:
        return {key: Done(*self.change(key, transition)) for key, transition in changes.items()}

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        with self._engine.mutex:
            return [key for key in self._engine.states if key.startswith(prefix)]

    async def mark(self, key: str, keep: float | None) -> None:
        self._engine.marks.put(key, keep)

    async def marked(self, key: str) -> bool:
        return self._engine.marks.has(key)


def open_engine(url: str) -> MemoryEngine:
    """Return the engine of a URL, one for each: ``memory://``, ``memory://tests``."""
    options_in(url.partition("?")[2], {}, engine="memory://")
    return MemoryEngine(without_secrets(url))
