"""``noop://``: never locks. For development without an engine; nothing is serialized."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Final

from .._core.ports import Engine, Look, Pulse, Reply, Runtime, Store, Switchboard
from .._core.table import Asked, Claim, Gone, Grant, Held, KeyState, Released
from .marks import MarksInProcess
from .transport.options import options_in
from .url import without_secrets

PRUNED_FROM: Final = 128
"""How many leases there may be before ended ones are searched and dropped."""


class NoopEngine(Engine):
    """Grants every key to every caller at once. Fences still increase."""

    scope = "none"

    def __init__(self, name: str = "noop://") -> None:
        self.name = name
        self.switchboard = Switchboard()
        self.fences = itertools.count(int(time.time() * 1_000_000))
        self.held: dict[str, _Lease] = {}
        self.pruned_above = PRUNED_FROM
        self.marks = MarksInProcess()

    def connect(self, runtime: Runtime) -> Store:
        return _NoopStore(self, runtime)

    def prune(self, now: float) -> None:
        """Drop leases that have ended, whenever their number has doubled."""
        for owner, lease in tuple(self.held.items()):
            if lease.grant.until <= now:
                self.held.pop(owner, None)
        self.pruned_above = max(PRUNED_FROM, 2 * len(self.held))


class _Lease:
    """What one owner has, for observers."""

    __slots__ = ("asked", "grant", "key")

    def __init__(self, key: str, grant: Grant) -> None:
        self.key = key
        self.grant = grant
        self.asked = False


class _NoopStore(Store):
    process = ""

    def __init__(self, engine: NoopEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        now = self._runtime.now()
        grant = Grant(claim, next(self._engine.fences), now, now + claim.ttl, confirmed=True)
        self._engine.held[claim.owner] = _Lease(key, grant)
        if len(self._engine.held) > self._engine.pruned_above:
            self._engine.prune(now)
        return Reply(Held(grant.fence, grant.until), now)

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply]:
        now = self._runtime.now()
        return [Reply(self._refreshed(pulse, now), now) for pulse in pulses]

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        mine = self._engine.held.pop(owner, None)
        return Reply(Gone() if mine is None else Released(), self._runtime.now())

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        now = self._runtime.now()
        lease = self._engine.held.pop(owner, None) or self._engine.held.get(claim.owner)
        if lease is None:
            return Reply(Gone(), now)
        lease.grant = lease.grant._replace(claim=claim, until=now + claim.ttl)
        self._engine.held[claim.owner] = lease
        return Reply(Held(lease.grant.fence, lease.grant.until), now)

    async def force_release(self, key: str) -> Reply:
        """Release the leases of all who have the key."""
        now = self._runtime.now()
        grants = self._grants_of(key, now)
        for grant in grants:
            self._engine.held.pop(grant.claim.owner, None)
        return Reply(Released() if grants else Gone(), now)

    async def ask_release(self, key: str) -> Reply:
        """Ask all who have the key."""
        now = self._runtime.now()
        leases = [lease for lease in self._leases(now) if lease.key == key]
        for lease in leases:
            lease.asked = True
        return Reply(Asked() if leases else Gone(), now)

    async def look(self, key: str) -> Look:
        """Show all who have the key."""
        now = self._runtime.now()
        grants = sorted(self._grants_of(key, now), key=lambda grant: grant.fence)
        return Look(KeyState(grants[-1].fence, tuple(grants)) if grants else KeyState(), now)

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        now = self._runtime.now()
        keys = {lease.key for lease in self._leases(now) if lease.key.startswith(prefix)}
        return sorted(keys)[:limit]

    async def mark(self, key: str, keep: float | None) -> None:
        self._engine.marks.put(key, keep)

    async def marked(self, key: str) -> bool:
        return self._engine.marks.has(key)

    def _refreshed(self, pulse: Pulse, now: float) -> Held | Gone:
        lease = self._engine.held.get(pulse.owner)
        if lease is None:
            return Gone()
        lease.grant = lease.grant._replace(until=max(lease.grant.until, now + pulse.ttl))
        return Held(lease.grant.fence, lease.grant.until, asked=lease.asked)

    def _grants_of(self, key: str, now: float) -> list[Grant]:
        return [lease.grant for lease in self._leases(now) if lease.key == key]

    def _leases(self, now: float) -> list[_Lease]:
        return [lease for lease in tuple(self._engine.held.values()) if now < lease.grant.until]


def open_engine(url: str) -> NoopEngine:
    """Return the engine that grants everything."""
    options_in(url.partition("?")[2], {}, engine="noop://")
    return NoopEngine(without_secrets(url))
