"""``noop://``: never locks. For development without an engine; nothing is serialized."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from .._core.ports import Pulse, Reply, Runtime, Store, Switchboard
from .._core.table import Claim, Gone, Held, Released
from .url import without_secrets

SCHEMES = ("noop",)


class NoopEngine:
    """Grants every key to everybody, at once. Fences still increase."""

    scope = "none"

    def __init__(self, name: str = "noop://") -> None:
        self.name = name
        self.switchboard = Switchboard()
        self.fences = itertools.count(int(time.time() * 1_000_000))
        self.held: dict[str, int] = {}

    def connect(self, runtime: Runtime) -> Store:
        return _NoopStore(self, runtime)

    def close(self) -> None:
        """Nothing is open."""


class _NoopStore:
    process = ""

    def __init__(self, engine: NoopEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        fence = self._engine.held[claim.owner] = next(self._engine.fences)
        return self._held(fence, claim.ttl)

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply]:
        held = self._engine.held
        return [
            self._held(held[pulse.owner], pulse.ttl)
            if pulse.owner in held
            else Reply(Gone(), self._runtime.now())
            for pulse in pulses
        ]

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        mine = self._engine.held.pop(owner, None)
        return Reply(Gone() if mine is None else Released(), self._runtime.now())

    def _held(self, fence: int, ttl: float) -> Reply:
        now = self._runtime.now()
        return Reply(Held(fence, now + ttl), now)


def open_engine(url: str) -> NoopEngine:
    """The engine that grants everything."""
    return NoopEngine(without_secrets(url))
