"""What type checkers make of the public names: checked by pyright --strict, never run."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type

from django.http import HttpRequest, HttpResponse  # pyright: ignore[reportMissingTypeStubs]

from weblock import (
    AlreadyHeld,
    AsyncLease,
    AsyncLocks,
    AsyncTerm,
    Attempts,
    CacheOptions,
    ConfigurationError,
    Duration,
    EngineUnavailable,
    HoldOptions,
    InvalidKey,
    KeyInfo,
    Lease,
    LeaseLost,
    Locks,
    LocksOptions,
    LockTimeout,
    Term,
    WeblockError,
)
from weblock.contrib.django import async_lease_of, lease_of, lock


def blocking(item_id: int) -> None:
    """The blocking API."""
    locks = Locks.from_url("redis://localhost", namespace="shop", ttl=10, wait=5)
    assert_type(locks, Locks)
    assert_type(locks.scope, str)
    assert_type(locks.engine, str)
    with locks.hold("create_item") as lease:
        assert_type(lease, Lease)
        assert_type(lease.key, str)
        assert_type(lease.keys, tuple[str, ...])
        assert_type(lease.fence, int)
        assert_type(lease.fences, dict[str, int])
        assert_type(lease.owner, str)
        assert_type(lease.held, bool)
        assert_type(lease.remaining(), float)
        assert_type(lease.check(), None)
        assert_type(lease.extend(2), None)
        assert_type(lease.extend(timedelta(seconds=2)), None)
        assert_type(lease.hand_over(ttl=60), str)
        assert_type(locks.take_over("token", label="worker"), Lease)
        assert_type(lease.release(), None)
        assert_type(lease.on_lost(lambda: None), None)
    assert_type(locks.try_acquire("create_item"), Lease | None)
    with locks.acquire("create_item") as acquired:
        assert_type(acquired, Lease)
    assert_type(locks.acquire(f"item:{item_id}", wait=1), Lease)
    with locks.hold("account:1", "account:2", ttl=timedelta(minutes=1), wait=None) as lease:
        assert_type(lease, Lease)
    with Locks.from_url() as entered:
        assert_type(entered, Locks)


async def asynchronous(item_id: int) -> None:
    """The asyncio API: the same names, awaitable."""
    locks = AsyncLocks.from_url("redis://localhost", namespace="shop", ttl=10, wait=5)
    assert_type(locks, AsyncLocks)
    async with locks.hold("create_item", f"item:{item_id}", max_hold=30) as lease:
        assert_type(lease, AsyncLease)
        assert_type(lease.fence, int)
        assert_type(lease.remaining(), float)
        assert_type(lease.check(), None)
        assert_type(await lease.extend(2), None)
        assert_type(await lease.hand_over(ttl=60), str)
        assert_type(await locks.take_over("token", label="worker"), AsyncLease)
        assert_type(await lease.release(), None)
        assert_type(lease.on_lost(lambda: None), None)
    assert_type(await locks.try_acquire("create_item"), AsyncLease | None)
    assert_type(await locks.acquire("a", wait=1), AsyncLease)
    async with AsyncLocks.from_url() as entered:
        assert_type(entered, AsyncLocks)
    assert_type(await locks.close(), None)


async def looking_on(locks: Locks, async_locks: AsyncLocks) -> None:
    """What is told of keys, on both APIs."""
    assert_type(locks.inspect("key"), KeyInfo | None)
    assert_type(locks.list(), list[KeyInfo])
    assert_type(locks.list("item:", limit=10), list[KeyInfo])
    assert_type(locks.force_release("key"), bool)
    assert_type(locks.ask_release("key"), bool)
    assert_type(await async_locks.inspect("key"), KeyInfo | None)
    assert_type(await async_locks.list("item:", limit=10), list[KeyInfo])
    assert_type(await async_locks.force_release("key"), bool)
    assert_type(await async_locks.ask_release("key"), bool)
    for info in locks.list():
        assert_type((info.key, info.holder, info.fence), tuple[str, str | None, int | None])
        assert_type((info.held_for, info.remaining), tuple[float, float])
        assert_type(info.waiters, tuple[str, ...])
        info.holder = "another"  # pyright: ignore[reportAttributeAccessIssue]
    if locks.inspect("key").holder:  # pyright: ignore[reportOptionalMemberAccess]
        pass


def decorators(locks: Locks, async_locks: AsyncLocks) -> None:
    """A decorated function keeps its signature, names and defaults included."""

    @locks.serialized("item:{item_id}", wait=1)
    def count(item_id: int, *, deep: bool = False) -> list[str]:
        return [str(item_id), str(deep)]

    assert_type(count(7), list[str])
    assert_type(count(item_id=7, deep=True), list[str])
    count("7")  # pyright: ignore[reportArgumentType]
    count()  # pyright: ignore[reportCallIssue]

    @async_locks.serialized("item:{item_id}")
    async def fetch(item_id: int) -> str:
        return str(item_id)

    fetched: Callable[[int], Coroutine[Any, Any, str]] = fetch
    assert_type(asyncio.create_task(fetched(7)), asyncio.Task[str])
    asyncio.run(fetch("7"))  # pyright: ignore[reportArgumentType]


def _length(text: str, more: int = 0) -> int:
    return len(text) + more


async def _async_length(text: str) -> int:
    return len(text)


async def work(locks: Locks, async_locks: AsyncLocks) -> None:
    """What runs work has the result of that work, or what says that it was skipped."""
    assert_type(locks.run("key", _length, "text", wait=1), int)
    assert_type(locks.run("key", _length, "text", on_busy="skip"), int | None)
    assert_type(locks.run("key", _length, "text", at_least=timedelta(minutes=1)), int)
    assert_type(locks.once("init:v42", _length, "text", expiry=timedelta(days=1)), bool)
    assert_type(locks.forget("init:v42"), None)
    for term in locks.lead("scheduler", max_hold=60):
        assert_type(term, Term)
        with term:
            assert_type(term.fence, int)
    async for async_term in async_locks.lead("scheduler"):
        assert_type(async_term, AsyncTerm)
        async with async_term:
            async_term.check()
    assert_type(locks.leader("scheduler"), str | None)
    assert_type(await async_locks.leader("scheduler"), str | None)
    locks.run("key", _length, 7)  # pyright: ignore[reportArgumentType]
    locks.run("key", _length, "text", on_busy="no")  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(await async_locks.run("key", _async_length, "text"), int)
    assert_type(await async_locks.run("key", _async_length, "text", on_busy="skip"), int | None)
    assert_type(await async_locks.once("init:v42", _async_length, "text"), bool)
    await async_locks.run("key", _length, "text")  # pyright: ignore[reportArgumentType]
    keeping: CacheOptions = {"expiry": 60, "cache": {}, "stale": timedelta(minutes=1)}
    assert_type(locks.cached("key", list[int], **keeping), list[int])
    assert_type(locks.cached("key", list[int], expiry=60, cache={}, wait=None), list[int])
    assert_type(locks.cached("{text}", **keeping)(_length)("text"), int)
    assert_type(await async_locks.cached("{text}", **keeping)(_async_length)("text"), int)
    locks.cached("key", list[int], expiry=60)  # pyright: ignore[reportCallIssue]
    if lease := locks.try_acquire("key"):
        with lease as entered:
            assert_type(entered, Lease)


def mistakes(locks: Locks, async_locks: AsyncLocks) -> None:
    """What cannot work is found before it runs."""
    locks.hold(7)  # pyright: ignore[reportArgumentType]
    locks.hold("key", timeout=5)  # pyright: ignore[reportCallIssue]
    locks.hold("key", ttl="10")  # pyright: ignore[reportArgumentType]
    locks.hold("key", namespace="per call")  # pyright: ignore[reportCallIssue]
    Locks.from_url("memory://", ttl=None)  # pyright: ignore[reportArgumentType]
    async_locks.acquire("key")  # pyright: ignore[reportUnusedCoroutine]
    with async_locks.hold("key"):  # pyright: ignore[reportGeneralTypeIssues]
        pass


def options(locks: Locks) -> None:
    """Options can be kept, and passed on."""
    durations: list[Duration] = [1, 1.5, timedelta(seconds=1)]
    patient: HoldOptions = {"wait": None, "ttl": durations[0]}
    assert_type(locks.acquire("key", wait=Attempts(5, pause=0.2, longest=1)), Lease)
    ours: LocksOptions = {"namespace": "shop", "require_scope": "cluster", **patient}
    assert_type(locks.acquire("key", **patient), Lease)
    assert_type(Locks.from_url("memory://", **ours), Locks)


def facts(error: WeblockError) -> None:
    """The facts of an error are typed, and known errors narrow."""
    match error:
        case LockTimeout():
            assert_type(error.key, str)
            assert_type(error.wait, float | None)
            assert_type(error.retry_after, float | None)
            assert_type(error.waiters, int | None)
        case LeaseLost():
            assert_type((error.key, error.fence, error.reason), tuple[str, int, str])
        case EngineUnavailable():
            assert_type((error.engine, error.reason), tuple[str, str])
        case AlreadyHeld():
            assert_type(error.key, str)
        case InvalidKey():
            value_error: ValueError = error
            assert_type(str(value_error), str)
        case ConfigurationError():
            value_error = error
        case _:
            assert_type(error, WeblockError)


def of_django(request: Any) -> None:
    """What a view of Django holds."""
    assert_type(lease_of(request), Lease)
    assert_type(async_lease_of(request), AsyncLease)


class RequestOfUser(HttpRequest):
    """A request whose user a project knows."""

    user: str


def of_user(request: RequestOfUser) -> str:
    """A key function for it."""
    return request.user


def busy(request: RequestOfUser, error: LockTimeout) -> HttpResponse:
    """A response to it."""
    return HttpResponse(request.user.encode(), status=409)


@lock("item:{pk}", of_user, busy_view=busy)
def view_of_user(request: RequestOfUser, pk: int) -> HttpResponse:
    """A view that is locked by it."""
    return HttpResponse(request.user.encode())


assert_type(view_of_user(RequestOfUser(), 7), HttpResponse)
