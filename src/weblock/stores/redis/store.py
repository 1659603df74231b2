"""The lock protocol on a Redis or Valkey server."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any, Final

from ..._core.ports import Found, Look, Pulse, Reply, Store, Texts
from ..._core.table import GONE, Claim, Waiting
from ...errors import ConfigurationError, EngineUnavailable
from .calls import Call, Layout, look_of, micros, reply_of
from .scripts import (
    ACQUIRE,
    ASK_RELEASE,
    BEAT,
    FORCE_RELEASE,
    GROUP,
    KEEP_TEXT,
    LOOK,
    RAISE_FENCE,
    READ,
    RELEASE,
    RENEW,
    TRANSFER,
    WAIT_BEHIND,
    WRITE,
    Script,
)
from .wire import Wire

Answering = Coroutine[Any, Any, Reply]


class RedisStore(Store):
    """One script for each operation, in one round trip."""

    def __init__(self, name: str, layout: Layout, wire: Wire) -> None:
        self._name = name
        self._layout = layout
        self._wire = wire
        self.texts = RedisTexts(layout, wire)

    process = property(attrgetter("_wire.links.process"))

    def acquire(
        self,
        key: str,
        claim: Claim,
        *,
        room: int,
        ticket: int = 0,
        may_repeat: Callable[[], bool] | None = None,
    ) -> Answering:
        args = (*self._who(claim), str(room), str(ticket))
        if claim.limit != 1:
            args += (str(claim.limit),)
        return self._asked(ACQUIRE, key, *args, may_repeat=may_repeat)

    def release(self, key: str, owner: str, *, void: float = 0) -> Answering:
        return self._asked(RELEASE, key, owner, micros(void))

    async def release_some(
        self, releases: Sequence[tuple[str, str, float]]
    ) -> Sequence[EngineUnavailable | None]:
        calls = [
            Call(RELEASE, *self._layout.of_key(key), (owner, micros(void)))
            for key, owner, void in releases
        ]
        answers = map(self._read, await self._wire.run_all(calls))
        return [each if isinstance(each, EngineUnavailable) else None for each in answers]

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        alike: dict[tuple[str, bool], list[Pulse]] = {}
        for pulse in pulses:
            alike.setdefault((pulse.key, pulse.waits), []).append(pulse)
        calls = []
        for (key, waits), some in alike.items():
            args = (part for pulse in some for part in (pulse.owner, micros(pulse.ttl)))
            script = BEAT if waits else RENEW
            calls.append(Call(script, *self._layout.of_key(key), tuple(args)))
        replies: dict[str, Reply | EngineUnavailable] = {}
        for some, outcome in zip(alike.values(), await self._wire.run_all(calls), strict=True):
            raws = [outcome] * len(some) if isinstance(outcome, Exception) else outcome
            for pulse, raw in zip(some, raws, strict=True):
                replies[pulse.owner] = self._read(raw)
        return [replies[pulse.owner] for pulse in pulses]

    def _read(self, raw: Any) -> Reply | EngineUnavailable:
        try:
            if isinstance(raw, Exception):
                raise raw
            return reply_of(raw)
        except EngineUnavailable as error:
            return error
        except (ValueError, TypeError, IndexError) as error:
            reason = error.message if isinstance(error, ConfigurationError) else str(error)
            failure = EngineUnavailable(self._name, reason)
            failure.__cause__ = error
            return failure

    def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Answering:
        return self._asked(TRANSFER, key, owner, *self._who(claim))

    def force_release(self, key: str) -> Answering:
        return self._asked(FORCE_RELEASE, key)

    def ask_release(self, key: str) -> Answering:
        return self._asked(ASK_RELEASE, key)

    def wait_behind(self, key: str, claim: Claim, *, ticket: int, until: float) -> Answering:
        """Give the lease back if an earlier caller waits, and wait behind it.

        A lease that does not end at ``until`` stays: it has been requested again.
        """
        return self._asked(WAIT_BEHIND, key, *self._who(claim), str(ticket), micros(until))

    def raise_fence(self, key: str, owner: str, fence: int) -> Answering:
        """Raise the fence of the owner's lease, and of all that follow, to at least this one."""
        return self._asked(RAISE_FENCE, key, owner, str(fence))

    async def clock(self) -> Reply:
        """Return an answer that tells nothing but the time of the only server."""
        return Reply(GONE, await self._wire.clock())

    async def look(self, key: str) -> Look:
        return look_of(await self._wire.run(Call(LOOK, *self._layout.of_key(key))))

    async def mark(self, key: str, keep: float | None) -> None:
        lasting = () if keep is None else ("PX", f"{math.ceil(keep * 1000)}")
        command = ("DEL",) if keep == 0 else ("SET", "1", *lasting)
        await self._wire.run(Call(WRITE, *self._layout.mark(key), command))

    async def marked(self, key: str) -> bool:
        return bool(await self._wire.run(Call(READ, *self._layout.mark(key), ("EXISTS",))))

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        found: dict[str, None] = {}  # A scan may tell of a key twice.
        async for names in self._wire.scan(self._layout.pattern(prefix)):
            keys = [key for name in names if (key := self._layout.key_in(name))]
            calls = [Call(LOOK, *self._layout.of_key(key)) for key in keys]
            for key, outcome in zip(keys, await self._wire.run_each(calls), strict=True):
                state = look_of(outcome).state
                if state.grants or state.places:  # Else it is only remembered for a while.
                    found[key] = None
            if len(found) >= limit:
                break
        return tuple(found)[:limit]

    async def _asked(
        self,
        script: Script,
        key: str,
        *args: str,
        may_repeat: Callable[[], bool] | None = None,
    ) -> Reply:
        bucket, keys = self._layout.of_key(key)
        try:
            reply = reply_of(await self._wire.run(Call(script, bucket, keys, args, may_repeat)))
        except (ValueError, TypeError, IndexError) as error:
            if isinstance(error, ConfigurationError) and script is not RELEASE:
                raise
            # A caller that releases can do nothing about it: the keeper tries again, as for an outage.
            reason = error.message if isinstance(error, ConfigurationError) else str(error)
            raise EngineUnavailable(self._name, reason) from error
        if type(reply.answer) is Waiting:
            self._wire.links.listen()
        return reply

    def _who(self, claim: Claim) -> tuple[str, ...]:
        # The claim of a quorum names no process.
        return claim.owner, claim.process or self.process, claim.label, micros(claim.ttl)


_FIND: Final = ("HGET", "text")


class RedisTexts(Texts):
    """Texts in hashes. In a cluster, a group counts texts of several servers."""

    def __init__(self, layout: Layout, wire: Wire) -> None:
        self._layout = layout
        self._wire = wire

    async def find(self, key: str, group: str) -> Found:
        finding = Call(READ, *self._layout.text(key, group), _FIND)
        counting = Call(GROUP, *self._layout.group(group))
        text, (count, rest) = await self._wire.run_each([finding, counting])
        return Found(text.decode() if text else None, count, rest / 1000)

    async def keep(self, key: str, group: str, text: str, *, owner: str, seconds: float) -> bool:
        millis = str(math.ceil(seconds * 1000))
        keeping = Call(KEEP_TEXT, *self._layout.text(key, group), (owner, millis, text))
        kept = await self._wire.run(keeping)
        if kept:  # Only then it is counted.
            await self._wire.run(Call(GROUP, *self._layout.group(group), (key, millis)))
        return bool(kept)

    async def forget(self, key: str, group: str) -> bool:
        forgetting = Call(WRITE, *self._layout.text(key, group), ("DEL",))
        uncounting = Call(GROUP, *self._layout.group(group), (key, "0"))
        found, _ = await self._wire.run_each([forgetting, uncounting])
        return bool(found)

    async def all(self, prefix: str, limit: int) -> list[tuple[str, str]]:
        found: dict[tuple[str, str], str] = {}  # A scan may tell of a key twice.
        async for names in self._wire.scan(self._layout.pattern(prefix, "text:*")):
            parts = [each for name in names if (each := self._layout.key_in(name, "text"))]
            places = [(key, group) for group, _, key in (each.partition(":") for each in parts)]
            calls = [Call(READ, *self._layout.text(*each), _FIND) for each in places]
            texts = await self._wire.run_each(calls)
            found |= {each: text.decode() for each, text in zip(places, texts, strict=True) if text}
            if len(found) >= limit:
                break
        return [(key, text) for (key, _), text in found.items()][:limit]
