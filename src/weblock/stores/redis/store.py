"""The lock protocol on a Redis or Valkey server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..._core.ports import Look, Pulse, Reply, Store
from ..._core.table import Claim, Waiting
from ...errors import ConfigurationError, EngineUnavailable
from .calls import Call, Layout, look_of, micros, reply_of
from .scripts import (
    ACQUIRE,
    ASK_RELEASE,
    BEAT,
    FORCE_RELEASE,
    LOOK,
    MARK,
    MARKED,
    RAISE_FENCE,
    RELEASE,
    RENEW,
    TRANSFER,
    WAIT_BEHIND,
)
from .wire import Wire


class RedisStore(Store):
    """One script for each operation, in one round trip."""

    def __init__(self, name: str, layout: Layout, wire: Wire) -> None:
        self._name = name
        self._layout = layout
        self._wire = wire

    @property
    def process(self) -> str:
        return self._wire.links.process

    async def acquire(self, key: str, claim: Claim, *, room: int, ticket: int = 0) -> Reply:
        bucket, keys = self._layout.of_key(key)
        who = (claim.owner, claim.process, claim.label, micros(claim.ttl))
        args: tuple[str, ...] = (*who, str(room), str(ticket))
        if claim.limit != 1:
            args = (*args, str(claim.limit))
        reply = self._reply(await self._wire.run(Call(ACQUIRE, bucket, keys, args)))
        if isinstance(reply.answer, Waiting):
            self._wire.links.listen()
        return reply

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        bucket, keys = self._layout.of_key(key)
        try:
            outcome = await self._wire.run(Call(RELEASE, bucket, keys, (owner, micros(void))))
        except ConfigurationError as error:
            # A caller that releases can do nothing about it: the keeper tries again, as for an outage.
            raise EngineUnavailable(self._name, str(error)) from error
        return self._reply(outcome)

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        alike: dict[tuple[str, bool], list[Pulse]] = {}
        for pulse in pulses:
            alike.setdefault((pulse.key, pulse.waits), []).append(pulse)
        calls = [self._heartbeats(*of, some) for of, some in alike.items()]
        replies: dict[str, Reply | EngineUnavailable] = {}
        for some, outcome in zip(alike.values(), await self._wire.run_all(calls), strict=True):
            replies |= self._replies_to(some, outcome)
        return [replies[pulse.owner] for pulse in pulses]

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        bucket, keys = self._layout.of_key(key)
        args = (owner, claim.owner, claim.process, claim.label, micros(claim.ttl))
        return self._reply(await self._wire.run(Call(TRANSFER, bucket, keys, args)))

    async def force_release(self, key: str) -> Reply:
        bucket, keys = self._layout.of_key(key)
        return self._reply(await self._wire.run(Call(FORCE_RELEASE, bucket, keys)))

    async def ask_release(self, key: str) -> Reply:
        bucket, keys = self._layout.of_key(key)
        return self._reply(await self._wire.run(Call(ASK_RELEASE, bucket, keys)))

    async def wait_behind(self, key: str, claim: Claim, *, ticket: int, until: float) -> Reply:
        """Give the lease back if an earlier caller waits, and wait behind it.

        A lease that does not end at ``until`` stays: it has been requested again.
        """
        bucket, keys = self._layout.of_key(key)
        who = (claim.owner, claim.process, claim.label, micros(claim.ttl))
        args = (*who, str(ticket), micros(until))
        return self._reply(await self._wire.run(Call(WAIT_BEHIND, bucket, keys, args)))

    async def raise_fence(self, key: str, owner: str, fence: int) -> Reply:
        """Raise the fence of the owner's lease, and of all that follow, to at least this one."""
        bucket, keys = self._layout.of_key(key)
        return self._reply(
            await self._wire.run(Call(RAISE_FENCE, bucket, keys, (owner, str(fence))))
        )

    async def clock(self) -> float:
        """Return what the clock of the only server shows."""
        return await self._wire.clock()

    async def look(self, key: str) -> Look:
        bucket, keys = self._layout.of_key(key)
        return look_of(await self._wire.run(Call(LOOK, bucket, keys)))

    async def mark(self, key: str, keep: float | None) -> None:
        bucket = self._layout.bucket(key)
        names = (self._layout.mark(bucket, key),)
        millis = "for good" if keep is None else f"{math.ceil(keep * 1000)}"
        await self._wire.run(Call(MARK, bucket, names, (millis,)))

    async def marked(self, key: str) -> bool:
        bucket = self._layout.bucket(key)
        names = (self._layout.mark(bucket, key),)
        return bool(await self._wire.run(Call(MARKED, bucket, names)))

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        found: dict[str, None] = {}  # A scan may tell of a key twice.
        async for names in self._wire.scan(self._layout.pattern(prefix)):
            found |= dict.fromkeys(await self._in_use(names))
            if len(found) >= limit:
                break
        return tuple(found)[:limit]

    async def _in_use(self, names: Sequence[str]) -> list[str]:
        """Return the keys that have a holder or waiters; the others only remember a fence."""
        keys = [key for name in names if (key := self._layout.lock_of(name))]
        calls = [Call(LOOK, *self._layout.of_key(key)) for key in keys]
        looks = await self._wire.run_all(calls)
        used: list[str] = []
        for key, outcome in zip(keys, looks, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            if not look_of(outcome).state.blank:
                used.append(key)
        return used

    def _heartbeats(self, key: str, waits: bool, pulses: Sequence[Pulse]) -> Call:  # noqa: FBT001
        bucket, keys = self._layout.of_key(key)
        args = [part for pulse in pulses for part in (pulse.owner, micros(pulse.ttl))]
        return Call(BEAT if waits else RENEW, bucket, keys, tuple(args))

    def _replies_to(
        self, pulses: Sequence[Pulse], outcome: Any
    ) -> dict[str, Reply | EngineUnavailable]:
        if isinstance(outcome, Exception):
            if not isinstance(outcome, EngineUnavailable):
                outcome = EngineUnavailable(self._name, str(outcome))
            return dict.fromkeys((pulse.owner for pulse in pulses), outcome)
        replies: dict[str, Reply | EngineUnavailable] = {}
        for pulse, raw in zip(pulses, outcome, strict=True):
            try:
                replies[pulse.owner] = self._reply(raw)
            except EngineUnavailable as error:
                replies[pulse.owner] = error
        return replies

    def _reply(self, raw: Any) -> Reply:
        try:
            return reply_of(raw)
        except (ValueError, TypeError, IndexError) as error:
            raise EngineUnavailable(self._name, str(error)) from error
