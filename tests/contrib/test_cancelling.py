"""Requests that are cancelled from outside, by anyio and by asyncio, as if weblock were not there."""

import asyncio
import warnings

import anyio
import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.responses import PlainTextResponse

from tests.support.aio import PATIENCE, eventually
from weblock import AsyncLocks
from weblock.contrib.asgi import RequestLayer, request_locks
from weblock.contrib.fastapi import install, lock

from .wire import Exchange

with (
    warnings.catch_warnings()
):  # Starlette prefers another HTTP library than the rest of our tests uses.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient


def limited(app, limit):
    """An application that a middleware ends after a moment, with ``TimeoutError`` if it had not ended."""

    async def middleware(scope, receive, send):
        scope["host task"] = asyncio.current_task()
        with anyio.CancelScope():
            async with asyncio.TaskGroup():
                if limit is anyio.fail_after:
                    with anyio.fail_after(0.01):
                        await app(scope, receive, send)
                else:
                    async with asyncio.timeout(0.01):
                        await app(scope, receive, send)

    return middleware


@pytest.mark.parametrize("limit", [anyio.fail_after, asyncio.timeout])
class TestLimits:
    @pytest.mark.parametrize("layered", [True, False])
    async def test_a_limit_around_a_request_that_holds_nothing(self, locks, limit, layered):
        """Both kinds of a limit end the work at once, and raise ``TimeoutError``."""

        async def app(scope, receive, send):
            await asyncio.get_running_loop().create_future()

        app = RequestLayer(app, locks) if layered else app
        with pytest.RaisesGroup(TimeoutError, allow_unwrapped=True, flatten_subgroups=True):
            async with asyncio.timeout(PATIENCE):
                await limited(app, limit)(*wired(Exchange()))

    async def test_a_limit_around_a_request_that_holds_a_lock(self, locks, limit):
        """The work runs to its end inside the lock, and nothing spins until then; then the limit counts."""
        events = []

        async def app(scope, receive, send):
            host = scope["host task"]
            lease = await request_locks(scope).acquire("x")
            await eventually(host.cancelling)
            for _ in range(50):
                await asyncio.sleep(0)
            events.append(("committed", lease.held, host.cancelling()))

        with pytest.RaisesGroup(TimeoutError, allow_unwrapped=True, flatten_subgroups=True):
            async with asyncio.timeout(PATIENCE):
                await limited(RequestLayer(app, locks), limit)(*wired(Exchange()))
        assert events == [("committed", True, 1)]
        assert asyncio.current_task().cancelling() == 0
        await (await locks.acquire("x", wait=0)).release()

    async def test_a_limit_ends_the_wait_for_a_body(self, locks, limit):
        """What waits inside the lock for a message that no server passes on is told of a disconnect."""
        heard = []

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x")
            while not heard or heard[-1] not in ("http.disconnect", "websocket.disconnect"):
                heard.append((await receive())["type"])

        exchange = Exchange(kind="websocket")
        with pytest.RaisesGroup(TimeoutError, allow_unwrapped=True, flatten_subgroups=True):
            async with asyncio.timeout(PATIENCE):
                await limited(RequestLayer(app, locks), limit)(*wired(exchange))
        assert heard == ["websocket.disconnect"]


def wired(exchange):
    return exchange.scope, exchange.receive, exchange.send


def ended_by(way, app):
    """An application that anyio ends after a moment: by a deadline, a scope that is cancelled, or a task group."""

    async def middleware(scope, receive, send):
        async def serve():
            scope["host task"] = asyncio.current_task()
            await app(scope, receive, send)

        if way == "group":
            async with anyio.create_task_group() as group:
                group.start_soon(serve)
                await anyio.sleep(0.01)
                group.cancel_scope.cancel()
        else:
            with anyio.CancelScope() as limit:
                if way == "deadline":
                    limit.deadline = anyio.current_time() + 0.01
                else:
                    asyncio.get_running_loop().call_later(0.01, limit.cancel)
                await serve()

    return middleware


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("way", ["deadline", "scope", "group"])
async def test_shields_of_an_application_count(locks, url, way, layers):
    """Where nothing is locked, anyio ends no work that the application itself shields."""
    done = []

    async def app(scope, receive, send):
        with anyio.CancelScope(shield=True):
            await eventually(scope["host task"].cancelling)
            await asyncio.sleep(0)
            done.append("in the shield")
        await asyncio.sleep(0)
        done.append("after it")

    async with AsyncLocks.from_url(url) as others:
        layered = RequestLayer(app, locks)
        if layers == 2:
            layered = RequestLayer(layered, others)
        async with asyncio.timeout(PATIENCE):
            await ended_by(way, layered)(*wired(Exchange()))
    assert done == ["in the shield"]


@pytest.mark.parametrize("locked", [True, False])
def test_a_limit_in_a_middleware_of_starlette(url, locked):
    """Behind ``@app.middleware("http")`` with a limit, a client gets the 504 that the middleware gives."""
    app = FastAPI()
    install(app, url)
    committed = []

    @app.middleware("http")
    async def limit(request, call_next):
        try:
            with anyio.fail_after(0.05):
                return await call_next(request)
        except TimeoutError:
            return PlainTextResponse("too late", 504)

    @app.get("/", dependencies=[Depends(lock("x"))] if locked else [])
    async def work():
        await asyncio.sleep(0.2)
        committed.append(True)

    with TestClient(app) as client:
        assert client.get("/").status_code == 504
    assert committed == [True]


def test_a_websocket_that_only_sends(url):
    """A test client that leaves ends a websocket that holds a lock and never listens."""
    app = FastAPI()
    install(app, url)

    @app.websocket("/ticks")
    async def ticks(websocket: WebSocket, _: object = Depends(lock("x"))):
        await websocket.accept()
        while True:
            await websocket.send_text("tick")
            await asyncio.sleep(0.001)

    with TestClient(app) as client, client.websocket_connect("/ticks") as websocket:
        assert websocket.receive_text() == "tick"
