"""A lease that is lost while its request is served: who is told, when, and what is not committed."""

import asyncio
import itertools
import threading
from functools import partial
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware

from tests.support.http import client_of
from weblock import AsyncLease, LeaseLost
from weblock.contrib.asgi import LockMiddleware, Rule
from weblock.contrib.fastapi import install, lock

from .losing import lose
from .wire import Exchange

NEVER = 60.0

one = lock("x")
Held = Annotated[AsyncLease, Depends(one)]


class Sessions:
    """Dependencies that commit unless something was raised; what each of them came to."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def sync(self):
        try:
            yield
        except BaseException:
            self.outcomes.append("rolled back")
            raise
        self.outcomes.append("committed")

    async def asynchronous(self):
        try:
            yield
        except BaseException:
            await asyncio.sleep(0)  # As a rollback that talks to a database does.
            self.outcomes.append("rolled back")
            raise
        self.outcomes.append("committed")


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


async def pass_on(request: Request, call_next: Any) -> Any:
    return await call_next(request)


def lost(answer: httpx.Response) -> bool:
    return answer.status_code == 503 and answer.json()["code"] == "lease_lost"


ORDERS = ["lock first", "session first"]
WAYS = [
    pytest.param(way, id=", ".join(way))
    for way in itertools.product(ORDERS, ["request", "function"], ["sync", "asynchronous"])
]


@pytest.mark.parametrize("way", WAYS)
async def test_an_async_handler_is_cancelled(app, locks, sessions, way):
    """It is cancelled once, where it waits; its sessions roll back; the client is told."""
    order, scope, kind = way
    cancelled = []
    session: Any = Depends(getattr(sessions, kind), scope=scope)
    parts = [Depends(one), session]

    @app.post("/items", dependencies=parts if order == "lock first" else parts[::-1])
    async def create(lease: Held) -> None:
        lose(lease)
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # It may clean up: it is not cancelled again.
            cancelled.append(True)
            raise

    async with client_of(app) as client:
        assert lost(await client.post("/items"))
    assert cancelled == [True]
    assert sessions.outcomes == ["rolled back"]
    assert await locks.try_acquire("x")


class Worker:
    """Endpoints of several kinds, all of them coroutine functions."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def __call__(self, lease: Held, first: int = 1) -> None:
        lose(lease)
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            self.cancelled += first
            raise

    async def method(self, lease: Held) -> None:
        await self(lease)


@pytest.mark.parametrize("kind", ["function", "method", "partial", "of an object", "object"])
@pytest.mark.parametrize("place", ["app", "router", "router added later"])
async def test_each_kind_of_async_endpoint_is_cancelled(app, kind, place):
    """From its first request on, wherever it is; and it is wrapped once, for all its requests."""
    worker = Worker()

    async def function(lease: Held) -> None:
        await worker(lease)

    endpoint: Any = {
        "function": function,
        "method": worker.method,
        "partial": partial(function),
        "of an object": partial(worker.__call__, first=1),
        "object": worker,
    }[kind]
    router = FastAPI() if place == "app" else APIRouter()
    router.websocket("/talk")(endpoint)
    if (
        kind != "object"
    ):  # FastAPI 0.121 calls an object in a thread, and cannot await what it returns.
        router.post("/items")(endpoint)
    if place == "router added later":
        async with client_of(app) as client:
            assert (await client.get("/docs")).status_code == 200
    if place == "app":
        app.mount("/in", router)
    else:
        app.include_router(router, prefix="/in")
    async with client_of(app) as client:
        for _ in range(3):
            exchange = Exchange(kind="websocket", path="/in/talk")
            exchange.says({"type": "websocket.connect"})
            await exchange.served_by(app)
            assert exchange.last == "websocket.close"
            if kind != "object":
                assert lost(await client.post("/in/items"))
    assert worker.cancelled == (3 if kind == "object" else 6)


async def test_only_the_request_that_lost_its_lease_is_cancelled(app):
    """Two requests of one endpoint at once: the other runs to its end."""
    both, leases = asyncio.Barrier(2), {}

    @app.post("/{number}")
    async def create(
        number: int, lease: Annotated[AsyncLease, Depends(lock("{number}", wait=0))]
    ) -> str:
        leases[number] = lease
        await both.wait()
        if number == 1:
            await asyncio.sleep(NEVER)
        lose(leases[1])
        await asyncio.sleep(0.05)
        return "created"

    async with client_of(app) as client:
        one, other = await asyncio.gather(client.post("/1"), client.post("/2"))
    assert lost(one)
    assert other.json() == "created"


async def test_dependencies_see_the_loss(app):
    """Around a cancelled endpoint, the task is cancelled no more: dependencies get the error and can wait."""
    seen = []

    async def around():
        try:
            yield
        except Exception as error:
            await asyncio.sleep(0)
            task = asyncio.current_task()
            assert task is not None
            seen.append((type(error), task.cancelling()))
            raise

    @app.post("/items", dependencies=[Depends(around)])
    async def create(lease: Held) -> None:
        lose(lease)
        await asyncio.sleep(NEVER)

    async with client_of(app) as client:
        assert lost(await client.post("/items"))
    assert seen == [(LeaseLost, 0)]


async def test_behind_a_middleware_alone(locks):
    """With ``LockMiddleware`` and without ``install``, the client is told as well."""
    app = FastAPI()

    @app.post("/items")
    async def create(lease: Held) -> None:
        lose(lease)
        await asyncio.sleep(NEVER)

    async with client_of(LockMiddleware(app, locks, rules=[Rule("/items", key="y")])) as client:
        assert lost(await client.post("/items"))


async def test_behind_a_task_group(locks, sessions):
    """Behind ``BaseHTTPMiddleware``, which runs the application in another task, it is the same."""
    app = FastAPI()
    app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    install(app, locks)

    @app.post("/items", dependencies=[Depends(sessions.asynchronous)])
    async def create(lease: Held) -> None:
        lose(lease)
        await asyncio.sleep(NEVER)

    async with client_of(app) as client:
        assert lost(await client.post("/items"))
    assert sessions.outcomes == ["rolled back"]


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("kind", ["sync", "asynchronous"])
async def test_a_def_handler_finds_out(app, sessions, kind, asks):
    """At ``lease.check()``, or else before its response starts: no commit in either case."""
    ended = []

    @app.post("/items", dependencies=[Depends(getattr(sessions, kind))])
    def create(lease: Held) -> str:
        lose(lease)
        if asks:
            lease.check()
        ended.append(True)
        return "created"

    async with client_of(app) as client:
        assert lost(await client.post("/items"))
    assert ended == ([] if asks else [True])
    assert sessions.outcomes == ["rolled back"]


async def test_continue_turns_cancelling_off(app, sessions):
    """With ``on_lost="continue"`` a handler runs to its end, and neither commits nor succeeds."""
    ended = []
    goes_on = lock("x", on_lost="continue")

    @app.post("/items", dependencies=[Depends(sessions.asynchronous)])
    async def create(lease: Annotated[AsyncLease, Depends(goes_on)]) -> str:
        lose(lease)
        await asyncio.sleep(0.1)
        ended.append(True)
        return "created"

    async with client_of(app) as client:
        assert lost(await client.post("/items"))
    assert ended == [True]
    assert sessions.outcomes == ["rolled back"]


async def test_a_dependency_is_not_interrupted(app):
    """What a dependency does, in a thread say, it does to its end; then the endpoint does not begin."""
    ended, ran = [], []

    def slow(lease: Held):
        lose(lease)
        threading.Event().wait(0.1)  # The loss is told meanwhile.
        ended.append("entering")
        yield
        ended.append("leaving")

    @app.post("/items", dependencies=[Depends(slow)])
    async def create() -> None:
        ran.append(True)

    async with client_of(app) as client:
        assert lost(await client.post("/items"))
    assert ended[0] == "entering"
    assert ran == []


async def test_a_handler_that_will_not_be_cancelled_does_not_succeed(app, sessions):
    """Swallowing the cancellation helps nobody: the answer is the problem."""

    @app.post("/items", dependencies=[Depends(sessions.asynchronous)])
    async def create(lease: Held) -> str:
        lose(lease)
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            pass
        return "created"

    async with client_of(app) as client:
        assert lost(await client.post("/items"))
    assert sessions.outcomes == ["rolled back"]


async def test_an_error_on_the_way_out_is_logged(app, caplog):
    """What a cancelled handler raises instead is no answer, but is not lost either."""

    @app.post("/items")
    async def create(lease: Held) -> None:
        lose(lease)
        try:
            await asyncio.sleep(NEVER)
        finally:
            raise ZeroDivisionError

    async with client_of(app) as client:
        assert lost(await client.post("/items"))
    assert "ZeroDivisionError" in caplog.text


async def test_a_refusal_is_no_answer_either(app):
    """A 422 that was decided without the lease is not told; the loss is."""

    @app.post("/items")
    def create(lease: Held) -> None:
        lose(lease)
        raise HTTPException(422, "there are enough")

    async with client_of(app) as client:
        assert lost(await client.post("/items"))


@pytest.mark.parametrize("endpoint", ["def", "async def"])
async def test_users_words_for_a_loss(locks, endpoint):
    """The user's handler for ``LeaseLost`` has the last word, also where the endpoint was cancelled.

    Middleware that is added after ``install`` sees it, like any answer.
    """
    app = FastAPI()
    install(app, locks)
    app.add_middleware(CORSMiddleware, allow_origins=["*"])

    @app.exception_handler(LeaseLost)
    async def in_own_words(request: Request, error: LeaseLost) -> JSONResponse:
        return JSONResponse({"lost": error.key}, 409)

    def create(lease: Held) -> None:
        lose(lease)

    async def create_async(lease: Held) -> None:
        lose(lease)
        await asyncio.sleep(NEVER)

    app.post("/items")(create if endpoint == "def" else create_async)
    exchange = Exchange()
    await exchange.served_by(app)
    assert exchange.status == 409
    assert exchange.body == b'{"lost":"x"}'
    assert exchange.headers["access-control-allow-origin"] == "*"


async def test_a_stream_that_is_held_back_breaks_off(app, monkeypatch):
    """A stream whose lease is lost before its first part has left is cut when that leaves."""
    monkeypatch.setattr("weblock.contrib.kit.bodies.STREAMS_AFTER", 0.05)

    async def parts(lease):
        yield b"first"
        lose(lease)
        await asyncio.sleep(NEVER)

    @app.post("/items")
    async def stream(lease: Held) -> StreamingResponse:
        return StreamingResponse(parts(lease))

    exchange = Exchange()
    await exchange.served_by(app)
    assert not exchange.complete


async def test_a_stream_in_a_thread_breaks_off_at_its_next_part(locks):
    """So does one that is made by a ``def`` generator behind ``BaseHTTPMiddleware``."""
    app = FastAPI()
    app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    install(app, locks, hold_back=0)

    @app.post("/items")
    def stream(lease: Held) -> StreamingResponse:
        def parts():
            yield b"first"
            lose(lease)
            yield b"second"

        return StreamingResponse(parts())

    exchange = Exchange()
    try:
        await exchange.served_by(app)
    except LeaseLost:
        pass
    assert exchange.body in (b"first", b"")
    assert not exchange.complete


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_websocket_is_closed(app, locks, accepted):
    """Its handler is cancelled, and its client told to try again later, with the code."""

    @app.websocket("/items")
    async def talk(socket: WebSocket, lease: Held) -> None:
        if accepted:
            await socket.accept()
        lose(lease)
        await asyncio.sleep(NEVER)

    exchange = Exchange(kind="websocket")
    exchange.says({"type": "websocket.connect"})
    await exchange.served_by(app)
    close = {"type": "websocket.close", "code": 1013, "reason": "lease_lost"}
    assert exchange.sent[-1] == close
    assert len(exchange.sent) == 1 + accepted
    assert await locks.try_acquire("x")
