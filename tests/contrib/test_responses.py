"""Every kind of response that an endpoint can give, and when the lock behind it is released."""

import asyncio
import gc
import threading
from typing import Annotated

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, StreamingResponse
from starlette.background import BackgroundTask

from tests.support.aio import eventually, until_waited_for
from tests.support.waiting import PATIENCE
from weblock import AsyncLease
from weblock.contrib.asgi import AsyncRequestLocks, RequestLayer, request_locks
from weblock.contrib.asgi.client import Inbox, Outbox
from weblock.contrib.fastapi import install, lock

from .wire import Exchange

NEVER = 60.0


def locked(locks, *, hold_back=NEVER):
    app = FastAPI(dependencies=[Depends(lock("x"))])
    install(app, locks, hold_back=hold_back)
    return app


class Task:
    """Work behind a response, which ends when it is told to."""

    def __init__(self):
        self.go_on = threading.Event()
        self.ended = False

    def sync(self):
        assert self.go_on.wait(PATIENCE)
        self.ended = True

    async def asynchronous(self):
        await eventually(self.go_on.is_set)
        self.ended = True


@pytest.mark.parametrize("kind", ["sync", "asynchronous"])
@pytest.mark.parametrize("way", ["declared", "own", "stream", "file"])
async def test_background_work_is_not_waited_for(locks, tmp_path, kind, way):
    """The response goes out first; the work behind it is done inside the lock, then it is free."""
    app = locked(locks, hold_back=NEVER if way == "declared" else 0.05)
    task = Task()
    work = getattr(task, kind)
    (tmp_path / "file").write_bytes(b'"answer"')

    @app.post("/items")
    async def create(tasks: BackgroundTasks):
        match way:
            case "declared":
                tasks.add_task(work)
                return "answer"
            case "own":
                return JSONResponse("answer", background=BackgroundTask(work))
            case "stream":
                return StreamingResponse(iter(['"answer"']), background=BackgroundTask(work))
            case _:
                return FileResponse(tmp_path / "file", background=BackgroundTask(work))

    exchange = Exchange()
    served = exchange.served_by(app)
    await eventually(lambda: exchange.complete)
    assert exchange.body == b'"answer"'
    assert not task.ended
    assert await locks.try_acquire("x") is None
    task.go_on.set()
    await served
    assert task.ended
    assert await locks.try_acquire("x")


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (FileResponse, 200),
        (lambda path: StreamingResponse(iter([b"con", b"tent"])), 200),
        (lambda path: RedirectResponse("/elsewhere"), 307),
        (lambda path: JSONResponse({}, 418), 418),
    ],
    ids=["file", "stream", "redirect", "teapot"],
)
async def test_a_response_is_sent_whole_after_the_release(locks, shop, tmp_path, make, status):
    """Whatever it is made of, a short response comes after the release, unchanged."""
    app = locked(locks)
    (tmp_path / "file").write_bytes(b"content")

    @app.post("/items")
    def create():
        return make(tmp_path / "file")

    exchange = Exchange(events=shop.events)
    await exchange.served_by(app)
    assert exchange.status == status
    assert shop.events == ["release", "last byte"]
    length = exchange.headers.get("content-length")
    assert length is None or int(length) == len(exchange.body)


@pytest.mark.parametrize("kind", ["push", "early_hint", "debug"])
@pytest.mark.parametrize("locked", [True, False])
async def test_what_precedes_a_response_is_none(locks, kind, locked):
    """A message of an extension is sent at once; the body can still be read, and an error be answered."""
    hint = {
        "type": f"http.response.{kind}",
        "links": [],
        "path": "/x.css",
        "headers": [],
        "info": {},
    }
    received = []

    async def app(scope, receive, send):
        if locked:
            await request_locks(scope).acquire("y")
        await send(hint)
        received.append((await receive())["body"])
        await request_locks(scope).acquire("x", wait=0)

    exchange = Exchange(body=b"body")
    async with locks.hold("x"):
        await exchange.served_by(RequestLayer(app, locks))
    assert (received, exchange.sent.pop(0), exchange.status) == ([b"body"], hint, 409)


async def test_a_stream_that_fails_is_a_500_while_none_of_it_was_sent(locks):
    """A short stream that breaks off is not sent as if it were whole."""
    app = locked(locks)

    def parts():
        yield b"begin"
        raise ZeroDivisionError

    @app.post("/items")
    def create():
        return StreamingResponse(parts())

    exchange = Exchange()
    with pytest.raises(ZeroDivisionError):
        await exchange.served_by(app)
    assert exchange.status == 500
    assert b"begin" not in exchange.body
    assert await locks.try_acquire("x")


async def test_a_request_without_a_lock_is_passed_on_message_by_message(locks):
    """Each message is sent before the application goes on, and is the very object that it made."""
    messages = [
        {"type": "http.response.start", "status": 200, "headers": []},
        {"type": "http.response.body", "body": b"a", "more_body": True},
        {"type": "http.response.body", "body": b"b" * 2**21, "more_body": True},
        {"type": "http.response.body", "body": b""},
    ]
    asked = {"type": "http.request", "body": b"question"}
    heard = []

    async def app(scope, receive, send):
        assert scope["path"] == "/items"
        heard.append(await receive())
        for count, message in enumerate(messages):
            await send(message)
            assert len(exchange.sent) == count + 1

    exchange = Exchange(body=None)
    exchange.says(asked)
    await exchange.served_by(RequestLayer(app, locks))
    assert heard[0] is asked
    assert all(sent is made for sent, made in zip(exchange.sent, messages, strict=True))


@pytest.fixture
def no_collections():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def of_requests():
    kinds = (AsyncRequestLocks, Inbox, Outbox)
    return sum(type(each) in kinds for each in gc.get_objects())


@pytest.mark.usefixtures("no_collections")
async def test_nothing_is_left_to_the_garbage_collector(locks):
    """What a request was made of is freed when it ends, also if it locked, waited or streamed."""
    app = locked(locks)

    @app.post("/items")
    async def create(lease: Annotated[AsyncLease, Depends(lock("x"))]):
        return lease.key

    @app.post("/stream")
    async def stream():
        return StreamingResponse(body())

    # Not a plain iterator: since Python 3.12 the end of one, an exception in a future of anyio's, refers to itself and
    # to all frames below it, and so Starlette leaves each such request to the collector, with weblock or without.
    async def body():
        yield b"a" * 2**21
        yield b"b"

    async def serve_all():
        for path in ("/items", "/stream"):
            async with locks.hold("x"):
                served = Exchange(path=path).served_by(app)
                await until_waited_for(locks, "x")
            await served

    await serve_all()
    before = of_requests()
    await serve_all()
    assert of_requests() <= before  # Fewer, where those of another test ended meanwhile.


async def test_nothing_is_left_running(locks):
    """After requests of every kind, no task of theirs is left in the event loop."""
    app = locked(locks)

    @app.post("/items")
    async def create():
        return "created"

    before = asyncio.all_tasks()
    holder = await locks.acquire("x")
    waiting = [Exchange() for _ in range(3)]
    served = [exchange.served_by(app) for exchange in waiting]
    await eventually(lambda: all(exchange.incoming.empty() for exchange in waiting))
    await until_waited_for(locks, "x", by=3)
    waiting[0].leaves()
    served[1].cancel()
    await eventually(lambda: served[0].done() and served[1].done())
    await holder.release()
    await served[2]
    await Exchange().served_by(app)
    await eventually(lambda: asyncio.all_tasks() <= before)
