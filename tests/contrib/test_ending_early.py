"""Requests that end before their time: given up, cancelled, or outlived by a part of themselves."""

import asyncio
from typing import Annotated

import pytest
from fastapi import Body, Depends, FastAPI, Request

from tests.support.aio import PATIENCE, eventually
from weblock import ConfigurationError
from weblock.contrib.asgi import RequestLayer, request_locks
from weblock.contrib.asgi.request import SCOPE_KEY
from weblock.contrib.fastapi import install, lock
from weblock.contrib.kit.problems import ClientGone

from .wire import Exchange

LONG = 10 * PATIENCE
"""A ttl that nobody outlasts who waits: what is kept stays in the way."""
START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"done"}


@pytest.fixture
async def complaints():
    complaints = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    yield complaints
    loop.set_exception_handler(None)


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


def is_watched_by_its_own_read(exchange):
    """Whether the request waits for a lock, and watches its client by what the application is reading."""
    request = exchange.scope.get(SCOPE_KEY)
    return request and request._inbox._direct


class TestPartsThatOutliveTheRequest:
    @pytest.mark.parametrize("kind", ["http", "websocket"])
    async def test_a_key_that_was_released_is_acquired_again(self, locks, kind):
        """A request that releases a key has no claim to it; what it still holds is not waited for."""
        fences = []

        async def app(scope, receive, send):
            mine = request_locks(scope)
            await mine.acquire("a")
            both = await mine.acquire("a", "b")
            await (await mine.acquire("b", "c")).release()
            async with locks.hold("b", wait=0) as other:
                fences.append(other.fence)
            again = await mine.acquire("a", "b", wait=0)
            assert again.held
            assert again.fences["a"] == both.fences["a"]
            fences.append(again.fences["b"])

        await Exchange(kind=kind).served_by(RequestLayer(app, locks))
        before, after = fences
        assert before < after
        assert await locks.try_acquire("a", "b", "c")

    async def test_a_lease_that_comes_after_the_end_is_given_back(self, locks):
        """A part of a request that got its lease after the request had ended keeps nobody out."""
        parts = []

        async def app(scope, receive, send):
            parts.append(asyncio.ensure_future(request_locks(scope).acquire("x", ttl=LONG)))
            await asyncio.sleep(0)
            await send(START)
            await send(BODY)

        holder = await locks.acquire("x")
        exchange = Exchange()
        await exchange.served_by(RequestLayer(app, locks))
        assert exchange.complete
        await holder.release()
        with pytest.raises(ConfigurationError, match="ended"):
            await parts[0]
        await (await locks.acquire("x", wait=PATIENCE)).release()

    async def test_a_part_that_went_on_after_another_failed_leaves_nothing(self, locks):
        """Where one of two parts fails to acquire and ends the request, the other's key is free."""

        async def app(scope, receive, send):
            mine = request_locks(scope)
            await asyncio.gather(mine.acquire("x", wait=0), mine.acquire("y", ttl=LONG))

        exchange = Exchange()
        async with locks.hold("x"):
            await exchange.served_by(RequestLayer(app, locks))
        assert exchange.status == 409
        await (await locks.acquire("y", wait=PATIENCE)).release()


class TestClientsThatLeave:
    @pytest.mark.parametrize("turn", range(10))
    async def test_leaving_as_the_lock_is_granted(self, locks, monkeypatch, complaints, turn):
        """A client that leaves in the moment of the grant is served or not, and nothing is said."""
        grant = asyncio.Event()
        acquire = locks._locker.acquire

        async def granted(names, terms, wait, caller=None):
            if caller:
                await caller.prepare_to_wait()
            await grant.wait()
            return await acquire(names, terms, wait, caller)

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x", ttl=LONG)

        monkeypatch.setattr(locks._locker, "acquire", granted)
        exchange = Exchange()
        served = exchange.served_by(RequestLayer(app, locks))
        await eventually(exchange.incoming.empty)
        await turns(5)
        exchange.leaves()
        await turns(turn)
        grant.set()
        await served
        await turns(5)
        assert complaints == []
        await (await locks.acquire("x", wait=PATIENCE)).release()

    async def test_leaving_while_the_application_itself_reads(self, locks):
        """An application that reads beside its waiting shares what it hears with the waiting."""

        async def app(scope, receive, send):
            reading = asyncio.ensure_future(receive())
            await asyncio.sleep(0)
            try:
                await request_locks(scope).acquire("x", wait=None)
            finally:
                await reading

        exchange = Exchange(body=None)
        async with locks.hold("x"):
            served = exchange.served_by(RequestLayer(app, locks))
            await eventually(lambda: is_watched_by_its_own_read(exchange))
            exchange.leaves()
            async with asyncio.timeout(PATIENCE):
                await served


class TestServersThatCancel:
    async def test_waiting_for_a_second_lock_is_given_up(self, locks):
        """A request that holds one lock and waits for another stops waiting, and frees the first."""
        waits = asyncio.Event()
        gave_up = []

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x")
            waits.set()
            try:
                await request_locks(scope).acquire("y", wait=None)
            except ClientGone:
                gave_up.append(True)
                raise

        async with locks.hold("y"):
            served = Exchange().served_by(RequestLayer(app, locks))
            await waits.wait()
            await turns(5)
            served.cancel()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(PATIENCE):
                    await served
            assert gave_up
            await (await locks.acquire("x", wait=0)).release()

    async def test_a_handler_that_has_begun_acquires_no_more(self, locks):
        """After the server has cancelled, a handler runs on but waits for no further lock."""
        began, go_on, errors = asyncio.Event(), asyncio.Event(), []

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x")
            began.set()
            await go_on.wait()
            try:
                await request_locks(scope).acquire("y", wait=None)
            except ClientGone as error:
                errors.append(error)

        async with locks.hold("y"):
            served = Exchange().served_by(RequestLayer(app, locks))
            await began.wait()
            served.cancel()
            await turns(5)
            assert not served.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(PATIENCE):
                    await served
        assert errors

    async def test_what_follows_the_last_part_of_a_stream_is_not_ended(self, locks):
        """A commit that comes after a response in parts is waited for, inside the lock."""
        sent, committed, held = asyncio.Event(), asyncio.Event(), []

        async def app(scope, receive, send):
            lease = await request_locks(scope).acquire("x")
            await send(
                {**START, "headers": [(b"content-type", b"text/event-stream; charset=utf-8")]}
            )
            await send({**BODY, "more_body": True})
            await send(BODY)
            sent.set()
            await committed.wait()
            held.append(lease.held)

        served = Exchange().served_by(RequestLayer(app, locks))
        await sent.wait()
        served.cancel()
        await turns(5)
        assert not served.done()
        committed.set()
        with pytest.raises(asyncio.CancelledError):
            await served
        assert held == [True]
        await (await locks.acquire("x", wait=0)).release()

    @pytest.mark.parametrize("media_type", ["text/event-stream", "text/plain"])
    async def test_an_application_that_listens_while_it_streams_ends(self, locks, media_type):
        """After its last part it hears a disconnect, as servers tell it, also if the parts are held back."""
        heard = []

        async def app(scope, receive, send):
            await receive()
            lease = await request_locks(scope).acquire("x")
            listening = asyncio.ensure_future(receive())
            await send({**START, "headers": [(b"content-type", media_type.encode())]})
            await send({**BODY, "more_body": True})
            await turns(5)
            assert not listening.done()
            await send(BODY)
            heard.append(((await listening)["type"], lease.held))

        exchange = Exchange()
        await exchange.served_by(RequestLayer(app, locks))
        assert heard == [("http.disconnect", True)]
        assert exchange.complete

    @pytest.mark.parametrize("locked", [True, False])
    async def test_the_last_part_is_sent_before_a_disconnect_is_told(self, locks, locked):
        """A framework cancels what still sends as soon as its listener hears of one."""

        async def app(scope, receive, send):
            await receive()
            if locked:
                await request_locks(scope).acquire("x", ttl=LONG)

            async def listen():
                while (await receive())["type"] != "http.disconnect":
                    pass
                sending.cancel()

            async def stream():
                await send({**START, "headers": [(b"content-type", b"text/event-stream")]})
                await send({**BODY, "more_body": True})
                exchange.reading.clear()
                await send(BODY)

            listening, sending = asyncio.ensure_future(listen()), asyncio.ensure_future(stream())
            await asyncio.wait({sending})
            listening.cancel()

        exchange = Exchange()
        served = exchange.served_by(RequestLayer(app, locks))
        await eventually(lambda: not exchange.reading.is_set())
        await turns(9)
        exchange.reading.set()
        await served
        assert exchange.complete

    @pytest.mark.parametrize("media_type", [b"text/event-stream", b"text/csv"])
    async def test_a_stream_without_a_part_ends_for_those_who_listen(self, locks, media_type):
        """Its start and its end are all that there is, and a listener waits for nothing more."""

        async def app(scope, receive, send):
            await receive()
            await request_locks(scope).acquire("x", ttl=LONG)
            listening = asyncio.ensure_future(receive())
            await send({**START, "headers": [(b"content-type", media_type)]})
            await send({"type": "http.response.body", "body": b""})
            assert (await listening)["type"] == "http.disconnect"

        exchange = Exchange()
        async with asyncio.timeout(PATIENCE):
            await exchange.served_by(RequestLayer(app, locks))
        assert exchange.complete

    async def test_a_client_that_does_not_read_keeps_nobody(self, locks):
        """When the lock is released and the client is slow, the server's cancellation is obeyed."""

        async def app(scope, receive, send):
            await request_locks(scope).acquire("x", ttl=LONG)
            await send(START)
            await send(BODY)

        exchange = Exchange()
        exchange.reading.clear()
        served = exchange.served_by(RequestLayer(app, locks))
        await eventually(lambda: exchange.begun)
        await (await locks.acquire("x", wait=PATIENCE)).release()
        served.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE):
                await served
        assert not exchange.complete


class TestUploadsThatBreakOff:
    @pytest.mark.parametrize("turn", ["before the lock", "after the lock"])
    async def test_a_handler_that_reads_is_told(self, locks, turn):
        """Who waits inside the lock for the rest of a body hears that it will not come."""
        heard = []

        async def app(scope, receive, send):
            if turn == "before the lock":
                heard.append(await receive())
            await request_locks(scope).acquire("x")
            while not heard or heard[-1]["type"] != "http.disconnect":
                heard.append(await receive())

        exchange = Exchange(body=None)
        exchange.says({"type": "http.request", "body": b"begin", "more_body": True})
        served = exchange.served_by(RequestLayer(app, locks))
        await eventually(exchange.incoming.empty)
        await turns(5)
        exchange.leaves()
        async with asyncio.timeout(PATIENCE):
            await served
        assert [message.get("body") for message in heard] == [b"begin", None]
        await (await locks.acquire("x", wait=0)).release()


class TestThoseWhoAsk:
    @pytest.mark.parametrize("locked", [True, False])
    @pytest.mark.parametrize("turn", ["first question", "later"])
    async def test_a_long_poll_learns_that_its_client_left(self, locks, locked, turn):
        """``is_disconnected`` gets a true answer inside a lock, while a listener hears nothing."""
        app = FastAPI()
        install(app, locks)
        began, left, answers, heard = asyncio.Event(), asyncio.Event(), [], []

        @app.post("/items", dependencies=[Depends(lock("x"))] if locked else [])
        async def poll(request: Request, _: Annotated[int, Body()]):
            if turn == "later":
                answers.append(await request.is_disconnected())
            began.set()
            await left.wait()
            answers.append(await request.is_disconnected())
            listening = asyncio.ensure_future(request.receive())
            await turns(5)
            heard.append(listening.done())
            listening.cancel()

        exchange = Exchange(body=b"7")
        exchange.scope["headers"].append((b"content-type", b"application/json"))
        served = exchange.served_by(app)
        await began.wait()
        exchange.leaves()
        left.set()
        await served
        assert answers == ([False, True] if turn == "later" else [True])
        assert heard == [not locked]


class TestMiddlewareAround:
    """``@app.middleware("http")``, inside of the layer or around it, expects a response."""

    def install(self, locks, place):
        app = FastAPI()
        around = app.middleware("http")
        if place == "inside":
            around(lambda request, call_next: call_next(request))
        install(app, locks)
        if place == "around":
            around(lambda request, call_next: call_next(request))
        return app

    @pytest.mark.parametrize("place", ["inside", "around", "none"])
    @pytest.mark.parametrize("by", ["dependency", "service"])
    async def test_a_client_that_leaves_while_it_waits(self, locks, place, by):
        """It is nobody's error: sessions roll back without one, and the server gets a response."""
        app, errors, closed = self.install(locks, place), [], []

        async def session():
            try:
                yield
            except Exception as error:
                errors.append(error)
                raise
            finally:
                closed.append("async")

        def sync_session():
            try:
                yield
            except Exception as error:
                errors.append(error)
                raise
            finally:
                closed.append("sync")

        needs = [Depends(session), Depends(sync_session)]

        @app.post(
            "/items", dependencies=[*needs, *([Depends(lock("x"))] if by != "service" else [])]
        )
        async def create():
            await request_locks().acquire("x")

        exchange = Exchange()
        async with locks.hold("x"):
            served = exchange.served_by(app)
            await eventually(lambda: exchange.scope.get(SCOPE_KEY) and request_waits(exchange))
            exchange.leaves()
            await served
        assert exchange.status == 499
        assert errors == []
        assert sorted(closed) == ["async", "sync"]


def request_waits(exchange):
    return request_locks(exchange.scope)._client.waiter
