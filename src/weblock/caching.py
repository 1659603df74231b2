"""Values that are kept in somebody's cache, and computed by one caller at a time.

Whoever finds none takes the lock of the key and looks a second time, since another may have
computed it meanwhile. An entry says by itself until when it is fresh, so that any cache will do,
also one that knows no expiry.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, NamedTuple, Protocol, Required, TypeVar, cast

from ._options import SHORTEST_EXPIRY, Duration, HoldOptions, seconds
from .errors import ConfigurationError, EngineRecovering, LeaseLost, LockTimeout
from .keys import check_key

R = TypeVar("R")


class Codec(Protocol):
    """Makes text or bytes of values, and values of those again, as ``json`` and ``pickle`` do."""

    def dumps(self, value: Any, /) -> str | bytes:
        """What the cache is given."""

    def loads(self, data: Any, /) -> Any:
        """What was given to ``dumps``. Raises ``ValueError`` for what did not come from there."""


class CacheOptions(HoldOptions, total=False):
    """How values are cached; the options of ``hold`` say how they are computed.

    - ``expiry``: for how many seconds a value is fresh, from when it was computed.
    - ``cache``: what keeps it: a cache of Django, a client of Redis, Valkey or memcached, or any
      object with ``get(key)``, which returns ``None`` for what it has not, and ``set(key, value)``.
      ``AsyncLocks`` wants one that does not block, where there is a choice.
    - ``stale``: for how many seconds after its expiry a value is served while somebody computes
      the next one (0: everybody waits for that).
    - ``codec``: for a cache of text or bytes only: ``json``, ``pickle``, or what has their ``dumps``
      and ``loads`` (``json`` for the clients above; others are given the values as they are).
    """

    expiry: Required[Duration]
    cache: Required[Any]
    stale: Duration
    codec: Codec | None


class Entry(NamedTuple):
    """A value, and the wall clock's time until which it is fresh."""

    value: Any
    fresh_until: float


class Keeping:
    """How values are kept in a cache, which suspends or blocks."""

    def __init__(self, options: CacheOptions, *, suspends: bool) -> None:
        if missing := {"expiry", "cache"} - options.keys():
            raise TypeError(f"cached() wants {' and '.join(sorted(missing))}")
        self._suspends = suspends
        self._cache = options["cache"]
        self._expiry = seconds("expiry", options["expiry"], least=SHORTEST_EXPIRY)
        self._stale = seconds("stale", options.get("stale", 0))
        self._codec = options.get("codec") or (json if _keeps_bytes(self._cache) else None)

    async def look(self, key: str) -> Entry | None:
        """What is kept under a key; nothing, if it is not ours."""
        found = await self._answer(self._method("get")(key))
        if self._codec and found is not None:
            try:
                found = self._codec.loads(found)
            except Exception:  # noqa: BLE001 - each codec has errors of its own for what is not its
                return None
        if isinstance(found, dict) and found.keys() == {_VALUE, _FRESH_UNTIL}:
            return Entry(found[_VALUE], found[_FRESH_UNTIL])
        return None

    async def keep(self, key: str, value: R) -> R:
        """Keeps a value, and returns it as everybody else will see it."""
        entry: Any = {_VALUE: value, _FRESH_UNTIL: time.time() + self._expiry}
        if self._codec:
            try:
                entry = self._codec.dumps(entry)
            except TypeError as error:
                raise ConfigurationError(
                    f"what was computed for {key!r:.200} is nothing that this cache can keep"
                    f" ({error}): compute something else, or give codec=pickle"
                ) from error
            value = self._codec.loads(entry)[_VALUE]
        put = self._method("set")
        await self._answer(put(key, entry, **self._for_as_long_as_served(put)))
        return value

    def serves(self, entry: Entry) -> bool:
        """Whether an entry may be served while the next one is computed."""
        return time.time() < entry.fresh_until + self._stale

    def _for_as_long_as_served(self, put: Callable[..., Any]) -> dict[str, int]:
        """How the cache is told how long to keep an entry, if it can be told. It may do so longer."""
        names = inspect.signature(put).parameters
        word = next((word for word in _WORDS_FOR_EXPIRY if word in names), None)
        length = self._expiry + self._stale
        if _driver(self._cache) == "pymemcache":
            length = min(length, _LONGEST_IN_MEMCACHED)
        return {word: math.ceil(length * 1000 if word == "px" else length)} if word else {}

    def _method(self, name: str) -> Callable[..., Any]:
        """Django's caches have those for asyncio beside the others."""
        names = (f"a{name}", name) if self._suspends else (name,)
        for each in names:
            method = getattr(self._cache, each, None)
            if callable(method):
                return cast("Callable[..., Any]", method)
        raise ConfigurationError(f"cache={self._cache!r:.200} has no method {name!r}")

    async def _answer(self, answer: Any) -> Any:
        if inspect.isawaitable(answer):
            if self._suspends:
                return await answer
            if inspect.iscoroutine(answer):
                answer.close()
            raise ConfigurationError(
                f"cache={self._cache!r:.200} is asynchronous: give it to AsyncLocks, or another one"
            )
        if self._suspends and _driver(self._cache) in _WITH_TWO_CLIENTS:
            raise ConfigurationError(
                f"cache={self._cache!r:.200} blocks the event loop: give a client of redis.asyncio"
            )
        return answer


class Turn(Protocol):
    """The lease of the one whose turn it is to compute."""

    def check(self) -> None:
        """Raises ``LeaseLost``."""


T = TypeVar("T", bound=Turn)


class Turns(NamedTuple, Generic[T]):
    """How it is made sure that one at a time computes."""

    take: Callable[[str, HoldOptions], Awaitable[T]]
    give_back: Callable[[T], Awaitable[None]]
    options: HoldOptions


async def value_of(
    key: str, compute: Callable[[], Awaitable[R]], keeping: Keeping, turns: Turns[T]
) -> R:
    """What is kept under a key; if nothing is that may be served, one caller computes it."""
    entry = await keeping.look(check_key(key))
    if entry and _is_fresh(entry):
        return cast("R", entry.value)
    if entry and keeping.serves(entry):
        try:
            turn = await turns.take(key, {**turns.options, "wait": 0})
        except (LockTimeout, EngineRecovering):
            return cast("R", entry.value)  # Somebody is at it, or may be.
    else:
        turn = await turns.take(key, turns.options)
    try:
        return await _look_again_or_compute(key, compute, keeping, turn)
    finally:
        with contextlib.suppress(LeaseLost):
            await turns.give_back(turn)


async def _look_again_or_compute(
    key: str, compute: Callable[[], Awaitable[R]], keeping: Keeping, turn: Turn
) -> R:
    entry = await keeping.look(key)
    if entry and _is_fresh(entry):
        return cast("R", entry.value)
    value = await compute()
    try:
        turn.check()
    except LeaseLost:
        return value  # It is true all the same; but another may have kept a later one.
    return await keeping.keep(key, value)


def of_hold(options: CacheOptions) -> HoldOptions:
    """The options that are not about the cache."""
    rest = {name: each for name, each in options.items() if name not in _ABOUT_THE_CACHE}
    return cast("HoldOptions", rest)


_ABOUT_THE_CACHE: Final = {"expiry", "cache", "stale", "codec"}
_VALUE: Final = "value"
_FRESH_UNTIL: Final = "fresh_until"
_OF_BYTES: Final = {"redis", "valkey", "pymemcache"}
_WITH_TWO_CLIENTS: Final = {"redis", "valkey"}
_LONGEST_IN_MEMCACHED: Final = 30 * 86400.0
"""Seconds; what is longer is taken for a moment on its clock, and in the past."""
_WORDS_FOR_EXPIRY: Final = ("px", "timeout", "ttl", "ex", "expire", "expiry")


def _is_fresh(entry: Entry) -> bool:
    return time.time() < entry.fresh_until


def _driver(cache: object) -> str:
    return type(cache).__module__.partition(".")[0]


def _keeps_bytes(cache: object) -> bool:
    return _driver(cache) in _OF_BYTES
