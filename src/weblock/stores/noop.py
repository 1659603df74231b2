"""``noop://``: every caller gets every key at once. For development without locking."""

from __future__ import annotations

from .._core.ports import Reply, Runtime
from .._core.table import SHARED, Claim
from .cells import CellStore, LocalNotifier
from .memory import MemoryEngine
from .transport.settings import options_in
from .url import without_secrets


class _AllShare(CellStore):
    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        return await super().acquire(key, claim._replace(limit=SHARED), room=room)


class NoopEngine(MemoryEngine):
    """The memory engine, where all leases are shared. Fences still increase."""

    scope = "none"

    def connect(self, runtime: Runtime) -> CellStore:
        super().connect(runtime)
        return _AllShare(self, LocalNotifier(self.switchboard), patience=0, beat_patience=0)


def open_engine(url: str) -> NoopEngine:
    """Return the engine that grants everything."""
    options_in(url.partition("?")[2], {}, engine="noop://")
    return NoopEngine(without_secrets(url))
