"""Giving up at any moment: nothing is left behind, and a release releases."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
import threading
import time
import types
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from tests.support.waiting import PATIENCE, eventually, queue_of
from weblock import AsyncLocks, Locks
from weblock._core.ports import Store
from weblock._runtime.runtimes import BlockingMailbox

from .apis import ThreadActor

pytestmark = pytest.mark.promise("locks")

LONG = 10 * PATIENCE
"""A ttl that nobody outlasts who waits."""


def test_a_cancelled_waiter_leaves_nothing(asynchronous, tasks, waiting) -> None:
    """A waiter that is cancelled has left the queue, and the one behind it is served."""
    holder, gone, next_one = tasks.actors(3)
    lease = holder.do(asynchronous.acquire, "key", ttl=60)
    cancelled = gone.begin(asynchronous.acquire, "key", wait=None, ttl=60)
    eventually(lambda: waiting("key") == 1)
    served = next_one.begin(asynchronous.acquire, "key", wait=None, ttl=60)
    eventually(lambda: waiting("key") == 2)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        cancelled.result(PATIENCE)
    eventually(lambda: waiting("key") == 1)
    holder.do(lease.release)
    next_one.do(served.result(PATIENCE).release)
    assert waiting("key") is None


def test_a_waiter_that_timed_out_by_itself(asynchronous, tasks, waiting) -> None:
    """``asyncio.wait_for`` around an acquisition leaves nothing of it."""
    holder, waiter = tasks.actors(2)
    lease = holder.do(asynchronous.acquire, "key", ttl=60)

    async def impatient() -> None:
        await asyncio.wait_for(asynchronous.acquire("key", wait=None), 0.1)

    with pytest.raises(TimeoutError):
        waiter.do(impatient)
    eventually(lambda: waiting("key") == 0)
    holder.do(lease.release)
    assert waiting("key") is None


def test_a_lease_got_within_a_limit_of_time(asynchronous, tasks, waiting) -> None:
    """A lease that was acquired in ``asyncio.wait_for`` is as good as any: held, and released."""

    async def limited() -> bool:
        lease = await asyncio.wait_for(asynchronous.acquire("key"), 30)
        held = lease.held
        await lease.release()
        return held

    assert tasks.actor().do(limited)
    assert waiting("key") is None


def test_an_interrupted_thread_leaves_nothing(url, probe) -> None:
    """A blocked waiter that is interrupted, as by Ctrl-C, is out of the queue."""
    holder, watcher = ThreadActor(), ThreadActor()
    lease = holder.do(probe.acquire, "key", ttl=60)
    interrupts: list[int] = []

    def interrupt(number: int, _: object) -> None:
        if not interrupts:
            interrupts.append(number)
            raise KeyboardInterrupt

    def interrupt_when_it_waits() -> None:
        eventually(lambda: queue_of(probe, "key") == 1)
        eventually(lambda: _waits_for_its_mailbox(threading.main_thread()))
        while not interrupts:  # One that comes just before a thread blocks is seen at the next.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            time.sleep(0.01)

    former = signal.signal(signal.SIGUSR1, interrupt)
    try:
        interrupted = watcher.begin(interrupt_when_it_waits)
        with pytest.raises(KeyboardInterrupt):
            probe.acquire("key", wait=None)
        interrupted.result(PATIENCE)
    finally:
        signal.signal(signal.SIGUSR1, former)
    eventually(lambda: queue_of(probe, "key") == 0)
    holder.do(lease.release)
    probe.acquire("key", wait=0).release()
    holder.close()
    watcher.close()


def _waits_for_its_mailbox(thread: threading.Thread) -> bool:
    """Whether it is past asking: there Python itself could not clear away behind an interrupt."""
    return sys._current_frames()[thread.ident].f_code is BlockingMailbox.heard.__code__


async def test_acquire_cancelled_at_every_await(url: str) -> None:
    """An acquisition that is cancelled at its k-th await, for every k, leaves no lease, no place."""
    async with AsyncLocks.from_url(url, wait=None) as locks:
        _suspend_around_the_engine(locks)
        with Locks.from_url(url) as probe:
            holder = ThreadActor()
            for k in range(1, 100):
                if await _acquires(locks, holder, probe, k):
                    break
            holder.close()
            assert 4 <= k < 99


async def _acquires(locks: AsyncLocks, holder: ThreadActor, probe: Locks, k: int) -> bool:
    """Whether an acquisition came to its end before its k-th await."""
    held = holder.do(probe.acquire, "key", ttl=LONG)
    attempt = asyncio.create_task(_cancelled_at(k, locks.acquire("key", ttl=LONG)))
    await asyncio.to_thread(eventually, lambda: attempt.done() or queue_of(probe, "key"))
    holder.do(held.release)
    await asyncio.wait([attempt], timeout=PATIENCE)
    if finished := not attempt.cancelled():
        await attempt.result().release()
    await _comes_free(probe, "key")
    return finished


async def test_release_cancelled_at_every_await(url: str) -> None:
    """A release that is cancelled at its k-th await, for every k, releases all the same."""
    async with AsyncLocks.from_url(url, wait=None) as locks:
        _suspend_around_the_engine(locks)
        with Locks.from_url(url) as probe:
            for k in range(1, 100):
                lease = await locks.acquire("a", "b", ttl=LONG)
                attempt = asyncio.create_task(_cancelled_at(k, lease.release()))
                await asyncio.wait([attempt], timeout=PATIENCE)
                assert not lease.held
                await _comes_free(probe, "a")
                await _comes_free(probe, "b")
                if not attempt.cancelled():
                    break
            assert 4 <= k < 99


async def test_several_keys_cancelled_at_every_await(url: str) -> None:
    """An acquisition of two keys, cancelled anywhere, gives back the one that it had."""
    async with AsyncLocks.from_url(url, wait=None) as locks:
        _suspend_around_the_engine(locks)
        with Locks.from_url(url) as probe:
            for k in range(1, 100):
                attempt = asyncio.create_task(_cancelled_at(k, locks.acquire("a", "b", ttl=LONG)))
                await asyncio.wait([attempt], timeout=PATIENCE)
                if not attempt.cancelled():
                    await attempt.result().release()
                await _comes_free(probe, "a")
                await _comes_free(probe, "b")
                if not attempt.cancelled():
                    break
            assert 4 <= k < 99


async def test_extend_cancelled_at_every_await(url: str) -> None:
    """An extension that is cancelled leaves the lease as it was, or longer, and never lost."""
    async with AsyncLocks.from_url(url) as locks:
        _suspend_around_the_engine(locks)
        for k in range(1, 100):
            lease = await locks.acquire("key", ttl=60)
            attempt = asyncio.create_task(_cancelled_at(k, lease.extend(60)))
            await asyncio.wait([attempt], timeout=PATIENCE)
            lease.check()
            await lease.release()
            if not attempt.cancelled():
                break
        assert 2 <= k < 99


async def test_a_cancel_that_meets_the_grant(url: str) -> None:
    """A waiter that is cancelled in the very step in which it is given the key does not keep it."""
    async with AsyncLocks.from_url(url, wait=None) as locks:
        with Locks.from_url(url) as probe:
            for _ in range(50):
                lease = await locks.acquire("key", ttl=LONG)
                waiter = asyncio.create_task(locks.acquire("key", ttl=LONG))
                await asyncio.to_thread(eventually, lambda: queue_of(probe, "key"))
                await lease.release()
                waiter.cancel()
                await asyncio.wait([waiter], timeout=PATIENCE)
                if not waiter.cancelled():
                    await waiter.result().release()
                await _comes_free(probe, "key")


async def _comes_free(probe: Locks, key: str) -> None:
    """Fails unless the key can be had, long before the ttl of whoever may have kept it."""
    lease = await asyncio.to_thread(probe.acquire, key, wait=PATIENCE)
    await asyncio.to_thread(lease.release)


def _suspend_around_the_engine(locks: AsyncLocks) -> None:
    """Has every request to the engine suspend before and after it takes effect."""
    locks._locker.store = _Suspending(locks._locker.store)


class _Suspending:
    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not inspect.iscoroutinefunction(getattr(Store, name, None)):
            return method

        async def suspending(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            result = await method(*args, **kwargs)
            await asyncio.sleep(0)
            return result

        return suspending


async def _cancelled_at(k: int, work: Coroutine[Any, Any, Any]) -> Any:
    """Run ``work`` in this task, and cancel the task where it suspends for the k-th time."""
    return await _stepped(k, work)


@types.coroutine
def _stepped(k: int, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    suspended = 0
    failure: BaseException | None = None
    while True:
        try:
            awaited = work.throw(failure) if failure else work.send(None)
        except StopIteration as stop:
            return stop.value
        suspended += 1
        if suspended == k:
            asyncio.current_task().cancel()
        try:
            failure = None
            yield awaited
        except BaseException as error:  # noqa: BLE001 - it is for the coroutine
            failure = error
