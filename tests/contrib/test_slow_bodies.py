"""Clients that send their bodies slowly: they hold no key for longer than the limit."""

import asyncio
import io
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask, request
from hypothesis import given
from hypothesis import strategies as st
from litestar import Request as LitestarRequest
from litestar import post
from werkzeug.test import create_environ, run_wsgi_app

from tests.support.aio import PATIENCE, eventually
from weblock import ConfigurationError, Locks
from weblock.contrib.asgi import LockMiddleware, RequestLayer, Rule, request_locks
from weblock.contrib.flask import WebLock
from weblock.contrib.kit import AHEAD
from weblock.contrib.litestar import LockedLitestar
from weblock.contrib.litestar import lock as litestar_lock
from weblock.contrib.wsgi import LockMiddleware as WsgiLockMiddleware
from weblock.contrib.wsgi import request as wsgi_request

from .wire import Exchange

TRICKLE = 0.01
"""Seconds between two bytes of a slow client."""


def with_body(*, chunked=False, version="1.1", path="/items"):
    exchange = Exchange(path=path, body=None)
    exchange.scope["http_version"] = version
    field = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"100000")
    exchange.scope["headers"] = [*exchange.scope["headers"], *([field] if version < "2" else [])]
    return exchange


def part(body=b"-", *, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


async def trickle(exchange):
    while not exchange.complete:
        exchange.says(part())
        await asyncio.sleep(TRICKLE)


async def reads_all(scope, receive, send):
    size, more = 0, True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        size, more = size + len(message["body"]), message.get("more_body")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def locked(app):
    async def locks_first(scope, receive, send):
        await request_locks(scope).acquire("x", wait=0)
        await app(scope, receive, send)

    return locks_first


@pytest.mark.parametrize("headers", [{}, {"chunked": True}, {"version": "2"}], ids=str)
async def test_a_body_is_read_before_the_lock(locks, headers):
    """A client that sends a byte now and then holds no key, and gets 408 when the limit is reached."""
    exchange = with_body(**headers)
    served = exchange.served_by(RequestLayer(locked(reads_all), locks, body_wait=10 * TRICKLE))
    sending = asyncio.ensure_future(trickle(exchange))
    while not served.done():
        await (await locks.acquire("x", wait=0)).release()
        await asyncio.sleep(0)
    await sending
    assert exchange.status == 408
    assert exchange.problem["code"] == "body_timeout"


async def test_a_large_body_is_limited_inside_the_lock(locks):
    """Who stops after the first 64 KiB, or trickles, holds the key no longer than the limit."""
    exchange = with_body()
    exchange.says(part(bytes(AHEAD)))
    served = exchange.served_by(RequestLayer(locked(reads_all), locks, body_wait=10 * TRICKLE))
    sending = asyncio.ensure_future(trickle(exchange))
    await eventually(lambda: exchange.scope.get("weblock") and request_locks(exchange.scope).leases)
    async with asyncio.timeout(PATIENCE):
        await served
    await sending
    assert exchange.status == 408
    await (await locks.acquire("x", wait=0)).release()


async def test_a_large_body_is_limited_before_the_key_of_an_idempotent_rule(locks):
    """All of it is read before the request is executed, and no part of it may take longer than the limit."""
    idempotent = {"caller": "anonymous"}
    rule = Rule("/items", methods=["POST"], idempotent=idempotent)
    exchange = with_body()
    exchange.scope["method"] = "POST"
    exchange.scope["headers"] += [(b"idempotency-key", b"k1")]
    exchange.says(part(bytes(AHEAD + 1)))
    layer = LockMiddleware(reads_all, locks, [rule], body_wait=10 * TRICKLE)
    async with asyncio.timeout(PATIENCE):
        await exchange.served_by(layer)
    assert exchange.status == 408


async def test_a_steady_client_is_not_limited(locks):
    """The limit is about 64 KiB at a time, and only about the time in which the application waits."""

    async def app(scope, receive, send):
        await asyncio.sleep(0.3)  # Longer than the limit: it does not wait for its client.
        await reads_all(scope, receive, send)

    exchange = with_body()
    served = exchange.served_by(RequestLayer(locked(app), locks, body_wait=0.2))
    for _ in range(4):
        exchange.says(part(bytes(AHEAD)))
    exchange.says(part(b"", more=False))
    await served
    assert exchange.body == str(4 * AHEAD).encode()


async def test_without_a_limit_nothing_is_read_before_the_lock(locks):
    """With ``body_wait=None`` a client may answer what the application sends, as long as it likes."""
    acquired = asyncio.Event()

    async def app(scope, receive, send):
        acquired.set()
        await reads_all(scope, receive, send)

    exchange = with_body()
    served = exchange.served_by(RequestLayer(locked(app), locks, body_wait=None))
    await acquired.wait()
    exchange.says(part(more=False))
    await served
    assert exchange.body == b"1"


async def test_a_request_that_locks_nothing_may_be_slow(locks):
    """The limit is for requests that lock."""
    exchange = with_body()
    served = exchange.served_by(RequestLayer(reads_all, locks, body_wait=0.001))
    for _ in range(5):
        await asyncio.sleep(0.002)
        exchange.says(part())
    exchange.says(part(more=False))
    await served
    assert exchange.body == b"6"


async def test_a_client_that_leaves_in_its_body(locks):
    """Its request ends without the key, which it has not asked for yet."""
    exchange = with_body()
    served = exchange.served_by(RequestLayer(locked(reads_all), locks))
    exchange.says(part())
    exchange.leaves()
    async with locks.hold("x"):
        await served
    assert exchange.status == 499


async def test_a_busy_event_loop_is_not_the_clients_fault(locks):
    """A body that has arrived is accepted, even if the loop was busy for longer than the limit."""
    exchange = with_body()
    exchange.says(part(more=False))
    receive = exchange.receive

    async def late():
        message = await receive()
        time.sleep(2 * TRICKLE)  # noqa: ASYNC251 - the loop is busy
        return message

    exchange.receive = late
    await exchange.served_by(RequestLayer(locked(reads_all), locks, body_wait=TRICKLE))
    assert exchange.body == b"1"


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"0")]], ids=str)
async def test_who_listens_for_a_disconnect_is_not_limited(locks, headers):
    """A stream without a request body may go on, also if middleware farther out has read its end."""
    messages = []

    async def streams(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"-", "more_body": True})
        messages.append(await receive())

    exchange = Exchange(body=None)
    exchange.scope["headers"] += headers
    served = exchange.served_by(RequestLayer(locked(streams), locks, body_wait=TRICKLE))
    await asyncio.wait({served}, timeout=5 * TRICKLE)
    exchange.leaves()
    await served
    assert messages == [{"type": "http.disconnect"}]


async def test_by_a_rule_and_by_a_guard(locks):
    """A rule's middleware and Litestar take the limit, and answer alike."""

    @post("/items", guards=[litestar_lock("x")], status_code=200)
    async def create(request: LitestarRequest) -> str:
        return str(len(await request.body()))

    litestar = LockedLitestar([create], locks=locks, body_wait=TRICKLE)
    rule = Rule("/items", methods=["POST"], key="x")
    middleware = LockMiddleware(reads_all, locks, [rule], body_wait=TRICKLE)
    for app in (litestar, middleware):
        exchange = with_body()
        await exchange.served_by(app)
        assert exchange.problem["code"] == "body_timeout"
    with pytest.raises(ConfigurationError, match="body_wait='5'"):
        LockMiddleware(reads_all, locks, [rule], body_wait="5")


class SlowInput(io.BytesIO):
    """``wsgi.input`` whose client pauses, and which notes whether the key is free while it does."""

    def __init__(self, body, probe, pauses=()):
        super().__init__(body)
        self.probe = probe
        self.pauses = list(pauses)
        self.was_free = []

    def read(self, *size):
        with ThreadPoolExecutor(1) as stranger:
            lease = stranger.submit(self.probe.try_acquire, "x").result()
            self.was_free.append(lease is not None)
            if lease:
                stranger.submit(lease.release).result()
        time.sleep(self.pauses.pop(0) if self.pauses else 0)
        return super().read(*size)


def flask_app(probe, **options):
    app = Flask(__name__)
    weblock = WebLock(app, probe, **options)

    @app.post("/items")
    @weblock.lock("x")
    def create():
        return str(len(request.get_data()))

    return app


def ruled_app(probe, **options):
    def app(environ, start_response):
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        start_response("200 OK", [])
        return [str(len(body)).encode()]

    return WsgiLockMiddleware(app, probe, [Rule("/items", key="x")], **options)


@pytest.mark.parametrize("make", [flask_app, ruled_app])
class TestWsgi:
    """Threads read a body with the same policy, as far as their server lets them."""

    def post(self, app, slow, size):
        return run_wsgi_app(
            app,
            create_environ("/items", method="POST", input_stream=slow, content_length=size),
        )

    def test_a_body_is_read_before_the_lock(self, url, make):
        """The first 64 KiB arrive before the key is acquired, and the application gets all of it."""
        with Locks.from_url(url) as probe:
            slow = SlowInput(bytes(2 * AHEAD), probe)
            parts, status, _ = self.post(make(probe), slow, 2 * AHEAD)
        assert status == "200 OK"
        assert b"".join(parts) == str(2 * AHEAD).encode()
        assert slow.was_free[0]
        assert not any(slow.was_free[1:])

    @pytest.mark.parametrize("pauses", [[0.1], [0, 0.1]], ids=["before the lock", "inside it"])
    def test_a_client_that_pauses_gets_408(self, url, make, pauses):
        """Where no connection is seen, what arrives too late is rejected, and the key is free."""
        with Locks.from_url(url) as probe:
            slow = SlowInput(bytes(2 * AHEAD), probe, pauses)
            parts, status, _ = self.post(make(probe, body_wait=0.05), slow, 2 * AHEAD)
            assert status.startswith("408")
            assert b"body_timeout" in b"".join(parts)
            probe.acquire("x", wait=0).release()

    def test_without_a_limit_nothing_is_read_before(self, url, make):
        """``body_wait=None`` leaves the whole body to the application."""
        with Locks.from_url(url) as probe:
            slow = SlowInput(b"12345", probe)
            parts, _, _ = self.post(make(probe, body_wait=None), slow, 5)
            assert b"".join(parts) == b"5"
            assert not any(slow.was_free)


@given(
    body=st.binary(max_size=200).map(lambda each: each.replace(b"0", b"\n")),
    ahead=st.integers(1, 100),
    calls=st.lists(
        st.tuples(st.sampled_from(["read", "readline", "readlines"]), st.integers(-1, 90))
    ),
)
def test_a_body_reads_like_the_input_of_its_server(body, ahead, calls):
    """Whatever was read ahead, an application gets the same bytes from the same calls."""
    environ = {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wsgi_request, "AHEAD", ahead)
        found = wsgi_request.Body(environ, PATIENCE)
        found.read_ahead()
        plain = io.BytesIO(body)
        for name, size in calls:
            assert getattr(found, name)(size) == getattr(plain, name)(size)
        assert list(found) == list(plain)
