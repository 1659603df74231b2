"""Clients that send their bodies slowly: they hold no key for longer than the limit."""

import asyncio

import pytest
from litestar import Request as LitestarRequest
from litestar import post

from tests.support.aio import PATIENCE, eventually
from weblock import ConfigurationError
from weblock.contrib.asgi import LockMiddleware, RequestLayer, Rule, request_locks
from weblock.contrib.kit import AHEAD
from weblock.contrib.litestar import LockedLitestar
from weblock.contrib.litestar import lock as litestar_lock
from weblock.errors import BodyTimeout

from .wire import Exchange

TRICKLE = 0.01
"""Seconds between two bytes of a slow client."""


def with_body(*, chunked=False, version="1.1", path="/items"):
    """A request whose body is on its way."""
    exchange = Exchange(path=path, body=None)
    exchange.scope["http_version"] = version
    field = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"100000")
    exchange.scope["headers"] = [*exchange.scope["headers"], *([field] if version < "2" else [])]
    return exchange


def part(body=b"-", *, more=True):
    """A part of a body."""
    return {"type": "http.request", "body": body, "more_body": more}


async def trickle(exchange):
    """Send bytes until the exchange is answered."""
    while not exchange.complete:
        exchange.says(part())
        await asyncio.sleep(TRICKLE)


async def reads_all(scope, receive, send):
    """An application that reads its whole body, and answers with its length."""
    size, more = 0, True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        size, more = size + len(message["body"]), message.get("more_body")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def locked(app):
    """The application, which acquires a key before it does anything."""

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
    assert not exchange.sent or exchange.status == 499


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


def test_the_error_tells_what_to_do():
    """Its message has the limit and the option."""
    assert "within 5 s" in str(BodyTimeout(5))
    assert "body_wait" in str(BodyTimeout(5))
