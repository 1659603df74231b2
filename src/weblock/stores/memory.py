"""``memory://``: the threads and tasks of one process. For tests, and for one-process services."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from .._core.ports import Runtime, Store, Switchboard
from .._core.table import KeyState, Moment
from .cells import CellStore, Done, LocalBells, Transition
from .forks import heed_forks
from .marks import MarksInProcess
from .url import without_secrets

SCHEMES = ("memory",)


class MemoryEngine:
    """Keeps the leases in a dict. A fork leaves the child with an empty one."""

    scope = "process"

    def __init__(self, name: str = "memory://") -> None:
        self.name = name
        self.switchboard = Switchboard()
        self.after_fork()
        heed_forks(self)

    def connect(self, runtime: Runtime) -> Store:
        cells = _MemoryCells(self, runtime)
        return CellStore(cells, LocalBells(self.switchboard), patience=0, beat_patience=0)

    def close(self) -> None:
        """Nothing is open."""

    def after_fork(self) -> None:
        """The child begins with nothing: no lease, and nothing that was done."""
        self.states: dict[str, KeyState] = {}
        self.marks = MarksInProcess()
        self.last_fence = 0
        self.mutex = threading.Lock()


class _MemoryCells:
    def __init__(self, engine: MemoryEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        engine = self._engine
        with engine.mutex:
            now = self._runtime.now()
            state = engine.states.get(key) or KeyState(engine.last_fence)
            step = transition(state, Moment(now, int(time.time() * 1_000_000)))
            if step.state.blank:
                engine.states.pop(key, None)
                engine.last_fence = max(engine.last_fence, step.state.fence)
            else:
                engine.states[key] = step.state
        return Done(step, now)

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done]:
        return {key: await self.update(key, changes[key], patience=patience) for key in changes}

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        with self._engine.mutex:
            return [key for key in self._engine.states if key.startswith(prefix)]

    async def mark(self, key: str, keep: float | None) -> None:
        self._engine.marks.put(key, keep)

    async def marked(self, key: str) -> bool:
        return self._engine.marks.has(key)


def open_engine(url: str) -> MemoryEngine:
    """An engine of its own for each URL: ``memory://``, ``memory://tests``."""
    return MemoryEngine(without_secrets(url))
