"""``memory://``: the threads and tasks of one process. For tests, and for one-process services.

Read this engine first: it is the shortest one that can do everything. ``CellStore`` has the protocol,
and asks for two things:

- *cells*: one ``KeyState`` for each key, which a function of ``table`` replaces by the next one while
  nobody else changes it. Here they are a dict under a mutex.
- *bells*: how to notify the process of a waiter. Here the waiter is in this process (``LocalBells``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import RLock

from .._core.ports import Engine, Runtime, Switchboard
from .._core.table import KeyState, Moment, current
from .._platform.forks import heed_forks
from ..errors import EngineUnavailable
from .cells import CellStore, Done, LocalBells, Transition
from .transport.options import options_in
from .url import without_secrets


class MemoryEngine(Engine):
    """Keeps the leases in a dict. A fork leaves the child with an empty one."""

    scope = "process"
    store = CellStore

    def __init__(self, name: str = "memory://") -> None:
        self.name = name
        self.switchboard = Switchboard()
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        self.states: dict[str, KeyState] = {}
        self.fence = 0
        """The highest fence of all keys that have no state any more."""
        self.pruned_above = 128
        """How many keys there may be before those whose leases have ended are searched and dropped."""
        self.marks: dict[str, float] = {}
        """When each mark ends."""
        self.mutex = RLock()
        self.busy = False
        """Whether the thread that has the mutex is changing a state."""

    def connect(self, runtime: Runtime) -> CellStore:
        bells = LocalBells(self.switchboard)
        return self.store(_Cells(self, runtime), bells, patience=0, beat_patience=0)


class _Cells:
    """The states of an engine, in the time of one runtime."""

    def __init__(self, engine: MemoryEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._now = runtime.now

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        engine, states = self._engine, self._engine.states
        with engine.mutex:
            if engine.busy:  # A signal handler has interrupted this thread below.
                raise EngineUnavailable(engine.name, "its own thread is at work in it")
            try:
                engine.busy = True
                now = self._now()
                before = states.get(key) or KeyState(engine.fence)
                step = transition(before, Moment(now, time.time_ns() // 1000))
                states[key] = state = step.state
                if not (state.grants or state.queue or state.voided):
                    engine.fence = max(engine.fence, states.pop(key).fence)
                elif len(states) > engine.pruned_above:
                    # Rarely, so that it costs each acquisition next to nothing.
                    for each in [
                        key for key in states if current(states[key], Moment(now, 0)).blank
                    ]:
                        engine.fence = max(engine.fence, states.pop(each).fence)
                    engine.pruned_above = max(128, 2 * len(states))
            finally:
                engine.busy = False
        return Done(step, now)

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done]:
        return {key: await self.update(key, each, patience=0) for key, each in changes.items()}

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        return [key for key in tuple(self._engine.states) if key.startswith(prefix)]

    async def mark(self, key: str, keep: float | None) -> None:
        marks, now = self._engine.marks, self._now()
        for each in [each for each, ends in tuple(marks.items()) if ends <= now]:
            marks.pop(each, None)
        marks[key] = float("inf") if keep is None else now + keep

    async def marked(self, key: str) -> bool:
        return self._now() < self._engine.marks.get(key, 0.0)


def open_engine(url: str) -> MemoryEngine:
    """Return the engine of a URL, one for each: ``memory://``, ``memory://tests``."""
    options_in(url.partition("?")[2], {}, engine="memory://")
    return MemoryEngine(without_secrets(url))
