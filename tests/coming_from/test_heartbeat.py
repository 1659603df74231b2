"""A heartbeat around a coroutine, and steps that pods do once: what fails, and what does not."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from tests.servers import fresh_url, shared
from tests.support.renewals import hurry, renewed
from tests.support.waiting import eventually
from weblock import AsyncLocks, LeaseLost, Locks


@pytest.fixture
async def server(client) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis(port=shared().port) as server:
        yield server


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
async def locks(url) -> AsyncIterator[AsyncLocks]:
    async with AsyncLocks.from_url(url) as locks:
        yield locks


@pytest.fixture
def probe(url) -> Iterator[Locks]:
    with Locks.from_url(url) as probe:
        yield probe


@pytest.fixture
def page(shown):
    return shown("A heartbeat")


def unawaited(coroutine: str) -> list[str]:
    """Coroutines of this name that nobody has awaited are told of when they are collected."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    messages = [str(each.message) for each in told]
    return [each for each in messages if "never awaited" in each and coroutine in each]


class Work:
    """Work that is at it until it is told to stop, or cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.stop = asyncio.Event()
        self.cancelled = False

    async def run(self) -> None:
        self.began.set()
        try:
            await self.stop.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


class TestSkipping:
    async def test_run_leaves_none(self, page, locks) -> None:
        """What is skipped was never called."""
        called: list[str] = []

        async def work(day: str) -> None:
            called.append(day)

        async with locks.hold("nightly"):
            assert await asyncio.create_task(page.nightly(locks, work, "monday")) is None
        assert called == []
        assert unawaited(work.__qualname__) == []


class TestLosing:
    async def test_run_stops(self, locks) -> None:
        """Work whose lease is lost is cancelled, and says so."""
        work = Work()
        running = asyncio.create_task(locks.run("work", work.run, ttl=60))
        await work.began.wait()
        assert await locks.force_release("work")
        hurry(locks)
        with pytest.raises(LeaseLost):
            await running
        assert work.cancelled


class TestComputing:
    async def test_run_keeps_it(self, locks) -> None:
        """The keeper's thread does."""

        async def work() -> bool:
            for _ in range(3):
                renewed(locks)  # It blocks the loop meanwhile.
            return True

        assert await locks.run("work", work, ttl=60)


class TestOnce:
    async def test_a_pod_goes_on_too_early(self, page, server) -> None:
        """The pod that finds the lock taken goes on, while nothing has been initialized."""
        await server.delete("init")
        loading = Work()
        first = asyncio.create_task(page.initialize(server, loading.run))
        await loading.began.wait()

        async def never() -> None: ...

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            await page.initialize(server, never)
            gc.collect()
        went_on_early = not first.done()
        loading.stop.set()
        await first
        assert went_on_early

    async def test_once(self, page, locks, probe) -> None:
        """With ``once``, the second pod waits for the end of it, and no pod does it again."""
        loading, loaded = Work(), []

        async def load() -> None:
            await loading.run()
            loaded.append(1)

        first = asyncio.create_task(page.initialize_once(locks, load))
        await loading.began.wait()
        second = asyncio.create_task(page.initialize_once(locks, load))
        await asyncio.to_thread(eventually, lambda: probe.inspect("init:v42").waiters)
        assert not second.done()
        loading.stop.set()
        await asyncio.gather(first, second)
        await page.initialize_once(locks, load)
        assert loaded == [1]
