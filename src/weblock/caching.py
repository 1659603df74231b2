"""Values that are kept in a cache, and computed by one caller at a time.

A caller that finds no value acquires the lock of the key and looks again, because another may
have computed it meanwhile. The cache knows a value by the namespace and the key, as the engine knows
the lock: applications that share a cache do not share their values. An entry says until when it is
fresh, so any cache will do, even one without expiry.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol, Required, TypeVar, cast

from ._api import BaseLease, BaseLocks
from ._options import SHORTEST_EXPIRY, Duration, HoldOptions, alone, seconds
from .errors import ConfigurationError, EngineRecovering, LeaseLost, LockTimeout
from .keys import check_key, signature_of

R = TypeVar("R")


class Codec(Protocol):
    """Converts values to text or bytes and back, as ``json`` and ``pickle`` do."""

    def dumps(self, value: Any, /) -> str | bytes:
        """Return what the cache stores."""

    def loads(self, data: Any, /) -> Any:
        """Return what was given to ``dumps``. Raises ``ValueError`` for anything else."""


class CacheOptions(HoldOptions, total=False):
    """How values are cached. The options of ``hold`` say how the lock is held meanwhile."""

    expiry: Required[Duration]
    """How long a value is fresh, from when it was computed."""
    cache: Required[Any]
    """What stores the values.

    A Django cache, a client of Redis, Valkey or memcached, or any object with ``get(key)``, which
    returns ``None`` for a missing value, and ``set(key, value)``. ``AsyncLocks`` needs one that does
    not block, where there is a choice. The expiry is passed to a ``set`` that has a parameter for it:
    ``px`` (milliseconds), ``timeout``, ``ttl``, ``ex``, ``expire`` or ``expiry``.
    """
    stale: Duration
    """How long after its expiry a value is served while one caller computes the next (0)."""
    codec: Codec | None
    """Converts values for caches of text or bytes: ``json``, ``pickle`` or a ``Codec``.

    The default is ``json`` for the clients above; other caches get the values as they are.
    """


class Entry(NamedTuple):
    """A value, and until when it is fresh, by the wall clock."""

    value: Any
    fresh_until: float


class Keeping:
    """Stores values in a cache, which may block or be awaitable, under the locks of their keys."""

    def __init__(self, locks: BaseLocks, options: CacheOptions) -> None:
        if missing := {"expiry", "cache"} - options.keys():
            raise TypeError(f"cached() needs {' and '.join(sorted(missing))}")
        # Of several callers, one computes a value.
        of_hold = {name: each for name, each in options.items() if name not in _ABOUT_THE_CACHE}
        self._hold = alone(cast("HoldOptions", of_hold))
        locks._options.of_call(self._hold)
        self._locks = locks
        self._suspends = locks._runtime.suspends
        self._cache = options["cache"]
        self._expiry = seconds("expiry", options["expiry"], least=SHORTEST_EXPIRY)
        self._stale = seconds("stale", options.get("stale", 0))
        self._codec = options.get("codec") or (
            None if _OF_BYTES.isdisjoint(_drivers(self._cache)) else json
        )

    def check_class(self) -> None:
        """Raise ``ConfigurationError`` if the class of the cache hides how to set an expiry.

        It is enough for a decorator, which may run before a lazy cache can be opened.
        """
        if put := _method_of(type(self._cache), "set", suspends=self._suspends):
            _word_for_expiry(self._cache, put)

    async def value_of(self, key: str, compute: Callable[[], R] | Callable[[], Awaitable[R]]) -> R:
        """Return the cached value; if there is none that may be served, one caller computes it."""
        key = check_key(key)
        entry = await self._look(key)
        if entry and time.time() < entry.fresh_until:
            return cast("R", entry.value)
        _word_for_expiry(self._cache, self._method("set"))  # Before anything is computed.
        if entry and time.time() < entry.fresh_until + self._stale:
            try:
                turn = await self._locks._acquire((key,), {**self._hold, "wait": 0})
            except (LockTimeout, EngineRecovering):
                return cast("R", entry.value)  # Another caller computes it, or may.
        else:
            turn = await self._locks._acquire((key,), self._hold)
        locker, holdings = turn
        try:
            entry = await self._look(key)  # Again: another caller may have computed it before.
            if entry and time.time() < entry.fresh_until:
                return cast("R", entry.value)
            computing: Any = compute()
            value: R = await computing if self._suspends else computing
            try:
                BaseLease(locker, holdings).check()
            except LeaseLost:
                return value  # It is correct, but another caller may have stored a later one.
            return await self._keep(key, value)
        finally:
            with contextlib.suppress(LeaseLost):
                await locker.release(holdings)

    async def _look(self, key: str) -> Entry | None:
        """Return the entry of a key; ``None`` if there is none, or it is not ours."""
        found = await self._answer(self._method("get")(self._locks._options.prefix + key))
        if self._codec and found is not None:
            try:
                found = self._codec.loads(found)
            except Exception:  # noqa: BLE001 - each codec has errors of its own for what is not its
                return None
        if isinstance(found, dict) and found.keys() == {_VALUE, _FRESH_UNTIL}:
            return Entry(found[_VALUE], found[_FRESH_UNTIL])
        return None

    async def _keep(self, key: str, value: R) -> R:
        """Store a value, and return it as every other caller will get it."""
        entry: Any = {_VALUE: value, _FRESH_UNTIL: time.time() + self._expiry}
        if self._codec:
            try:
                entry = self._codec.dumps(entry)
            except TypeError as error:
                raise ConfigurationError(
                    f"the value that was computed for {key!r:.200} cannot be stored in this cache"
                    f" ({error}): return another value, or use codec=pickle"
                ) from error
            value = self._codec.loads(entry)[_VALUE]
        put = self._method("set")
        word = _word_for_expiry(self._cache, put)
        length = self._expiry + self._stale
        if _drivers(self._cache) & _OF_MEMCACHED:
            length = min(length, _LONGEST_IN_MEMCACHED)
        expiry = {word: math.ceil(length * 1000 if word == "px" else length)} if word else {}
        await self._answer(put(self._locks._options.prefix + key, entry, **expiry))
        return value

    def _method(self, name: str) -> Callable[..., Any]:
        """Return a method of the cache. Raises ``ConfigurationError`` if it has none."""
        if method := _method_of(self._cache, name, suspends=self._suspends):
            return method
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
        if self._suspends and _drivers(self._cache) & _WITH_TWO_CLIENTS:
            raise ConfigurationError(
                f"cache={self._cache!r:.200} blocks the event loop: give a client of redis.asyncio"
            )
        return answer


_ABOUT_THE_CACHE: Final = {"expiry", "cache", "stale", "codec"}
_VALUE: Final = "value"
_FRESH_UNTIL: Final = "fresh_until"
_OF_BYTES: Final = {"redis", "valkey", "pymemcache"}
_WITH_TWO_CLIENTS: Final = {"redis", "valkey"}
_LONGEST_IN_MEMCACHED: Final = 30 * 86400.0
"""Seconds; memcached takes a longer time for a date, which is in the past."""
_WORDS_FOR_EXPIRY: Final = ("px", "timeout", "ttl", "ex", "expire", "expiry", "exptime", "time")
_WORDS_OF_DRIVERS: Final = {"django": "timeout", "pymemcache": "expire", "pylibmc": "time"}
"""For classes whose ``set`` passes on whatever it is given, as django-redis' and ``HashClient``, or is written in C."""
_OF_MEMCACHED: Final = {"pymemcache", "memcache", "pylibmc", "aiomcache"}
_ANYTHING: Final = signature_of(lambda *args, **kwargs: None)  # noqa: ARG005
_PASSED_ON: Final = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _method_of(cache: object, name: str, *, suspends: bool) -> Callable[..., Any] | None:
    """Return a method of a cache. Django's caches have both kinds."""
    for each in (f"a{name}", name) if suspends else (name,):
        method = getattr(cache, each, None)
        if callable(method):
            return cast("Callable[..., Any]", method)
    return None


def _word_for_expiry(cache: object, put: Callable[..., Any]) -> str | None:
    """Return the parameter of ``put`` for the expiry; ``None`` if it has none.

    Raises ``ConfigurationError`` if ``put`` does not tell: entries would stay forever.
    """
    try:
        takes = signature_of(put)
    except ValueError:  # It is written in C, and says nothing of its parameters.
        takes = _ANYTHING
    for word in _WORDS_FOR_EXPIRY:
        if word in takes.parameters:
            return word
    if not any(each.kind in _PASSED_ON for each in takes.parameters.values()):
        return None
    for driver, word in _WORDS_OF_DRIVERS.items():
        if driver in _drivers(cache):
            return word
    raise ConfigurationError(
        f"cache={cache!r:.200} cannot be given an expiry, because its set() takes"
        f" {takes}: give an object with get(key) and set(key, value, timeout), which"
        " passes the seconds on"
    )


def _drivers(cache: object) -> set[str]:
    """Return the packages that the class of a cache and its base classes come from."""
    return {cls.__module__.partition(".")[0] for cls in type(cache).__mro__}
