"""Where redis-py's lock as weblock has it differs from redis-py's, and what its cases do not ask.

The cases themselves are in ``redis_py``. A test here that has the name of one of them shows what
happens instead.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio.lock
from redis.exceptions import LockError

from tests.servers import Server, shared
from tests.support.waiting import PATIENCE, eventually, now
from weblock import ConfigurationError, Locks
from weblock.compat import redis as compat
from weblock.compat.redis import Lock
from weblock.compat.redis.asyncio import Lock as AsyncLock

from .redis_py.differences import DIFFERENT

PAGE = Path(__file__).parents[2] / "docs" / "migrate.md"


async def answer(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


class Twin:
    """One of the two classes, used alike."""

    def __init__(self, kind: type, client: Any) -> None:
        self.kind = kind
        self.client = client

    def lock(self, name: str, **options: Any) -> Any:
        return self.client.lock(name, lock_class=self.kind, **options)

    @asynccontextmanager
    async def inside(self, name: str, **options: Any) -> AsyncIterator[Any]:
        lock = self.lock(name, **options)
        if isinstance(lock, AsyncLock):
            async with lock:
                yield lock
        else:
            with lock:
                yield lock


@pytest.fixture(scope="module")
def port() -> int:
    with redis.Redis(port=shared().port) as client, Locks.from_client(client) as locks:
        locks.acquire("first", wait=60).release()
    return shared().port


@pytest.fixture(params=["blocking", "asyncio"])
async def twin(request: pytest.FixtureRequest, port: int) -> AsyncIterator[Twin]:
    if request.param == "blocking":
        with redis.Redis(port=port) as client:
            yield Twin(Lock, client)
            compat.close(client)
    else:
        async with redis.asyncio.Redis(port=port) as client:
            yield Twin(AsyncLock, client)
            await compat.asyncio.close(client)


@pytest.fixture
def foo() -> str:
    return f"foo:{uuid.uuid4().hex}"


@pytest.fixture
def stranger(port: int) -> Any:
    with redis.Redis(port=port) as client, Locks.from_client(client) as locks:
        yield locks


@asynccontextmanager
async def held_elsewhere(stranger: Locks, name: str) -> AsyncIterator[None]:
    lease = await asyncio.to_thread(stranger.acquire, name)
    yield
    await asyncio.to_thread(lease.release)


async def test_lock(twin, foo, stranger) -> None:
    """It is held from ``acquire`` to ``release``, also beyond any ttl, and has a token meanwhile."""
    lock = twin.lock(foo)
    assert await answer(lock.acquire(blocking=False))
    assert lock.local.token
    assert stranger.try_acquire(foo) is None
    await answer(lock.release())
    assert lock.local.token is None
    stranger.try_acquire(foo).release()


async def test_lock_token(twin, foo) -> None:
    """A token of one's own is refused, since whoever knew it could release the lock."""
    for thread_local in (True, False):
        lock = twin.lock(foo, thread_local=thread_local)
        with pytest.raises(LockError, match="token"):
            await answer(lock.acquire(blocking=False, token="test"))
        with pytest.raises(LockError, match="token"):
            lock.local.token = b"test"


async def test_what_happens_inside_cannot_be_replaced(twin, foo) -> None:
    """A script or a step that an application replaces would not be run, so it is rejected."""
    lock = twin.lock(foo)
    for name in ("lua_extend", "LUA_EXTEND_SCRIPT", "do_acquire", "register_scripts"):
        with pytest.raises(LockError, match=name):
            setattr(lock, name, None)
        with pytest.raises(LockError, match=name):
            type("Own", (twin.kind,), {name: None})
    lock.note = "an attribute of its own"


async def test_any_name_can_be_locked(twin, foo, stranger) -> None:
    """Also one that is no key of weblock: empty, with any bytes, or too long. Different names differ."""
    names = [f"{foo}\n", b"\xff" + foo.encode(), foo.encode() + b"\xff", foo * 100]
    locks = [twin.lock(name, blocking=False) for name in names]
    for lock in locks:
        assert await answer(lock.acquire())
    for name, lock in zip(names, locks, strict=True):
        assert not await answer(twin.lock(name, blocking=False).acquire())
        await answer(lock.release())


async def test_an_option_that_cannot_work_is_an_error_of_redis_py(twin, foo) -> None:
    """An application that handles redis-py's errors handles it."""
    for timeout in (0.05, 10**8):
        with pytest.raises(LockError, match="ttl"):
            await answer(twin.lock(foo, timeout=timeout).acquire())


@pytest.mark.parametrize("kind", [Lock, AsyncLock], ids=["blocking", "asyncio"])
async def test_a_server_that_recovers_has_no_lock_to_give(kind, foo) -> None:
    """A server that was just started counts as busy; ``configure`` sets how long, before the first lock."""
    module = compat if kind is Lock else compat.asyncio
    clients = redis if kind is Lock else redis.asyncio
    with Server() as server:
        client, other = clients.Redis(port=server.port), clients.Redis(port=server.port)
        assert await answer(kind(client, foo).acquire(blocking=False)) is False
        with pytest.raises(ConfigurationError, match="before the first"):
            module.configure(client)
        await answer(module.close(client))
        server.client().flushall()
        module.configure(other, engine_options={"recovery": "off"}, namespace="other")
        lock = kind(other, foo)
        assert await answer(lock.acquire(blocking=False))
        await answer(lock.release())
        await answer(module.close(other))


async def test_blocking(twin, foo) -> None:
    """``blocking=False`` never waits, whatever else is said; the attributes are there."""
    lock, other = twin.lock(foo, blocking=False), twin.lock(foo)
    assert not lock.blocking
    assert other.blocking
    await answer(other.acquire())
    assert not await answer(lock.acquire())
    await answer(other.release())


async def test_blocking_timeout(twin, foo, stranger) -> None:
    """It is waited for so long, and then it was not got."""
    async with held_elsewhere(stranger, foo):
        lock = twin.lock(foo, sleep=0.05, blocking_timeout=0.2)
        started = asyncio.get_running_loop().time()
        assert not await answer(lock.acquire())
        assert asyncio.get_running_loop().time() - started >= 0.2
        assert not await answer(twin.lock(foo).acquire(blocking_timeout=0.01))
        # What is left of a deadline that has passed is one attempt.
        assert not await answer(twin.lock(foo, blocking_timeout=-1).acquire())


async def test_waiting_for_oneself(twin, foo) -> None:
    """Who has it already is told so: at once, where redis-py would wait, perhaps without end."""
    async with twin.inside(foo):
        assert not await answer(twin.lock(foo, blocking_timeout=60).acquire())
        with pytest.raises(LockError, match="wait for itself"):
            await answer(twin.lock(foo).acquire())


async def test_context_manager_blocking_timeout(twin, foo) -> None:
    """Inside the block others wait in vain."""
    async with twin.inside(foo, blocking=False):
        other = twin.lock(foo, blocking_timeout=0.2)
        if twin.kind is Lock:
            assert not await asyncio.to_thread(other.acquire)
        else:
            assert not await asyncio.create_task(other.acquire())


async def test_high_sleep_small_blocking_timeout(twin, foo, stranger) -> None:
    """A long ``sleep`` does not matter, since nothing polls: who waits gets it when it is free."""
    async with held_elsewhere(stranger, foo):
        assert not await answer(twin.lock(foo, sleep=60, blocking_timeout=0.1).acquire())
        waits = twin.lock(foo, sleep=60, thread_local=False)
        if twin.kind is Lock:
            waiting = asyncio.create_task(asyncio.to_thread(waits.acquire, blocking_timeout=50))
        else:
            waiting = asyncio.create_task(waits.acquire(blocking_timeout=50))
        await asyncio.to_thread(eventually, lambda: stranger.inspect(foo).waiters)
    assert await waiting
    await answer(waits.release())


async def test_extend_lock_replace_ttl(twin, foo, stranger) -> None:
    """With ``replace_ttl`` it ends so much later than now, though never earlier than it would."""
    lock = twin.lock(foo, timeout=10)

    def remaining() -> float:
        """Of which the test's own time is taken off again."""
        return stranger.inspect(foo).remaining + now() - asked

    assert await answer(lock.acquire(blocking=False))
    asked = now()
    assert await answer(lock.extend(10, replace_ttl=True))
    assert remaining() > 8
    assert stranger.inspect(foo).remaining <= 10
    asked = now()
    assert await answer(lock.extend(20, replace_ttl=True))
    assert remaining() > 18
    assert stranger.inspect(foo).remaining <= 20
    assert await answer(lock.extend(1, replace_ttl=True))
    assert remaining() > 16
    await answer(lock.release())


async def test_reacquire_lock(twin, foo, stranger) -> None:
    """``reacquire`` has it last a whole ``timeout`` from now."""
    lock = twin.lock(foo, timeout=60)
    assert await answer(lock.acquire(blocking=False))
    await asyncio.to_thread(eventually, lambda: stranger.inspect(foo).remaining < 59.8)
    asked = now()
    assert await answer(lock.reacquire())
    assert stranger.inspect(foo).remaining + now() - asked > 59.8
    assert stranger.inspect(foo).remaining <= 61
    await answer(lock.release())


async def test_release_cancellation_preserves_lock_state(port, foo, stranger) -> None:
    """A release that is cancelled still releases: nothing is left to be tried again."""
    async with redis.asyncio.Redis(port=port) as client:
        lock = AsyncLock(client, foo)
        await lock.acquire(blocking=False)
        releasing = asyncio.create_task(lock.release())
        await asyncio.sleep(0)
        releasing.cancel()
        await asyncio.wait([releasing])
        assert lock.local.token is None
        await asyncio.to_thread(eventually, lambda: stranger.inspect(foo) is None)
        await compat.asyncio.close(client)


def test_threads_have_tokens_of_their_own(port, foo) -> None:
    """By default a thread cannot release what another has acquired; without it, one can."""
    with redis.Redis(port=port) as client:
        mine, shared_by_threads = Lock(client, foo), Lock(client, f"{foo}:2", thread_local=False)
        assert mine.acquire(blocking=False)
        assert shared_by_threads.acquire(blocking=False)
        outcomes: list[Any] = []

        def elsewhere() -> None:
            with pytest.raises(LockError):
                mine.release()
            outcomes.append(shared_by_threads.release())

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert outcomes == [None]
        assert mine.owned()
        assert not shared_by_threads.owned()
        mine.release()


def test_a_server_that_is_down(foo) -> None:
    """It raises what redis-py raises, so that what handles that goes on to."""
    with Server() as server:
        client = redis.Redis(port=server.port)
        server.kill()
        with pytest.raises(redis.exceptions.ConnectionError):
            Lock(client, foo, blocking=False).acquire()
        client.close()


def test_a_lock_that_nobody_refers_to_is_released(port, foo, stranger) -> None:
    """Its last reference was the only way to release it."""
    with redis.Redis(port=port) as client:
        assert Lock(client, foo).acquire()
        gc.collect()
        eventually(lambda: stranger.inspect(foo) is None)
        compat.close(client)


def test_clients_of_one_pool_share_connections(port, foo) -> None:
    """A client that is made anew for each request costs no connections of its own each time."""
    pool = redis.ConnectionPool(port=port)
    for _ in range(3):
        with Lock(redis.Redis(connection_pool=pool), foo):
            pass
    assert compat._locks.of(redis.Redis(connection_pool=pool)) is compat._locks.of(
        redis.Redis(connection_pool=pool)
    )
    compat.close(redis.Redis(connection_pool=pool))
    pool.close()


def test_a_client_that_is_gone_leaves_nothing(port, foo) -> None:
    """The thread that keeps a client's leases, with its connections, ends with the client."""
    earlier = set(threading.enumerate())
    client = redis.Redis(port=port)
    with Lock(client, foo):
        keepers = {each for each in threading.enumerate() if each.name == "weblock-keeper"}
    keepers -= earlier
    assert keepers
    client.close()
    del client
    gc.collect()
    eventually(lambda: not any(each.is_alive() for each in keepers))


def test_a_client_may_go_wherever_the_collector_runs(port, foo) -> None:
    """Also in a thread that has the mutex without which no other thread can begin."""
    clients = [redis.Redis(port=port)]
    with Lock(clients[0], foo):
        pass
    clients[0].close()

    def collect() -> None:
        with threading._active_limbo_lock:  # type: ignore[attr-defined]
            clients.clear()
            gc.collect()

    collects = threading.Thread(target=collect, daemon=True)
    collects.start()
    collects.join(PATIENCE)
    assert not collects.is_alive()


def test_the_signature_is_that_of_redis_py() -> None:
    """Every parameter of theirs is here, in its place and with its default.

    An older redis-py has fewer.
    """
    for ours, theirs in ((Lock, redis.lock.Lock), (AsyncLock, redis.asyncio.lock.Lock)):
        for method in ("__init__", "acquire", "extend", "reacquire", "release", "locked", "owned"):
            here = inspect.signature(getattr(ours, method)).parameters
            there = inspect.signature(getattr(theirs, method)).parameters
            ours_first = list(here.values())[: len(there)]
            assert [(each.name, each.default) for each in ours_first] == [
                (each.name, each.default) for each in there.values()
            ]


def test_what_differs_is_documented() -> None:
    """The page names each case of redis-py's that has another outcome here."""
    page = PAGE.read_text()
    assert [case for case in DIFFERENT if f"`{case}`" not in page] == []
