"""A cache with a lock around it: what fails, and what does not."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.cache.backends.locmem import LocMemCache

from tests.servers import fresh_url
from tests.support.renewals import renewed
from tests.support.waiting import eventually
from weblock import Locks

MANY = 20


@pytest.fixture
def page(shown):
    return shown("A lock made of `cache.add`")


class CountingCache(LocMemCache):
    """A cache of Django's that counts how often something was looked for in vain."""

    misses = 0
    counting = threading.Lock()

    def get(self, *args: Any, **kwargs: Any) -> Any:
        found = super().get(*args, **kwargs)
        with self.counting:
            self.misses += found is None
        return found


@pytest.fixture
def cache() -> CountingCache:
    return CountingCache(uuid.uuid4().hex, {})


@pytest.fixture
def locks():
    with Locks.from_url(fresh_url()) as locks:
        yield locks


class Computing:
    """Counts how often it computes, and how many do so at a time."""

    def __init__(self, value: Any = "value", lasts: Callable[[], object] = lambda: None) -> None:
        self.calls = self.at_once = self.most_at_once = 0
        self._value = value
        self._lasts = lasts
        self._guard = threading.Lock()

    def __call__(self) -> Any:
        with self._guard:
            self.calls += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self._lasts()
        with self._guard:
            self.at_once -= 1
        return self._value


def all_miss(get: Callable[[], Any], count: int = MANY) -> set[Any]:
    together = threading.Barrier(count)

    def one() -> Any:
        together.wait(60)
        return get()

    with ThreadPoolExecutor(count) as pool:
        return {each.result() for each in [pool.submit(one) for _ in range(count)]}


class TestManyMiss:
    def test_the_copied_one_computes_again_and_again(self, page, cache) -> None:
        """Whoever waited for the lock does not look a second time."""
        computing = Computing(lasts=lambda: eventually(lambda: cache.misses >= MANY))
        all_miss(lambda: page.cache_without_dogpiling(cache, "key", computing, 60))
        assert computing.calls == MANY

    def test_cached_computes_once(self, page, cache, locks) -> None:
        """All get what the first has computed."""
        computing = Computing(lasts=lambda: eventually(lambda: cache.misses >= MANY))
        assert all_miss(lambda: page.top_books(locks, cache, computing)) == {"value"}
        assert computing.calls == 1


class TestNone:
    def test_the_copied_one_never_keeps_it(self, page, cache) -> None:
        """``None`` looks like a miss there."""
        computing = Computing(None)
        for _ in range(3):
            page.cache_without_dogpiling(cache, "key", computing, 60)
        assert computing.calls == 3

    def test_cached_keeps_it(self, page, cache, locks) -> None:
        """Here it is a value."""
        computing = Computing(None)
        for _ in range(3):
            assert page.top_books(locks, cache, computing) is None
        assert computing.calls == 1


class TestSlow:
    def test_the_copied_lock_is_too_short(self, page, cache) -> None:
        """When the work outlasts the lock, the next one is at it, too."""
        computing = Computing(lasts=lambda: eventually(lambda: computing.most_at_once == 2))
        all_miss(lambda: page.cache_without_dogpiling(cache, "key", computing, 60, 0.1), 2)
        assert computing.most_at_once == 2

    def test_the_lease_lasts(self, cache, locks) -> None:
        """A lease is renewed again and again while the work takes its time."""
        computing = Computing(lasts=lambda: [renewed(locks) for _ in range(3)])
        all_miss(lambda: locks.cached("key", computing, expiry=60, cache=cache, ttl=60, wait=60), 2)
        assert computing.calls == computing.most_at_once == 1
