"""The page on migration: copied code fails, as another page says, and what replaces it does not."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
from django.core.cache.backends.locmem import LocMemCache

from tests.pages import blocks_of
from tests.servers import fresh_url, shared
from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE, eventually
from weblock import Locks

PAGE = (Path(__file__).parents[1] / "docs" / "migrate.md").read_text()
KEY = "migrating:key"
MANY = 20


def names_of(section: str) -> SimpleNamespace:
    """The names that the first two blocks of a section define: the copied code's and ours."""
    text = re.split(rf"^## {re.escape(section)}$", PAGE, maxsplit=1, flags=re.MULTILINE)[1]
    defined: dict[str, Any] = {}
    for block in [each for each in blocks_of(text) if each.language == "python"][:2]:
        exec(compile(block.text, section, "exec"), defined)  # The page is ours.
    return SimpleNamespace(**defined)


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    """A client of a server on which nothing of another test is found."""
    with redis.Redis(port=shared().port) as client:
        client.delete(KEY, "init", "migrating:create_item")
        yield client


@pytest.fixture
def locks() -> Iterator[Locks]:
    with Locks.from_url(fresh_url(), ttl=60, wait=60) as locks:
        yield locks


class Work:
    """Work that counts how often it was called, and how many are at it at a time."""

    def __init__(self, lasts: Callable[[], object] = lambda: None, made: Any = "value") -> None:
        self.calls = self.inside = self.most = 0
        self._lasts, self._made = lasts, made
        self._guard = threading.Lock()

    def __call__(self) -> Any:
        with self._guard:
            self.calls += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        self._lasts()
        with self._guard:
            self.inside -= 1
        return self._made


def at_once(call: Callable[[], Any], count: int) -> set[Any]:
    together = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(lambda: (together.wait(PATIENCE), call())[1]) for _ in range(count)]
        return {each.result() for each in calls}


class TestRedisPy:
    page = names_of("redis-py and django-redis")

    class Impatient(redis.Redis):
        """A client whose locks last less long, so that nobody has to wait for five seconds."""

        def lock(self, name: str, timeout: float | None = None, **options: object) -> object:
            return super().lock(f"migrating:{name}", timeout=0.2, **options)

    def test_a_guessed_timeout_lets_two_in(self, client) -> None:
        """Work that takes longer than the lock's timeout overlaps with that of the next holder."""
        work = Work(lambda: eventually(lambda: work.most == 2))
        with self.Impatient(connection_pool=client.connection_pool) as impatient:
            at_once(lambda: self.page.create_item(impatient, work), 2)
        assert work.most == 2

    def test_a_lease_lasts_as_long_as_the_work(self, locks) -> None:
        """A lease is renewed again and again while the work goes on, and one at a time is at work."""
        work = Work(lambda: [renewed(locks) for _ in range(3)])
        at_once(lambda: self.page.create_item_alone(locks, work), 2)
        assert (work.calls, work.most) == (2, 1)


class TestALoopThatRetries:
    page = names_of("A loop that retries")

    def test_the_copied_loop_starves(self, client) -> None:
        """Whoever sleeps misses each moment at which the key is free, and gives up in the end."""
        holder = [self.page.acquire_with_retries(client, KEY, ttl=60)]
        was_free: list[bool] = []

        def others_come(_seconds: float) -> None:
            """While the one in the loop sleeps, the key becomes free, and somebody comes."""
            self.page.release(client, KEY, holder.pop())
            was_free.append(client.get(KEY) is None)
            holder.append(self.page.acquire_with_retries(client, KEY, ttl=60, max_retries=1))

        waited_longest = self.page.acquire_with_retries(client, KEY, ttl=60, sleep=others_come)
        self.page.release(client, KEY, holder.pop())
        assert was_free == [True] * 5
        assert waited_longest is None

    def test_calls_do_not_overlap(self, locks) -> None:
        """The decorator serializes as the copied one does, and gives the key back after an error."""

        def fail() -> None:
            assert locks.inspect("create_item").holder
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            self.page.decorated(locks, fail)()
        assert locks.inspect("create_item") is None


class TestALockMadeOfCacheAdd:
    page = names_of("A lock made of `cache.add`")

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
    def cache(self) -> CountingCache:
        return self.CountingCache(uuid.uuid4().hex, {})

    def test_cached_computes_once(self, cache, locks) -> None:
        """All get what the first has computed."""
        work = Work(lambda: eventually(lambda: cache.misses >= MANY))
        assert at_once(lambda: self.page.top_books(locks, cache, work), MANY) == {"value"}
        assert work.calls == 1
