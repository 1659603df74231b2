"""What is closed is gone: threads, tasks, files, mailboxes, places."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, eventually, now
from weblock import (
    AsyncLocks,
    ConfigurationError,
    EngineUnavailable,
    LeaseLost,
    Locks,
    LockTimeout,
)
from weblock._engines import _registry
from weblock._runtime.runtimes import KeeperThread

LONG = 10 * PATIENCE
"""The ttl of leases that are not to end by themselves while somebody waits for their key."""

FDS = Path("/dev/fd")


def begin_to_wait(locks, one, other) -> list:
    """Has one wait for a key that is held, and another for it and a free one."""
    return [
        one.begin(locks.acquire, "key", wait=None),
        other.begin(locks.acquire, "free", "key", wait=None),
    ]


def are_told_of_the_end(waits) -> None:
    """All of them get the error of locks that were closed."""
    for wait in waits:
        with pytest.raises(EngineUnavailable, match="closed"):
            wait.result(PATIENCE)


def test_nothing_is_left_after_use(api, url, one, other) -> None:
    """Leases, waiters, timeouts and losses leave no entry anywhere while the engine is open."""
    locks = api.open(url)
    _use(api, locks, one, other)
    engine, keeper = locks._engine, locks._locker.keeper
    eventually(lambda: keeper.idle)
    assert not keeper.holdings
    assert not engine.switchboard.mailboxes
    api.shut(locks)


def test_nothing_is_left_after_close(api, url, one, other) -> None:
    """Closing ends every thread, task and file descriptor that came with the engine."""
    threads = _threads()
    _use_and_close(api, url, one, other)
    files, tasks = _files(), _tasks(api)  # What the first use leaves is there once.
    for _ in range(3):
        _use_and_close(api, url, one, other)
    # Fewer will do: some of those that were counted may have been about to end.
    eventually(lambda: _threads() <= threads)
    eventually(lambda: _files() <= files)
    eventually(lambda: _tasks(api) <= tasks)


def _use_and_close(api, url, one, other) -> None:
    locks = api.open(url)
    _use(api, locks, one, other)
    api.shut(locks)


def _use(api, locks, one, other) -> None:
    lease = one.do(locks.acquire, "key", ttl=10)
    waiter = other.begin(locks.acquire, "key", ttl=10)
    if locks.scope != "none":
        with pytest.raises(LockTimeout):
            api.actor().do(locks.acquire, "key", wait=0.05)
    one.do(lease.release)
    other.do(waiter.result(PATIENCE).release)
    lost = one.do(locks.acquire, "key", ttl=0.1, renew=False)
    eventually(lambda: not lost.held)
    one.do(api.section, locks, "a", "b", body=lambda lease: None)


def test_locks_of_a_moment_leave_nothing_beside_others(api, url, one) -> None:
    """Each that is opened for one request, where others keep the engine open, leaves no connection."""
    still = api.open(url)
    one.do(api.section, still, "key", body=lambda lease: None)
    before = _files()
    for _ in range(20):
        locks = api.open(url)
        one.do(api.section, locks, "key", body=lambda lease: None)
        api.shut(locks)
    # The keeper may have opened one of its own, and more than one where there are several servers.
    eventually(lambda: _files() < before + 15)
    one.do(one.do(still.acquire, "key", wait=0).release)
    api.shut(still)


def test_event_loops_that_come_and_go_leave_nothing(url) -> None:
    """Each ``asyncio.run`` on the same locks takes its connections and its loop away with it."""
    locks = AsyncLocks.from_url(url)
    loops = [asyncio.run(_use_in_a_loop(locks)) for _ in range(2)]
    files, threads = _files(), _threads().total()
    loops += [asyncio.run(_use_in_a_loop(locks)) for _ in range(40)]
    # memcached's threads and their connections are as many as were ever at work at once, up to 16.
    eventually(lambda: _files() < files + 20)
    eventually(lambda: _threads().total() < threads + 20)
    # The last may be remembered, until another comes.
    eventually(lambda: gc.collect() >= 0 and sum(loop() is not None for loop in loops) <= 1)
    asyncio.run(locks.close())


@pytest.mark.promise("locks")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # The loop is closed with all that is in it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning")
def test_a_waiter_whose_loop_is_closed_keeps_nothing(url) -> None:
    """The key of a task that can never continue is free for others, however long the process lives."""
    loop = asyncio.new_event_loop()
    with Locks.from_url(url, ttl=LONG, wait=PATIENCE) as locks, ThreadPoolExecutor(1) as thread:
        lease = thread.submit(locks.acquire, "key").result()
        task = loop.create_task(_acquire("key", url, wait=None))
        while not locks._locker.keeper.waiting_for("default:key"):
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        lease.release()
        locks.acquire("key").release()
        eventually(lambda: not locks.list())
        eventually(lambda: locks._locker.keeper.idle and not locks._locker.keeper.watches)
    assert not task.done()
    del loop, task
    gc.collect()  # What is left of the loop warns here, and not in another test.


@pytest.mark.promise("locks")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Of other tests.
async def test_an_engine_keeps_nothing_of_the_context_that_first_used_it(url) -> None:
    """What a request has set in its context ends with it, although its connections and tasks go on."""
    variable: ContextVar[object] = ContextVar("of a request")

    async def first() -> weakref.ref[object]:
        variable.set(value := type("Value", (), {})())
        async with locks.hold("key"):
            return weakref.ref(value)

    async with AsyncLocks.from_url(url, ttl=LONG, wait=PATIENCE) as locks:
        value = await asyncio.create_task(first(), context=Context())
        await asyncio.to_thread(eventually, lambda: gc.collect() >= 0 and value() is None)
        async with locks.hold("key"):
            pass


async def _acquire(key: str, url: str | list[str], *, wait: float | None) -> None:
    await AsyncLocks.from_url(url, ttl=LONG, wait=wait).acquire(key)


@pytest.mark.promise("locks")
async def test_a_waiter_whose_loop_was_blocked_beyond_its_wait_times_out(url) -> None:
    """It does not get the key after its wait, and meanwhile the key is free for others."""
    others = Locks.from_url(url, ttl=LONG, wait=PATIENCE)
    lease = await asyncio.to_thread(others.acquire, "key")
    async with AsyncLocks.from_url(url, ttl=LONG, wait=LONG) as locks:
        task = asyncio.create_task(locks.acquire("key"))
        keeper = locks._locker.keeper
        await asyncio.to_thread(eventually, lambda: keeper.waiting_for("default:key"))
        (waiter,) = keeper.waiting_for("default:key")
        waiter.give_up_at = now() - 1  # As if the loop had been blocked since then.
        work = threading.Thread(target=lambda: (lease.release(), others.acquire("key").release()))
        work.start()
        work.join()  # Which blocks the loop.
        with pytest.raises(LockTimeout):
            await task
        await asyncio.to_thread(eventually, lambda: not others.list())
    await asyncio.to_thread(others.close)


async def _use_in_a_loop(locks: AsyncLocks) -> weakref.ref[asyncio.AbstractEventLoop]:
    async with locks.hold("key") as lease:
        waits = asyncio.ensure_future(locks.acquire("key"))
        await asyncio.sleep(0)
        await lease.release()
        await (await waits).release()
    return weakref.ref(asyncio.get_running_loop())


def _threads() -> Counter[str]:
    names = (thread.name for thread in threading.enumerate())
    return Counter(name for name in names if "weblock" in name)


def _files() -> int:
    return len(list(FDS.iterdir()))


def _tasks(api) -> int:
    actors = {"actor"}
    tasks = api.tasks() if api.name == "asyncio" else set()
    return len([task for task in tasks if task.get_name() not in actors])


def test_closed_locks_say_so(api, url, one) -> None:
    """Closed locks refuse clearly; closing twice is harmless, and others may go on."""
    locks, still = api.open(url), api.open(url)
    api.shut(locks)
    api.shut(locks)
    with pytest.raises(ConfigurationError, match="closed"):
        one.do(locks.acquire, "key")
    one.do(one.do(still.acquire, "key").release)
    api.shut(still)


@pytest.mark.of_core
@pytest.mark.parametrize("wrong", [{"ttl": 0}, {"wiat": 3}, {"require_scope": "galaxy"}])
def test_options_that_cannot_work_open_nothing(api, url, wrong) -> None:
    """Locks that are refused leave no file, no socket and no engine behind."""
    api.shut(api.open(url))
    files = _files()
    with pytest.raises((ConfigurationError, TypeError)):
        api.open(url, **wrong)
    assert url not in _registry.by_url
    eventually(lambda: _files() <= files)


@pytest.mark.of_core
@pytest.mark.parametrize("rests", [False, True])
def test_opening_while_the_last_ones_close(api, url, one, monkeypatch, rests) -> None:
    """Locks that are opened, or used again, while an engine's last ones close get an engine that works."""
    last = api.open(url)
    opened = api.open(url)
    one.do(one.do(last.acquire, "key").release)
    opened._suspend()

    def open_meanwhile(thread: KeeperThread, *args: float) -> None:
        nonlocal opened
        monkeypatch.undo()
        if rests:
            one.do(one.do(opened.acquire, "meanwhile").release)
        else:
            opened = api.open(url)
        thread.close(*args)

    monkeypatch.setattr(KeeperThread, "close", open_meanwhile)
    api.shut(last)
    one.do(one.do(opened.acquire, "key", wait=PATIENCE).release)
    api.shut(opened)


@pytest.mark.promise("locks")
def test_closing_ends_a_lease(api, url, one) -> None:
    """A lease that outlives its locks is lost, and said to be; its key is free."""
    locks = api.open(url)
    lease = one.do(locks.acquire, "key", ttl=60)
    api.shut(locks)
    with pytest.raises(LeaseLost) as lost:
        one.do(lease.release)
    assert lost.value.reason == "closed"
    again = api.open(url)
    one.do(one.do(again.acquire, "key", wait=0).release)
    api.shut(again)


@pytest.mark.promise("locks")
def test_closing_ends_a_wait(api, url, one, other) -> None:
    """Those who still wait when their engine is closed are told, and leave nothing."""
    locks = api.open(url)
    engine, keeper = locks._engine, locks._locker.keeper
    one.do(locks.acquire, "key", ttl=60)
    waits = [other.begin(locks.acquire, "key", wait=None)]
    waits += [api.actor().begin(locks.acquire, "key", wait=None) for _ in range(2)]
    eventually(lambda: len(keeper._kept) == 4)
    before = _files()
    api.shut(locks)
    are_told_of_the_end(waits)
    assert not engine.switchboard.mailboxes
    assert keeper.idle
    eventually(lambda: _files() <= before)


@pytest.mark.promise("locks")
@pytest.mark.parametrize("how", ["acquire", "take_over"])
def test_closing_gives_back_what_a_request_gets_meanwhile(api, url, one, monkeypatch, how) -> None:
    """Who is granted a key while the locks are closed is told that they were; the key is free."""
    closed, again = api.open(url), api.open(url)
    wanted = one.do(one.do(again.acquire, "key", ttl=LONG).hand_over) if how != "acquire" else "key"
    api.shut(again)
    request = "acquire" if how == "acquire" else "transfer"
    ask = getattr(closed._locker.store, request)

    async def answer_late(*args, **options):
        reply = await ask(*args, **options)
        closing = threading.Thread(target=closed._close)
        closing.start()
        closing.join(PATIENCE)
        return reply

    monkeypatch.setattr(closed._locker.store, request, answer_late)
    with pytest.raises(EngineUnavailable, match="closed"):
        one.do(getattr(closed, how), wanted, ttl=LONG)
    again = api.open(url)
    one.do(one.do(again.acquire, "key", wait=PATIENCE).release)
    api.shut(again)


@pytest.mark.promise("locks")
def test_closing_gives_back_what_is_being_released(api, url, one, monkeypatch) -> None:
    """Who releases a lease while the locks are closed has released it; the key is free."""
    closed = api.open(url)
    lease = one.do(closed.acquire, "key", ttl=LONG)
    give_back = closed._locker.give_back

    async def give_back_late(*args):
        closing = threading.Thread(target=closed._close)
        closing.start()
        closing.join(PATIENCE)
        return await give_back(*args)

    monkeypatch.setattr(closed._locker, "give_back", give_back_late)
    one.do(lease.release)
    again = api.open(url)
    one.do(one.do(again.acquire, "key", wait=PATIENCE).release)
    api.shut(again)


@pytest.mark.of_core
@pytest.mark.promise("locks")
def test_closing_is_no_outage(api, url, one, other) -> None:
    """A section that may run without a lease does not when its locks are closed: the key is held."""
    closed, still = api.open(url, on_unavailable="open"), api.open(url)
    lease = one.do(still.acquire, "key", ttl=60)
    waits = begin_to_wait(closed, other, api.actor())
    keeper = still._locker.keeper
    eventually(lambda: len(keeper._kept) == 4)
    api.shut(closed)
    are_told_of_the_end(waits)
    assert lease.held
    one.do(lease.release)
    api.shut(still)


@pytest.mark.promise("locks")
def test_closing_ends_its_own_waits_only(api, url, one, other) -> None:
    """Who waits by closed locks is told at once, though others keep the engine open and wait on."""
    closed, still = api.open(url), api.open(url)
    lease = one.do(still.acquire, "key", ttl=60)
    waits = begin_to_wait(closed, other, api.actor())
    goes_on = api.actor().begin(still.acquire, "key", wait=None)
    keeper = still._locker.keeper
    eventually(lambda: len(keeper._kept) == 5)
    api.shut(closed)
    are_told_of_the_end(waits)
    one.do(one.do(still.acquire, "free", wait=PATIENCE).release)
    one.do(lease.release)
    one.do(goes_on.result(PATIENCE).release)
    eventually(lambda: keeper.idle)
    api.shut(still)
