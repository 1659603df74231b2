"""Values that are computed by one caller, and kept in caches of all kinds."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import inspect
import itertools
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pymemcache
import pytest
import redis
from django.core.cache.backends.base import BaseCache
from django.core.cache.backends.locmem import LocMemCache
from pymemcache.client.hash import HashClient
from pymemcache.client.retrying import RetryingClient

from tests.servers import fresh_url, shared
from tests.servers.memcached import Memcached
from tests.support.waiting import eventually, now
from weblock import AsyncLocks, ConfigurationError, InvalidKey, Locks, LockTimeout

LONG = 60.0


class PlainCache:
    """The least that will do: it knows no expiry."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.entries.get(key)

    def set(self, key: str, value: Any) -> None:
        self.entries[key] = value


class OpaqueCache(PlainCache):
    """It passes on whatever its ``set`` is given, as wrappers do."""

    def set(self, *args: Any, **kwargs: Any) -> None:
        self.given = kwargs
        super().set(*args)


class DjangoRedisCache(BaseCache):
    """A cache of Django whose ``set`` passes everything on, as that of django-redis does."""

    def __init__(self) -> None:
        super().__init__({})
        self.given: dict[str, Any] = {}

    def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        return None

    def set(self, *args: Any, **kwargs: Any) -> None:
        self.given = kwargs


class _WrittenInC:
    """A method of which nothing is known but that it can be called. It notes what it was told."""

    def __init__(self, told: list[dict[str, float]]) -> None:
        self._told = told

    @property
    def __signature__(self) -> inspect.Signature:
        raise ValueError("no signature found for builtin")

    def __call__(self, _key: str, _value: object, **expiry: float) -> None:
        self._told.append(expiry)


def client_that_takes(word: str | None, driver: str) -> Any:
    """A client of a driver, whose ``set`` takes the expiry by this word, or does not tell."""
    told: list[dict[str, float]] = []
    written_in_c = _WrittenInC(told)
    puts: dict[str | None, Any] = {
        "time": lambda _self, key, value, time=0: written_in_c(key, value, time=time),
        "exptime": lambda _self, key, value, exptime=0: written_in_c(key, value, exptime=exptime),
        None: written_in_c,
    }
    methods = {"get": lambda _self, _key: None, "set": puts[word], "told": told}
    return type("Client", (), {**methods, "__module__": driver})()


class OwnHashClient(HashClient):
    """A client of a project's own."""


class AsyncCache(PlainCache):
    """The same for asyncio, with an expiry that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.ttl = 0

    async def get(self, key: str) -> Any:
        await asyncio.sleep(0)
        return super().get(key)

    async def set(self, key: str, value: Any, ttl: int = 0) -> None:
        await asyncio.sleep(0)
        self.ttl = ttl
        super().set(key, value)


def a_redis_client() -> redis.Redis:
    """A client whose database nobody minds."""
    return redis.Redis(port=shared().port, username="default", max_connections=1000)


def an_async_client() -> redis.asyncio.Redis:
    """The same for asyncio."""
    return redis.asyncio.Redis(port=shared().port, username="default", max_connections=1000)


CACHES: dict[str, Callable[[], Any]] = {
    "django": lambda: LocMemCache(uuid.uuid4().hex, {}),
    "plain": PlainCache,
    "redis": a_redis_client,
}
ASYNC_CACHES = {**CACHES, "redis": an_async_client, "async": AsyncCache}


@pytest.fixture(params=["memory", "file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An engine that nobody has used."""
    return {
        "memory": lambda: f"memory://{uuid.uuid4().hex}",
        "file": lambda: f"file://{tmp_path}/locks",
        "redis": fresh_url,
    }[request.param]()


@pytest.fixture
def locks() -> Iterator[Locks]:
    """Locks on an engine that does not matter."""
    with Locks.from_url(f"memory://{uuid.uuid4().hex}") as locks:
        yield locks


@pytest.fixture(scope="module")
def memcached() -> Iterator[tuple[str, int]]:
    """The address of a server."""
    with contextlib.closing(Memcached()) as server:
        yield "127.0.0.1", server.port


@pytest.fixture
def key() -> str:
    """A key that no other test has in a cache of theirs."""
    return f"report:{uuid.uuid4().hex}"


class Computing:
    """Computes numbers, and counts how often, and how many at a time."""

    def __init__(self) -> None:
        self.calls = itertools.count(1)
        self.number = 0

    def __call__(self) -> int:
        self.number = next(self.calls)
        time.sleep(0.05)
        return self.number

    async def slowly(self) -> int:
        self.number = next(self.calls)
        await asyncio.sleep(0.05)
        return self.number


class TestOnce:
    """Of many who miss at the same time, one computes."""

    def test_two_hundred_threads_miss(self, url: str, key: str) -> None:
        """Two hundred threads that miss at once compute one value, and all get it."""
        cache, computing, together = a_redis_client(), Computing(), threading.Barrier(200)
        with Locks.from_url(url, wait=LONG) as locks, ThreadPoolExecutor(200) as pool:

            def one() -> int:
                together.wait(LONG)
                return locks.cached(key, computing, expiry=LONG, cache=cache)

            values = [each.result() for each in [pool.submit(one) for _ in range(200)]]
        assert values == [1] * 200
        cache.close()

    async def test_two_hundred_tasks_miss(self, url: str, key: str) -> None:
        """So do two hundred tasks."""
        computing = Computing()
        async with AsyncLocks.from_url(url, wait=LONG) as locks, an_async_client() as cache:
            misses = [
                locks.cached(key, computing.slowly, expiry=LONG, cache=cache) for _ in range(200)
            ]
            assert await asyncio.gather(*misses) == [1] * 200


class TestKeeping:
    @pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
    @pytest.mark.parametrize("value", [None, 0, "", ["a", {"b": None}]])
    def test_whatever_is_computed_is_kept(self, locks, key, cache, value) -> None:
        """A value is computed once, also where it is ``None`` or otherwise false."""
        cache, computed = cache(), []
        for _ in range(3):
            made = locks.cached(key, lambda: computed.append(1) or value, expiry=LONG, cache=cache)
            assert made == value
        assert computed == [1]

    @pytest.mark.parametrize("cache", ASYNC_CACHES.values(), ids=ASYNC_CACHES)
    async def test_caches_of_asyncio(self, key, cache) -> None:
        """Caches that suspend are awaited, and so are Django's where they can be."""
        cache, computed = cache(), []

        async def compute() -> str:
            computed.append(1)
            return "value"

        async with AsyncLocks.from_url("memory://") as locks:
            for _ in range(3):
                assert await locks.cached(key, compute, expiry=LONG, cache=cache) == "value"
        assert computed == [1]
        if hasattr(cache, "aclose"):
            await cache.aclose()

    @pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
    def test_a_value_ends_with_its_expiry(self, locks, key, cache) -> None:
        """What has expired is computed anew, whether or not the cache can be told of it."""
        cache, computing = cache(), Computing()
        assert locks.cached(key, computing, expiry=LONG, cache=cache) == 1
        assert locks.cached(f"{key}:2", computing, expiry=0.001, cache=cache) == 2
        time.sleep(0.002)
        assert locks.cached(f"{key}:2", computing, expiry=0.001, cache=cache) == 3

    def test_the_cache_is_told_of_the_expiry(self, locks, key) -> None:
        """In its own words and units, so that nothing is left behind; that includes ``stale``."""
        client = a_redis_client()
        asked = now()
        locks.cached(key, lambda: 1, expiry=1.5, cache=client, stale=10)
        left = client.pttl(f"default:{key}")
        assert 11_500 - 1000 * (now() - asked) - 1 <= left <= 11_500
        cache = AsyncCache()

        async def compute() -> int:
            return 1

        async def main() -> None:
            async with AsyncLocks.from_url("memory://") as async_locks:
                await async_locks.cached(key, compute, expiry=1.5, cache=cache)

        asyncio.run(main())
        assert cache.ttl == 2
        client.close()

    def test_all_get_the_same(self, locks, key) -> None:
        """Whoever computes a value gets it as the cache gives it to the others."""
        client = a_redis_client()
        made = [locks.cached(key, lambda: (1, 2), expiry=LONG, cache=client) for _ in range(2)]
        assert made == [[1, 2]] * 2
        client.close()

    def test_a_codec_for_other_values(self, locks, key) -> None:
        """JSON says what it cannot keep and what to do; pickle keeps it."""
        client, today = a_redis_client(), dt.date(2026, 11, 21)
        with pytest.raises(ConfigurationError, match="codec=pickle"):
            locks.cached(key, lambda: today, expiry=LONG, cache=client)
        for _ in range(2):
            made = locks.cached(key, lambda: today, expiry=LONG, cache=client, codec=pickle)
            assert made == today
        client.close()

    @pytest.mark.parametrize("expiry", [LONG, 40 * 86400])
    def test_clients_of_memcached(self, locks, key, memcached, expiry) -> None:
        """What is fresh for longer than a month is kept, though memcached counts no further."""
        computing = Computing()
        client = pymemcache.Client(memcached)
        for _ in range(2):
            assert locks.cached(key, computing, expiry=expiry, cache=client) == 1
        client.close()

    @pytest.mark.parametrize(
        "client_of",
        [
            pymemcache.Client,
            pymemcache.PooledClient,
            lambda server: pymemcache.HashClient([server]),
            lambda server: OwnHashClient([server]),
            lambda server: RetryingClient(pymemcache.Client(server)),
        ],
        ids=["plain", "pooled", "hash", "own", "retrying"],
    )
    def test_every_client_of_memcached_is_told_of_the_expiry(
        self, locks, key, memcached, client_of
    ) -> None:
        """An entry is gone from memcached when it is no longer served, whichever class wraps the client."""
        client = client_of(memcached)
        locks.cached(key, lambda: 1, expiry=0.5, cache=client)
        assert client.get(f"default:{key}") is not None
        eventually(lambda: client.get(f"default:{key}") is None)
        client.close()

    @pytest.mark.parametrize(
        ("driver", "word"), [("memcache", "time"), ("aiomcache", "exptime"), ("pylibmc", None)]
    )
    def test_other_clients_of_memcached_are_told_of_the_expiry(
        self, locks, key, driver, word
    ) -> None:
        """Each has a word of its own for it; a ``set`` that is written in C does not even say so."""
        cache = client_that_takes(word, driver)
        locks.cached(key, lambda: 1, expiry=LONG, cache=cache)
        assert cache.told == [{word or "time": LONG}]
        locks.cached(f"{key}:2", lambda: 1, expiry=40 * 86400, cache=cache)
        assert cache.told[1] == {word or "time": 30 * 86400}

    def test_a_cache_that_is_written_in_c(self, locks, key) -> None:
        """Where nothing says how to set an expiry, the error says what to do."""
        cache = client_that_takes(None, "elsewhere")
        with pytest.raises(
            ConfigurationError, match=r"takes \(\*args, \*\*kwargs\): give an object"
        ):
            locks.cached(key, lambda: 1, expiry=LONG, cache=cache)

    def test_a_django_cache_that_passes_everything_on(self, locks, key) -> None:
        """A cache of Django is told of the expiry as ``timeout``, also where ``set`` does not name it."""
        cache = DjangoRedisCache()
        locks.cached(key, lambda: 1, expiry=LONG, cache=cache)
        assert cache.given == {"timeout": LONG}

    @pytest.mark.parametrize("foreign", [b"not json", b"7", b'{"value": 1}', b"\xff"])
    def test_what_is_not_ours_is_replaced(self, locks, key, foreign) -> None:
        """Whatever else stands in the cache under the key counts as a miss."""
        client = a_redis_client()
        client.set(f"default:{key}", foreign)
        for _ in range(2):
            assert locks.cached(key, lambda: "ours", expiry=LONG, cache=client) == "ours"
        client.close()


class TestComputing:
    def test_an_error_is_raised_and_not_kept(self, locks, key) -> None:
        """It reaches the one who computed, the key is free at once, and the next one computes."""
        cache = PlainCache()
        with pytest.raises(ZeroDivisionError):
            locks.cached(key, lambda: 1 / 0, expiry=LONG, cache=cache)
        assert cache.entries == {}
        assert locks.cached(key, lambda: "well", expiry=LONG, cache=cache, wait=0) == "well"

    def test_the_next_in_turn_computes_after_an_error(self, locks, key) -> None:
        """Those who wait for one that fails do not fail with it."""
        gate, inside = threading.Event(), threading.Event()

        def fail() -> None:
            inside.set()
            assert gate.wait(LONG)
            raise ZeroDivisionError

        cache = PlainCache()
        with ThreadPoolExecutor(2) as pool:
            fails = pool.submit(locks.cached, key, fail, expiry=LONG, cache=cache)
            assert inside.wait(LONG)
            waits = pool.submit(locks.cached, key, lambda: "well", expiry=LONG, cache=cache)
            gate.set()
            assert waits.result(LONG) == "well"
            with pytest.raises(ZeroDivisionError):
                fails.result(LONG)

    def test_the_value_of_a_lost_lease_is_not_kept(self, locks, key) -> None:
        """It is returned, for it is true; but another may have kept a later one by then."""
        cache = PlainCache()

        def slow() -> str:
            time.sleep(0.3)
            return "late"

        made = locks.cached(key, slow, expiry=LONG, cache=cache, ttl=0.1, renew=False)
        assert made == "late"
        assert cache.entries == {}


class TestStale:
    def test_the_former_value_is_served_while_one_computes(self, locks, key) -> None:
        """Within ``stale`` seconds of the expiry, one computes, and the others do not wait."""
        cache, gate, inside = PlainCache(), threading.Event(), threading.Event()
        options = {"expiry": 0.001, "stale": LONG, "cache": cache}

        def slow() -> str:
            inside.set()
            assert gate.wait(LONG)
            return "new"

        locks.cached(key, lambda: "old", **options)
        time.sleep(0.002)
        with ThreadPoolExecutor(1) as pool:
            refreshing = pool.submit(locks.cached, key, slow, **{**options, "expiry": LONG})
            assert inside.wait(LONG)
            served = [locks.cached(key, lambda: "never", **options) for _ in range(3)]
            gate.set()
            assert refreshing.result(LONG) == "new"
        assert served == ["old"] * 3
        assert locks.cached(key, lambda: "never", **options) == "new"

    def test_what_is_too_old_is_not_served(self, locks, key) -> None:
        """After that, everybody waits for the next value."""
        cache = PlainCache()
        locks.cached(key, lambda: "old", expiry=0.001, stale=0.001, cache=cache)
        time.sleep(0.003)
        with locks.hold(key), ThreadPoolExecutor(1) as pool:
            late = pool.submit(
                locks.cached, key, lambda: 1, expiry=0.001, stale=0.001, cache=cache, wait=0.05
            )
            with pytest.raises(LockTimeout):
                late.result(LONG)


class TestNamespaces:
    def test_applications_that_share_a_cache_do_not_share_values(self) -> None:
        """Each computes its own, under its own lock, and a deleted entry is computed again."""
        cache, computed = PlainCache(), []

        def value_for(name: str) -> str:
            with Locks.from_url("memory://", namespace=name) as locks:
                return locks.cached(
                    "report", lambda: computed.append(name) or name, expiry=LONG, cache=cache
                )

        assert [value_for("shop"), value_for("bank"), value_for("shop")] == ["shop", "bank", "shop"]
        assert set(cache.entries) == {"shop:report", "bank:report"}
        del cache.entries["shop:report"]
        assert value_for("shop") == "shop"
        assert computed == ["shop", "bank", "shop"]

    async def test_and_neither_do_those_of_asyncio(self) -> None:
        """They share their values with blocking programs of their own namespace."""
        cache = PlainCache()

        async def value_for(name: str) -> str:
            async def compute() -> str:
                return name

            async with AsyncLocks.from_url("memory://", namespace=name) as locks:
                return await locks.cached("report", compute, expiry=LONG, cache=cache)

        assert [await value_for("shop"), await value_for("bank")] == ["shop", "bank"]
        with Locks.from_url("memory://", namespace="bank") as locks:
            assert locks.cached("report", lambda: "other", expiry=LONG, cache=cache) == "bank"


class TestDecorating:
    def test_arguments_make_the_key(self, locks, key) -> None:
        """Each call has the value of its own key, and the function its name."""
        cache, calls = PlainCache(), []

        @locks.cached("square:{number}", expiry=LONG, cache=cache)
        def square(number: int) -> int:
            """Of a number."""
            calls.append(number)
            return number**2

        assert [square(2), square(3), square(number=2)] == [4, 9, 4]
        assert calls == [2, 3]
        assert square.__name__ == "square"
        assert set(cache.entries) == {"default:square:2", "default:square:3"}

    async def test_coroutine_functions(self) -> None:
        """In asyncio, what is decorated stays a coroutine function."""
        cache, calls = AsyncCache(), []
        async with AsyncLocks.from_url("memory://") as locks:

            @locks.cached("square:{number}", expiry=LONG, cache=cache)
            async def square(number: int) -> int:
                calls.append(number)
                return number**2

            assert inspect.iscoroutinefunction(square)
            assert [await square(2), await square(number=2)] == [4, 4]
        assert calls == [2]


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"expiry": 0, "cache": {}}, ConfigurationError, "expiry=0 must be 0.001 seconds to"),
            ({"expiry": 1, "cache": {}, "stale": -1}, ConfigurationError, "stale=-1 must be"),
            ({"expiry": 1}, TypeError, "needs cache"),
            ({"cache": {}}, TypeError, "needs expiry"),
            ({"expiry": 1, "cache": {}, "timeout": 1}, TypeError, "no option 'timeout'"),
        ],
    )
    def test_options_are_checked_where_it_is_decorated(self, locks, options, error, says) -> None:
        """What cannot work is refused at once, by name."""
        with pytest.raises(error, match=says):
            locks.cached("key", **options)

    def test_no_cache(self, locks) -> None:
        """What has no ``set`` is no cache; and a key is checked before a cache is asked."""
        with pytest.raises(ConfigurationError, match="has no method 'set'"):
            locks.cached("key", lambda: 1, expiry=1, cache={})
        with pytest.raises(InvalidKey):
            locks.cached("a\nkey", lambda: 1, expiry=1, cache={})

    def test_a_cache_that_hides_its_expiry(self, locks, key) -> None:
        """A cache that cannot be given an expiry by name is refused: before anything is computed."""
        cache = OpaqueCache()
        with pytest.raises(ConfigurationError, match=r"OpaqueCache.*set\(key, value, timeout\)"):
            locks.cached(key, expiry=1, cache=cache)
        with pytest.raises(ConfigurationError, match="OpaqueCache"):
            locks.cached(key, lambda: pytest.fail("computed"), expiry=1, cache=cache)

    async def test_a_cache_that_hides_its_expiry_in_asyncio(self, key) -> None:
        """``AsyncLocks`` refuses it in the same way."""

        async def compute() -> None:
            pytest.fail("computed")

        async with AsyncLocks.from_url("memory://") as locks:
            with pytest.raises(ConfigurationError, match="OpaqueCache"):
                locks.cached(key, expiry=1, cache=OpaqueCache())
            with pytest.raises(ConfigurationError, match="OpaqueCache"):
                await locks.cached(key, compute, expiry=1, cache=OpaqueCache())

    def test_caches_of_the_other_world(self, locks, key) -> None:
        """A blocking client is refused in asyncio, and an asynchronous one in threads."""
        with pytest.raises(ConfigurationError, match="give it to AsyncLocks"):
            locks.cached(key, lambda: 1, expiry=1, cache=AsyncCache())

        async def compute() -> int:
            return 1

        async def main() -> None:
            client = a_redis_client()
            async with AsyncLocks.from_url("memory://") as async_locks:
                with pytest.raises(ConfigurationError, match="blocks the event loop"):
                    await async_locks.cached(key, compute, expiry=1, cache=client)
            client.close()

        asyncio.run(main())
