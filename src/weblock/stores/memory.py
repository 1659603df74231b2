"""``memory://``: the threads and tasks of one process. For tests, and for one-process services.

Read this engine first: it is the shortest one that can do everything. ``CellStore`` has the protocol,
and asks for two things:

- *cells*: one ``KeyState`` for each key, which a function of ``table`` replaces by the next one while
  nobody else changes it. Here they are a dict under a mutex.
- a *notifier*: how to notify the process of a waiter. Here the waiter is in this process (``LocalNotifier``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import RLock

from .._core.ports import Engine, Found, Runtime, Switchboard, Texts
from .._core.table import KeyState, Moment, current
from .._platform.forks import reset_after_fork
from ..errors import EngineUnavailable
from .cells import CellStore, Done, LocalNotifier, Transition, WhileHeld
from .transport.settings import options_in
from .url import without_secrets


class MemoryEngine(Engine):
    """Keeps the leases in a dict, of which it is the cells. A fork leaves the child with an empty one."""

    scope = "process"

    def __init__(self, name: str = "memory://") -> None:
        self.name = name
        self.switchboard = Switchboard()
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self.states: dict[str, KeyState] = {}
        self.blank = KeyState()
        """The state of a key that has none, with the highest fence of all keys that had one."""
        self.moment = Moment(0.0, 0)
        """When the change under way happens: there is one at a time."""
        self.pruned_above = 128
        """How many keys there may be before those whose leases have ended are searched and dropped."""
        self.marks: dict[str, float] = {}
        """When each mark ends."""
        self.marks_pruned_above = 128
        """How many marks there may be before those that have ended are dropped."""
        self.texts: dict[str, dict[str, tuple[float, str]]] = {}
        """The texts of each group by their keys, and when each ends."""
        self.mutex = RLock()
        self.busy = False
        """Whether the thread that has the mutex is changing a state."""

    def keeps_anything(self) -> bool:
        return bool(self.states or self.marks or self.texts)

    def connect(self, runtime: Runtime) -> CellStore:
        self.now = runtime.now  # All runtimes have the same clock.
        notifier = LocalNotifier(self.switchboard)
        return CellStore(self, notifier, patience=0, beat_patience=0, texts=_MemoryTexts(self))

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        states, moment = self.states, self.moment
        with self.mutex:
            if self.busy:  # A signal handler has interrupted this thread below.
                raise EngineUnavailable(self.name, "this thread is already using it")
            try:
                self.busy = True
                moment.now = now = self.now()
                moment.fence_floor = time.time_ns() // 1000
                step = transition(states.get(key) or self.blank, moment)
                states[key] = state = step.state
                over = [] if state.grants or state.places or state.voided else [(key, state)]
                if len(states) > self.pruned_above:
                    # Rarely, so that it costs each acquisition next to nothing.
                    ended = ((each, current(states[each], moment)) for each in states)
                    over = [each for each in ended if each[1].blank]
                    self.pruned_above = max(128, 2 * (len(states) - len(over)))
                for each, blank in over:
                    if blank.fence > self.blank.fence:
                        self.blank = blank
                    del states[each]
            finally:
                self.busy = False
        return Done(step, now)

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done]:
        return {key: await self.update(key, each, patience=0) for key, each in changes.items()}

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        return [key for key in list(self.states) if key.startswith(prefix)]

    async def mark(self, key: str, keep: float | None) -> None:
        now = self.now()
        self.marks[key] = float("inf") if keep is None else now + keep
        if len(self.marks) > self.marks_pruned_above:
            for each in [each for each, ends in list(self.marks.items()) if ends <= now]:
                self.marks.pop(each, None)
            self.marks_pruned_above = max(128, 2 * len(self.marks))

    async def marked(self, key: str) -> bool:
        return self.now() < self.marks.get(key, 0.0)


class _MemoryTexts(Texts):
    """The texts of a memory engine."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._before_sweep = 0
        """How many texts are kept before those that have ended are removed."""

    async def find(self, key: str, group: str) -> Found:
        kept, now = self._kept(group), self._engine.now()
        first = min((ends for ends, _ in kept.values()), default=now)
        return Found(kept[key][1] if key in kept else None, len(kept), max(0.0, first - now))

    async def keep(self, key: str, group: str, text: str, *, owner: str, seconds: float) -> bool:
        texts = self._engine.texts

        def write() -> None:
            self._before_sweep -= 1
            if self._before_sweep < 0:
                for each in list(texts):
                    texts[each] = self._kept(each)
                    if not texts[each]:
                        del texts[each]
                # As many as are left, so that each text costs about one look.
                self._before_sweep = sum(map(len, texts.values()))
            texts.setdefault(group, {})[key] = self._engine.now() + seconds, text

        writing = WhileHeld(owner, write)
        await self._engine.update(key, writing, patience=0)
        return writing.done

    async def forget(self, key: str, group: str) -> bool:
        with self._engine.mutex:
            return self._engine.texts.get(group, {}).pop(key, None) is not None

    async def all(self, prefix: str, limit: int) -> list[tuple[str, str]]:
        groups = map(self._kept, list(self._engine.texts))
        texts = ((key, text) for group in groups for key, (_, text) in group.items())
        return [each for each in texts if each[0].startswith(prefix)][:limit]

    def _kept(self, group: str) -> dict[str, tuple[float, str]]:
        """Return the texts of a group that have not ended."""
        now = self._engine.now()
        texts = self._engine.texts.get(group, {}).copy()
        return {key: text for key, text in texts.items() if text[0] > now}


def open_engine(url: str) -> MemoryEngine:
    """Return the engine of a URL, one for each: ``memory://``, ``memory://tests``."""
    options_in(url.partition("?")[2], {}, engine="memory://")
    return MemoryEngine(without_secrets(url))
