"""Locks that a service function acquires for the request that it serves, without knowing the request."""

import asyncio
import contextvars
import threading
from typing import Annotated

import anyio.to_thread
import pytest
from fastapi import Depends, FastAPI, HTTPException

from tests.support.aio import until_waited_for
from tests.support.http import client_of
from weblock import ConfigurationError
from weblock.contrib import wsgi
from weblock.contrib.fastapi import install, lock, request_locks

from .shop import BOUND, Session, Shop

REQUESTS = 8


@pytest.fixture
def app(locks, shop):
    """A shop whose service functions lock by themselves, after their session has been opened."""
    app = FastAPI()
    install(app, locks)
    async_session = Annotated[Session, Depends(shop.async_session)]
    sync_session = Annotated[Session, Depends(shop.sync_session, scope="function")]

    @app.post("/async", status_code=201)
    async def create_async(session: async_session) -> None:
        await add_async(shop, session)

    @app.post("/sync", status_code=201)
    def create_sync(session: sync_session) -> None:
        add(shop, session)

    return app


async def add_async(shop: Shop, session: Session) -> None:
    await request_locks().acquire("items")
    if not shop.has_room():
        raise HTTPException(422)
    session.added += 1


def add(shop: Shop, session: Session) -> None:
    lease = request_locks().acquire("items")
    assert lease.held
    if not shop.has_room():
        raise HTTPException(422)
    session.added += 1


@pytest.mark.parametrize("path", ["/async", "/sync"])
async def test_a_key_of_a_service_is_held_until_after_the_commit(app, shop, path):
    """Simultaneous requests keep the bound, because each lease is released after its COMMIT."""
    async with client_of(app) as client:
        answers = await asyncio.gather(*(client.post(path) for _ in range(REQUESTS)))
    assert sorted(each.status_code for each in answers) == [201] * BOUND + [422] * 5
    assert shop.events[: 2 * BOUND] == ["commit", "release"] * BOUND


async def test_waiting_threads_leave_one_for_the_holder(app, shop):
    """More requests than the pool has threads wait for a key, and its holder still gets a thread."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = 2
    holding, waiting = threading.Event(), threading.Semaphore(0)

    @app.get("/holder")
    async def hold() -> str:
        await request_locks().acquire("pool")
        holding.set()
        await asyncio.to_thread(lambda: [waiting.acquire() for _ in range(REQUESTS)])
        return await anyio.to_thread.run_sync(lambda: "had a thread")

    @app.get("/waiter")
    def wait() -> None:
        waiting.release()
        request_locks().acquire("pool")

    async with client_of(app) as client:
        holder = asyncio.create_task(client.get("/holder"))
        await asyncio.to_thread(holding.wait)
        waiters = [asyncio.create_task(client.get("/waiter")) for _ in range(REQUESTS)]
        assert (await holder).json() == "had a thread"
        assert {(await each).status_code for each in waiters} == {200}
    assert anyio.to_thread.current_default_thread_limiter().total_tokens == 2


async def test_the_wait_of_a_thread_ends_with_its_request(app, locks):
    """A thread whose request was cancelled leaves the queue, however long it would have waited."""

    @app.get("/waiter")
    def wait() -> None:
        request_locks().acquire("pool", wait=None)

    looks = asyncio.Event()

    async def receive() -> None:
        looks.set()  # The layer waits for a disconnect, while the endpoint waits for its key.
        await asyncio.Event().wait()

    async def server(scope, _receive, send) -> None:
        await app(scope, receive, send)

    async with locks.hold("pool"), client_of(server) as client:
        request = asyncio.create_task(client.get("/waiter"))
        await looks.wait()
        request.cancel()
        await until_waited_for(locks, "pool", by=0)


async def test_a_loop_in_a_thread_waits_for_the_loop_of_the_request(app, locks):
    """A ``def`` endpoint that runs a coroutine by ``asyncio.run`` can wait for a key in it."""

    async def acquire() -> bool:
        lease = await request_locks().acquire("pool")
        return lease.held

    @app.get("/waiter")
    def wait() -> bool:
        return asyncio.run(acquire())

    async with client_of(app) as client:
        async with locks.hold("pool"):
            request = asyncio.create_task(client.get("/waiter"))
            await until_waited_for(locks, "pool", by=1)
        assert (await request).json() is True


@pytest.mark.parametrize("find", [request_locks, wsgi.request_locks], ids=["asgi", "wsgi"])
def test_outside_a_request_there_are_no_request_locks(find):
    """Code that serves no request gets an error that names the alternative."""
    with pytest.raises(ConfigurationError, match=r"Outside a request, use locks\.hold"):
        find()


async def test_a_task_with_its_own_context_outlives_the_request(app, locks):
    """A task that is created with an empty context waits for the request's key, and then runs."""
    done = []

    async def work() -> None:
        async with locks.hold("items"):
            done.append("work")

    @app.post("/later", dependencies=[Depends(lock("items"))])
    async def later() -> None:
        tasks.append(asyncio.create_task(work(), context=contextvars.Context()))
        await asyncio.sleep(0)  # The task asks for the key before the request has ended.
        assert not done

    tasks: list[asyncio.Task[None]] = []
    async with client_of(app) as client:
        assert (await client.post("/later")).status_code == 200
    await tasks[0]
    assert done == ["work"]
