"""``Rule(idempotent=...)``: requests that are executed once, with their answers in the engine of the locks."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.servers import Server, a_valkey, fresh_url
from tests.servers.postgres import fresh_postgresql
from tests.support.events import Heard
from tests.support.waiting import PATIENCE
from weblock import AsyncLocks, ConfigurationError, Locks
from weblock._adapting import KeptTexts
from weblock._runtime.runtimes import drive
from weblock.contrib import asgi, wsgi
from weblock.contrib.kit.once import KeptAnswers
from weblock.events import Repeated

RULE: dict[str, Any] = {"path": "/orders", "methods": ["POST"]}
ANSWERS = {"caller": "anonymous", "wait": 0}


def asgi_caller(scope: Any) -> str | None:
    """Return the user of a request."""
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


def wsgi_caller(environ: Any) -> str | None:
    """Return the user of a request."""
    return environ.get("HTTP_X_USER") or None


class Shop:
    """An application that executes orders, in a middleware, and how often it has.

    Its locks share all keys, and fail open, which counts for no idempotent request.
    """

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.orders: list[bytes] = []
        self.status, self.parts = 201, [b"order "]
        self.headers = [("Content-Type", "text/plain"), ("Set-Cookie", "a=b"), ("Date", "today")]
        self.work: Callable[[], object] = lambda: None
        caller = asgi_caller if kind == "asgi" else wsgi_caller
        idempotent = {"caller": caller, **options}
        rule = {**RULE, "idempotent": idempotent}
        self.is_asgi = kind == "asgi"
        if self.is_asgi:
            self.locks: Any = AsyncLocks.from_url(url, limit=3, on_unavailable="open")
            self.app: Any = asgi.LockMiddleware(self.asgi, self.locks, [rule])
            self.transport: Any = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        else:
            self.locks = Locks.from_url(url, limit=3, on_unavailable="open")
            self.app = wsgi.LockMiddleware(self.wsgi, self.locks, [rule])
            self.transport = httpx.WSGITransport(self.app, raise_app_exceptions=False)

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message.get("more_body")
        await asyncio.to_thread(self.execute, message["body"])
        headers = [(name.lower().encode(), value.encode()) for name, value in self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"%d" % len(self.orders)})

    def wsgi(self, environ: Any, start_response: Any) -> Any:
        self.execute(environ["wsgi.input"].read())
        start_response(f"{self.status} Fine", self.headers)
        return [*self.parts, b"%d" % len(self.orders)]

    def execute(self, body: bytes) -> None:
        """Do what is to be done once."""
        self.orders.append(body)
        self.work()

    async def order(
        self, body: bytes = b"tea", *, key: str | None = "k1", user: str = "anna", **more: Any
    ) -> httpx.Response:
        """Send an order, and return the response."""
        headers = {"X-User": user, **({"Idempotency-Key": key} if key else {})}
        headers |= more.pop("headers", {})
        given = {"url": "http://shop/orders", "content": body, "headers": headers, **more}
        if self.is_asgi:
            async with httpx.AsyncClient(transport=self.transport, timeout=PATIENCE) as client:
                return await client.post(**given)
        return await asyncio.to_thread(lambda: httpx.Client(transport=self.transport).post(**given))

    async def close(self) -> None:
        if self.is_asgi:
            await self.locks.close()
        else:
            self.locks.close()


@pytest.fixture(params=["asgi", "wsgi"])
def kind(request) -> str:
    """The kind of middleware."""
    return request.param


@pytest.fixture
async def opened(kind, url):
    """Open shops of this kind, with the options of the rule."""
    shops = []

    def opening(at: str = url, **options: Any) -> Shop:
        shops.append(Shop(kind, at, **options))
        return shops[-1]

    yield opening
    for shop in shops:
        await shop.close()


async def test_a_request_that_is_sent_again_gets_the_first_answer(opened):
    """Status, headers and body; without cookies, with a mark, also from another process's middleware."""
    shop, another, heard = opened(), opened(), Heard()
    shop.locks.observe(heard.observer)
    first, again, elsewhere = [await each.order() for each in (shop, shop, another)]
    assert [each.outcome for each in heard.of(Repeated)] == ["replayed"]
    assert shop.orders == [b"tea"]
    assert not another.orders
    assert (first.status_code, first.text) == (201, "order 1")
    assert first.headers["set-cookie"] == "a=b"
    assert "idempotency-replayed" not in first.headers
    for answer in (again, elsewhere):
        assert (answer.status_code, answer.text) == (201, "order 1")
        assert answer.headers["content-type"] == "text/plain"
        assert answer.headers["idempotency-replayed"] == "true"
        assert not {"set-cookie", "date"} & set(answer.headers)
    for other in ({"user": "bert"}, {"key": "k2"}, {"url": "http://shop/orders?a=b", "key": "k3"}):
        assert "idempotency-replayed" not in (await shop.order(**other)).headers
    assert len(shop.orders) == 4


@pytest.mark.parametrize(
    ("request_of", "status", "code"),
    [
        ({"key": None}, 400, "idempotency_key_missing"),
        ({"key": "a b"}, 400, "idempotency_key_invalid"),
        ({"body": b"milk"}, 422, "idempotency_key_reused"),
        ({"url": "http://shop/orders?a=b"}, 422, "idempotency_key_reused"),
        ({"key": "k2"}, 429, "too_many_answers"),
        ({"user": ""}, 403, "caller_unknown"),
        ({"body": b"x" * 101}, 413, "body_too_long"),
    ],
    ids=repr,
)
async def test_what_is_rejected_is_not_executed(opened, request_of, status, code):
    """Each mistake of a client has a problem of its own."""
    shop = opened(max_answers=1, max_request=100)
    assert (await shop.order()).status_code == 201
    answer = await shop.order(**request_of)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert len(shop.orders) == 1


async def test_a_form_is_its_parts_not_its_boundary(opened):
    """A browser makes another boundary each time."""
    shop = opened()

    def form(boundary: str, value: str) -> dict[str, Any]:
        part = f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n{value}\r\n'
        kind = f"multipart/form-data; boundary={boundary}"
        return {"body": f"{part}--{boundary}--\r\n".encode(), "headers": {"Content-Type": kind}}

    answers = [await shop.order(**form(*each)) for each in (("b1", "x"), ("b2", "x"), ("b3", "y"))]
    assert [each.status_code for each in answers] == [201, 201, 422]
    assert len(shop.orders) == 1


@pytest.mark.parametrize("protocol", ["HTTP/2", "HTTP/2.0", "HTTP/3"])
async def test_a_body_without_a_length_is_a_part_of_the_request(url, protocol):
    """No header of HTTP/2 has to say that there is one: the application gets it, and another is no retry."""
    shop = Shop("wsgi", url)

    def served(environ: Any, start_response: Any) -> Any:
        environ |= {"SERVER_PROTOCOL": protocol, "wsgi.input_terminated": True}
        environ.pop("CONTENT_LENGTH", None)
        environ.pop("HTTP_CONTENT_LENGTH", None)
        return shop.app(environ, start_response)

    shop.transport = httpx.WSGITransport(served)
    answers = [await shop.order(body) for body in (b"tea", b"milk", b"tea")]
    assert [each.status_code for each in answers] == [201, 422, 201]
    assert shop.orders == [b"tea"]
    await shop.close()


@pytest.mark.parametrize("status", [400, 409, 422, 429, 500, 503])
async def test_an_error_is_not_kept(opened, status):
    """Whether it was raised or returned cannot be seen here, so the request is checked again."""
    shop = opened()
    shop.status = status
    assert (await shop.order()).status_code == status
    shop.status = 302
    assert [(await shop.order()).status_code for _ in range(2)] == [302, 302]
    assert len(shop.orders) == 2


async def test_a_request_that_failed_is_executed_again(opened):
    """Its application raised an exception, after it had worked."""
    shop = opened()
    shop.work = lambda: 1 / 0
    with suppress(ZeroDivisionError):
        assert (await shop.order()).status_code == 500
    shop.work = lambda: None
    assert (await shop.order()).status_code == 201
    assert len(shop.orders) == 2


async def test_a_long_answer_is_sent_and_not_kept(opened, caplog):
    """The work is done, so its client is told; the log says that it can be done again."""
    shop = opened(max_body=100)
    shop.parts = [b"x" * 50] * 2
    answers = [await shop.order() for _ in range(2)]
    assert [each.text[100:] for each in answers] == ["1", "2"]
    said = [each for each in caplog.messages if "max_body=100" in each]
    assert len(said) == 2
    assert said[0].startswith("the answer to POST /orders was not stored")


async def test_a_stream_that_its_client_leaves_is_not_kept(kind, opened, caplog):
    """The log says that its request can be executed again."""
    shop = opened()
    shop.headers = [("Content-Type", "text/event-stream")]
    if kind == "asgi":
        sent = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) == 2:
                raise OSError

        headers = [(b"idempotency-key", b"k1"), (b"x-user", b"anna"), (b"content-length", b"0")]
        scope = {"type": "http", "method": "POST", "path": "/orders", "headers": headers}
        with suppress(OSError):
            await shop.app(scope, receive, send)
    else:
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/orders", "wsgi.input": io.BytesIO()}
        environ |= {"HTTP_IDEMPOTENCY_KEY": "k1", "HTTP_X_USER": "anna"}
        body = shop.app(environ, lambda *_: lambda _part: None)
        assert next(iter(body)) == b"order "
        body.close()
    (said,) = [each for each in caplog.messages if "before it was complete" in each]
    assert said.startswith("the answer to POST /orders was not stored")
    assert (await shop.order(b"")).text == "order 2"


async def test_an_answer_of_another_format_is_left_as_it_is(opened, url, caplog):
    """Its request is refused, and the list of answers says that it is not in it."""
    shop = opened()
    await shop.order()
    with Locks.from_url(url) as locks:
        texts = KeptTexts(locks, "this test")
        ((key, text),) = drive(texts.all(9))
        kept = json.loads(text)
        other = json.dumps({"format": 2, "answer": "?"})
        with locks.hold(key) as lease:
            drive(texts.keep(lease, kept["caller"], other, 60))
        assert KeptAnswers(locks).all(9) == []
        assert f"left out: {key} was stored in the format 2" in caplog.text
        with suppress(ConfigurationError):  # httpx raises what a WSGI application raises.
            assert (await shop.order()).status_code == 500
        assert drive(texts.all(9)) == [(key, other)]
    assert shop.orders == [b"tea"]


async def test_an_answer_is_kept_for_so_long(opened, url):
    """With what a person needs to know of it, under the key of the lock."""
    await opened(keep=60).order()
    with Locks.from_url(url) as locks:
        texts = KeptTexts(locks, "this test")
        ((key, text),) = drive(texts.all(9))
        kept = json.loads(text)
        found = drive(texts.find(key, kept["caller"]))
    assert key == f"idempotency:{kept['digest']}"
    assert (kept["request"], kept["idempotency_key"]) == ("POST /orders", "k1")
    assert 0 < found.rest <= 60
    assert 0 < kept["expires_at"] - time.time() <= 60


async def test_a_running_request_is_waited_for_or_reported(opened):
    """By default with 409 and ``Retry-After``; with ``wait``, its answer comes."""
    shop, patient = opened(), opened(wait=PATIENCE)
    running, goes_on = threading.Event(), threading.Event()
    shop.work = lambda: (running.set(), goes_on.wait(PATIENCE))
    first = asyncio.create_task(shop.order())
    assert await asyncio.to_thread(running.wait, PATIENCE)
    busy = await shop.order()
    assert (busy.status_code, busy.json()["code"]) == (409, "lock_timeout")
    assert "retry-after" in busy.headers
    waiting = asyncio.create_task(patient.order())
    await asyncio.sleep(0)
    goes_on.set()
    assert (await first).text == (await waiting).text == "order 1"
    assert not patient.orders


ENGINES = {
    "memory": lambda path: f"memory://{uuid.uuid4().hex}",
    "file": lambda path: f"file://{path}/locks",
    "valkey": lambda path: fresh_url(a_valkey()),
    "postgresql": lambda path: fresh_postgresql(),
}


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_race_is_executed_once(opened, engine, tmp_path):
    """In 200 races of two requests with one key, in two middlewares of each kind; each engine keeps the answer."""
    url = ENGINES[engine](tmp_path)
    shops = [opened(url, wait=PATIENCE) for _ in range(2)]
    for batch in range(10):
        racing = [shop.order(key=f"{batch}-{key}") for key in range(10) for shop in shops]
        answers = await asyncio.gather(*racing)
        for pair in zip(answers[::2], answers[1::2], strict=True):
            assert [each.status_code for each in pair] == [201, 201]
            replayed = [each.headers.get("idempotency-replayed") for each in pair]
            assert sorted(replayed, key=str) == [None, "true"]
            assert pair[0].text == pair[1].text
    assert sum(len(shop.orders) for shop in shops) == 100


async def test_a_stale_holder_keeps_nothing(opened, url):
    """It lost its lease while it worked: its client gets 503, and the retry the answer of the next holder."""
    shop, next_one = opened(), opened()
    with Locks.from_url(url) as probe:

        def lose() -> None:
            (info,) = probe.list()
            assert probe.force_release(info.key)

        shop.work = lose
        stale = await shop.order()
        assert (stale.status_code, stale.json()["code"]) == (503, "lease_lost")
        next_one.parts = [b"of the next holder "]
        answers = [await each.order() for each in (next_one, shop)]
        assert {each.text for each in answers} == {"of the next holder 1"}


async def test_an_engine_that_is_down(opened, caplog):
    """Before the work: 503, and nothing runs. After it: the true response, and an error in the log."""
    with Server() as server:
        url = server.url(recovery="off", timeout=0.5, connect_timeout=0.5)
        shop = opened(url)
        shop.work = server.kill
        assert (await shop.order()).text == "order 1"
        assert any("was not stored" in each for each in caplog.messages)
        assert (await shop.order()).json()["code"] == "engine_unavailable"
        assert len(shop.orders) == 1


@pytest.mark.parametrize("sent_early", ["after hold_back", "as a stream", "before tasks"])
async def test_a_response_that_was_sent_is_repeated_whatever_follows_it(url, sent_early):
    """The application fails when its client has the response, and a retry gets the same one."""
    orders, locks = [], AsyncLocks.from_url(url)
    arrived = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        orders.append(1)
        if sent_early == "before tasks":
            asgi.request_locks().hold_back(lambda: True)
        kind = b"text/event-stream" if sent_early == "as a stream" else b"text/plain"
        start = {"status": 201, "headers": [(b"content-type", kind), (b"content-length", b"1")]}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": b"%d" % len(orders)})
        await asyncio.wait_for(arrived.wait(), PATIENCE)
        raise ZeroDivisionError

    middleware = asgi.LockMiddleware(
        app,
        locks,
        [{**RULE, "idempotent": ANSWERS}],
        hold_back=0.01 if sent_early == "after hold_back" else None,
    )

    async def post() -> tuple[int, bytes]:
        sent = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body":
                arrived.set()

        headers = [(b"idempotency-key", b"k1"), (b"content-length", b"0")]
        scope = {"type": "http", "method": "POST", "path": "/orders", "headers": headers}
        with suppress(ZeroDivisionError):
            await middleware(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    assert [await post() for _ in range(2)] == [(201, b"1")] * 2
    await locks.close()


async def test_an_answer_is_not_kept_if_the_key_of_the_rule_was_lost(kind, url):
    """Its client gets 503, and so the work is not reported as done to a retry either."""
    shop = Shop(kind, url)
    middleware = asgi.LockMiddleware if kind == "asgi" else wsgi.LockMiddleware
    lost = []

    def lose() -> None:
        (lease,) = [each for each in held().leases if each.key == "orders"]
        if not lost:
            lease._leased[0].lose("taken")
            lost.append(lease)

    held = asgi.request_locks if kind == "asgi" else wsgi.request_locks

    async def losing_asgi(*exchange: Any) -> None:
        await shop.asgi(*exchange)
        lose()

    class LosingWsgi(list[bytes]):
        close = staticmethod(lose)

    def losing_wsgi(*exchange: Any) -> Any:
        return LosingWsgi(shop.wsgi(*exchange))

    rule = {**RULE, "key": "orders", "wait": PATIENCE, "ttl": 1, "idempotent": ANSWERS}
    app = middleware(losing_asgi if kind == "asgi" else losing_wsgi, shop.locks, [rule])
    shop.transport = (httpx.ASGITransport if kind == "asgi" else httpx.WSGITransport)(app)
    answers = [await shop.order() for _ in range(2)]
    assert [each.status_code for each in answers] == [503, 201]
    assert answers[1].text == "order 2"
    await shop.close()


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"path": "/orders", "idempotent": ANSWERS}, "GET and HEAD requests can be repeated"),
        ({**RULE, "methods": ["GET"], "idempotent": ANSWERS}, "GET and HEAD"),
        ({**RULE, "methods": ["WEBSOCKET"], "idempotent": ANSWERS}, "websocket"),
        ({**RULE, "idempotent": {}}, "caller="),
        ({**RULE, "idempotent": {"caller": lambda: 7}}, "cannot be called with scope"),
        ({**RULE, "idempotent": {**ANSWERS, "max_body": 65537}}, "65536"),
        ({**RULE, "idempotent": {**ANSWERS, "max_request": 0}}, "max_request="),
        ({**RULE, "idempotent": {**ANSWERS, "sotre": 1}}, "'sotre'"),
        ({**RULE, "idempotent": ANSWERS, "exempt": True}, "exempt"),
        ({**RULE, "idempotent": ANSWERS, "ttl": 5}, "has no key"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_rule_that_cannot_work_is_rejected(rule, reason):
    """At start, and by name."""
    with pytest.raises(ConfigurationError, match=reason):
        asgi.RuleSet([rule])


@pytest.mark.parametrize("url", ["noop://", "memcached://localhost", "zookeeper://localhost/a"])
def test_an_engine_that_keeps_no_answers_is_rejected_at_start(kind, url):
    """Its name is in the error, and what to use instead."""
    with pytest.raises(ConfigurationError, match=rf"idempotent= of Rule.*{url[:5]}.*postgresql://"):
        Shop(kind, url)


async def test_a_rule_can_lock_as_well(kind, url):
    """The key of the rule is held while a request is executed, and not for one that is answered again."""
    shop = Shop(kind, url)
    middleware = asgi.LockMiddleware if kind == "asgi" else wsgi.LockMiddleware
    rule = {**RULE, "key": "orders", "wait": 0, "idempotent": ANSWERS}
    app = middleware(getattr(shop, kind), shop.locks, [rule])
    shop.transport = (httpx.ASGITransport if kind == "asgi" else httpx.WSGITransport)(app)
    with Locks.from_url(url) as probe:
        keys: list[str] = []
        shop.work = lambda: keys.extend(sorted(each.key for each in probe.list()))
        assert (await shop.order()).status_code == 201
        assert [each.partition(":")[0] for each in keys] == ["idempotency", "orders"]
        with probe.hold("orders"):
            assert (await shop.order(key="k2")).status_code == 409
            assert (await shop.order()).headers["idempotency-replayed"] == "true"
    await shop.close()
