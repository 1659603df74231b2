"""A request that acquires what it holds already is told so, wherever in it that happens."""

import asyncio
import contextvars
import functools

import pytest
from fastapi import Depends, FastAPI
from starlette.middleware.base import BaseHTTPMiddleware

from tests.support.http import client_of
from weblock import AlreadyHeld, Locks
from weblock.contrib.fastapi import install, lock


@pytest.fixture
async def blocking(url, locks):
    with Locks.from_url(url, wait=30) as blocking:
        yield blocking


@pytest.fixture(params=["plain", "BaseHTTPMiddleware"])
async def app(request, locks):
    """An application whose lock ``/…`` holds "cart", with and without a task between."""
    app = FastAPI(dependencies=[Depends(lock("cart"))])
    if request.param == "BaseHTTPMiddleware":

        async def pass_on(request, call_next):
            return await call_next(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    install(app, locks)
    return app


async def test_a_def_handler_is_told_at_once(app, blocking):
    """A thread of the pool that works for the request cannot wait for the request's own key."""

    @app.get("/")
    def handler():
        with pytest.raises(AlreadyHeld, match="request"):
            blocking.acquire("cart")
        return "told"

    async with client_of(app, raises=True) as client:
        assert (await client.get("/")).json() == "told"


async def test_child_tasks_and_threads_are_told_at_once(app, locks, blocking):
    """Nor can the tasks and threads that the handler starts."""

    @app.get("/")
    async def handler():
        async with asyncio.TaskGroup() as group:
            in_task = group.create_task(_error_of(locks.acquire("cart")))
            in_thread = group.create_task(_error_of(asyncio.to_thread(blocking.acquire, "cart")))
        assert isinstance(in_task.result(), AlreadyHeld)
        assert isinstance(in_thread.result(), AlreadyHeld)
        return "told"

    async with client_of(app, raises=True) as client:
        assert (await client.get("/")).json() == "told"


async def test_blocking_code_beside_a_request_is_told_at_once(app, blocking):
    """On the loop of a request, it would stop the request for whose key it waits."""

    @app.get("/")
    async def handler():
        outsider = functools.partial(asyncio.create_task, context=contextvars.Context())
        error = await _error_of(outsider(acquire()))
        return type(error).__name__

    async def acquire():
        blocking.acquire("cart", wait=1)

    async with client_of(app, raises=True) as client:
        assert (await client.get("/")).json() == "AlreadyHeld"


async def test_child_tasks_of_one_handler_wait_for_one_another(app, locks):
    """What a child task acquires for itself is its own: its sibling waits, and then has it."""
    order = []

    async def child(name, entered):
        async with locks.hold("stock"):
            order.append(f"{name} in")
            entered.set()
            await asyncio.sleep(0)
            order.append(f"{name} out")

    @app.get("/")
    async def handler():
        entered = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(child("one", entered))
            await entered.wait()
            group.create_task(child("two", asyncio.Event()))
        return order

    async with client_of(app, raises=True) as client:
        answer = await client.get("/")
    assert answer.json() == ["one in", "one out", "two in", "two out"]


async def test_what_a_handler_acquired_is_not_refused_to_its_child(app, locks):
    """A handler's child may wait for what the handler holds by itself and is about to release."""

    @app.get("/")
    async def handler():
        lease = await locks.acquire("stock")
        child = asyncio.create_task(locks.acquire("stock"))
        await asyncio.sleep(0.01)
        assert not child.done()
        await lease.release()
        await (await child).release()
        return "done"

    async with client_of(app, raises=True) as client:
        assert (await client.get("/")).json() == "done"


async def test_a_handler_that_dropped_its_context_waits_at_most_its_wait(app, blocking):
    """A thread that knows nothing of the request cannot be told: ``wait`` bounds its waiting."""

    @app.get("/")
    async def handler():
        loop = asyncio.get_running_loop()
        stranger = functools.partial(blocking.acquire, "cart", wait=0.05)
        error = await _error_of(loop.run_in_executor(None, stranger))
        return type(error).__name__

    async with client_of(app, raises=True) as client:
        assert (await client.get("/")).json() == "LockTimeout"


async def _error_of(awaitable):
    (error,) = await asyncio.gather(awaitable, return_exceptions=True)
    return error
