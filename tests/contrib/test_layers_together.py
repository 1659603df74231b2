"""A rule's middleware and an application with locks of its own, around one request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request
from flask import Flask
from starlette.middleware.base import BaseHTTPMiddleware

from tests.support import aio
from tests.support.http import client_of
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLease, AsyncLocks, LeaseLost, Locks, LockTimeout
from weblock.contrib import asgi, wsgi
from weblock.contrib.fastapi import install, lock
from weblock.contrib.flask import WebLock
from weblock.contrib.wsgi.request import request_locks

from .wire import Exchange

RULES = {"asgi": asgi.Rule("/orders", key="x"), "wsgi": wsgi.Rule("/orders", key="x")}


def _keys_of(url: str, namespace: str) -> list[str]:
    with Locks.from_url(url, namespace=namespace) as locks:
        return [info.key for info in locks.list()]


def _add_layers(app: FastAPI, url: str, *, rule_is_outside: bool) -> None:
    if rule_is_outside:
        install(app, url, namespace="shop")
    rules = AsyncLocks.from_url(url, namespace="rules")
    app.add_middleware(asgi.LockMiddleware, locks=rules, rules=[RULES["asgi"]])
    if not rule_is_outside:
        install(app, url, namespace="shop")


@pytest.mark.parametrize("rule_is_outside", [True, False])
async def test_a_request_never_waits_for_the_key_of_its_own_rule(
    url: str, rule_is_outside: bool
) -> None:
    """An endpoint that locks the key of the rule for its path is served, whichever is outside."""
    app = FastAPI()

    @app.post("/orders")
    async def order(lease: Annotated[AsyncLease, Depends(lock("x", wait=1))]) -> list[str]:
        return list(lease.keys)

    if rule_is_outside:
        install(app, url)
    app.add_middleware(asgi.LockMiddleware, locks=url, rules=[RULES["asgi"]])
    if not rule_is_outside:
        install(app, url)
    async with client_of(app) as client:
        answer = await client.post("/orders")
    assert (answer.status_code, answer.json()) == (200, ["x"])


@pytest.mark.parametrize("rule_is_outside", [True, False])
def test_a_view_never_waits_for_the_key_of_its_own_rule(url: str, rule_is_outside: bool) -> None:
    """The same for a view of Flask."""
    app, web = Flask(__name__), WebLock(locks=url)

    @app.post("/orders")
    @web.lock("x", wait=1)
    def order() -> list[str]:
        return ["served"]

    if rule_is_outside:
        web.init_app(app)
    app.wsgi_app = wsgi.LockMiddleware(app.wsgi_app, url, [RULES["wsgi"]])  # type: ignore[method-assign]
    if not rule_is_outside:
        web.init_app(app)
    answer = app.test_client().post("/orders")
    assert (answer.status_code, answer.json) == (200, ["served"])


def test_what_a_rule_holds_is_checked_with_what_the_application_holds(url: str) -> None:
    """A commit is refused when the lease of the rule around the application was lost."""
    lost: list[LeaseLost] = []

    def application(environ, start_response):  # type: ignore[no-untyped-def]
        mine = request_locks(environ)
        assert mine.book.keys
        mine.book.check()
        with Locks.from_url(url) as others:
            others.force_release("x")
        (of_rule,) = mine.book.keys.values()
        eventually(lambda: not of_rule.held)
        with pytest.raises(LeaseLost) as refused:
            mine.book.check()
        lost.append(refused.value)
        start_response("204 No Content", [])
        return []

    inner = wsgi.RequestLayer(application, Locks.from_url(url))
    app = wsgi.LockMiddleware(inner, url, [RULES["wsgi"]])
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/orders", "wsgi.input": None}
    list(app(environ, lambda *_said: lambda _part: None))
    assert lost[0].key == "x"


@pytest.mark.parametrize("rule_is_outside", [True, False])
@pytest.mark.parametrize("path", ["/orders", "/returns"])
async def test_an_endpoint_that_acquires_by_itself_does_so_by_its_application(
    url: str, path: str, rule_is_outside: bool
) -> None:
    """``request_locks`` goes to the locks of ``install``, whether a rule matches, and wherever it stands."""
    app = FastAPI()

    @app.post(path)
    async def serve(request: Request) -> list[str]:
        await asgi.request_locks(request.scope).acquire("stock")
        return _keys_of(url, "shop")

    _add_layers(app, url, rule_is_outside=rule_is_outside)
    async with client_of(app) as client:
        assert (await client.post(path)).json() == ["stock"]
    assert _keys_of(url, "shop") == []


@contextlib.asynccontextmanager
async def _waiting(
    url: str, *, rule_is_outside: bool, by_itself: bool = False
) -> AsyncIterator[tuple[Exchange, asyncio.Task[None]]]:
    """Yield a request that holds the key of its rule, and waits for that of its endpoint.

    The block makes it end while another holder still has that key, so its handler must never run.
    """
    app = FastAPI()
    shop = AsyncLocks.from_url(url, namespace="shop")
    rules = AsyncLocks.from_url(url, namespace="rules")
    ran: list[bool] = []

    @app.post("/orders", dependencies=[] if by_itself else [Depends(lock("stock", wait=None))])
    async def order(request: Request) -> None:
        if by_itself:
            await asgi.request_locks(request.scope).acquire("stock", wait=None)
        ran.append(True)

    async def pass_on(request, call_next):  # type: ignore[no-untyped-def]
        return await call_next(request)

    if rule_is_outside:
        install(app, shop)
    app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    app.add_middleware(asgi.LockMiddleware, locks=rules, rules=[RULES["asgi"]])
    if not rule_is_outside:
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
        install(app, shop)
    async with shop, rules:
        exchange = Exchange(path="/orders")
        async with shop.hold("stock"):
            served = exchange.served_by(app)
            await aio.until_waited_for(shop, "stock")
            yield exchange, served
            ended, _ = await asyncio.wait({served}, timeout=PATIENCE)
        await asyncio.wait({served})
        assert ended
        assert not ran
        assert await rules.inspect("x") is None


@pytest.mark.parametrize("by_itself", [True, False])
@pytest.mark.parametrize("rule_is_outside", [True, False])
async def test_a_client_that_leaves_stops_waiting_behind_a_rule(
    url: str, rule_is_outside: bool, by_itself: bool
) -> None:
    """It waits no longer for its endpoint's key, frees that of its rule, and no error is raised."""
    async with _waiting(url, rule_is_outside=rule_is_outside, by_itself=by_itself) as waiting:
        exchange, served = waiting
        exchange.leaves()
    assert served.exception() is None
    assert exchange.status == 499  # Middleware around the layer expects a response.


@pytest.mark.parametrize("rule_is_outside", [True, False])
async def test_a_server_that_cancels_ends_the_waiting_behind_a_rule(
    url: str, rule_is_outside: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The request ends at once, and is not logged as one that has failed."""
    async with _waiting(url, rule_is_outside=rule_is_outside) as (_, served):
        served.cancel()
    assert served.cancelled()
    assert not [each for each in caplog.records if each.name.startswith("weblock")]


@pytest.mark.parametrize("rule_is_outside", [True, False])
async def test_background_tasks_follow_the_response_behind_a_rule(
    url: str, rule_is_outside: bool
) -> None:
    """A response that tasks follow does not wait for them in either layer."""
    app, goes_on = FastAPI(), asyncio.Event()

    @app.post("/orders", dependencies=[Depends(lock("stock"))])
    async def order(background: BackgroundTasks) -> None:
        background.add_task(goes_on.wait)

    _add_layers(app, url, rule_is_outside=rule_is_outside)
    exchange = Exchange(path="/orders")
    served = exchange.served_by(app)
    await aio.eventually(lambda: exchange.complete)
    assert not served.done()
    goes_on.set()
    await served


async def test_a_layer_that_has_ended_hides_none_around_it(url: str) -> None:
    """Of two applications that are asked in turn, the second does not wait for the key of their rule."""
    first = AsyncLocks.from_url(url, namespace="first")
    around, again = AsyncLocks.from_url(url), AsyncLocks.from_url(url)
    fences = []

    async def answers(scope, receive, send):  # type: ignore[no-untyped-def]
        fences.append((await asgi.request_locks(scope).acquire("x", wait=0)).fence)

    async def nothing(*_request):  # type: ignore[no-untyped-def]
        pass

    async def cascade(*request):  # type: ignore[no-untyped-def]
        await asgi.LockMiddleware(nothing, first, [RULES["asgi"]])(*request)
        await answers(*request)
        for locks in (around, again):
            await asgi.LockMiddleware(answers, locks, [RULES["asgi"]])(*request)

    exchange = Exchange(path="/orders")
    async with first, around, again:
        app = asgi.LockMiddleware(cascade, around, [RULES["asgi"]])
        await exchange.served_by(app)
    assert len(fences) == 3
    assert len({*fences}) == 1


async def test_what_a_layer_has_released_is_acquired_again(url: str) -> None:
    """An application that needs a key after the rule inside it has released it gets a live lease."""
    held = []

    async def inside(scope, receive, send):  # type: ignore[no-untyped-def]
        await asgi.request_locks(scope).acquire("x")

    async def application(scope, receive, send):  # type: ignore[no-untyped-def]
        await asgi.LockMiddleware(inside, rules, [RULES["asgi"]])(scope, receive, send)
        held.append((await asgi.request_locks(scope).acquire("x")).held)

    async with AsyncLocks.from_url(url) as rules, AsyncLocks.from_url(url) as own:
        exchange = Exchange(path="/orders")
        await exchange.served_by(asgi.RequestLayer(application, own))
    assert held == [True]


async def test_applications_that_run_at_once_in_one_request_have_locks_of_their_own(
    url: str,
) -> None:
    """What one of two applications behind a rule acquires is in its namespace, and outlives the other."""
    opened, ended = asyncio.Event(), asyncio.Event()
    held: list[object] = []

    async def first(*_request):  # type: ignore[no-untyped-def]
        await opened.wait()
        lease = await asgi.request_locks().acquire("stock")
        ended.set()
        await second_has_ended.wait()
        held.extend([lease.held, _keys_of(url, "first")])

    async def second(*_request):  # type: ignore[no-untyped-def]
        opened.set()
        await ended.wait()

    async def both(scope, *more):  # type: ignore[no-untyped-def]
        async def served_by_second() -> None:
            await asgi.RequestLayer(second, other)(dict(scope), *more)
            second_has_ended.set()

        await asyncio.gather(asgi.RequestLayer(first, one)(dict(scope), *more), served_by_second())

    second_has_ended = asyncio.Event()
    one, other = (AsyncLocks.from_url(url, namespace=name) for name in ("first", "second"))
    async with one, other, AsyncLocks.from_url(url) as rules:
        app = asgi.LockMiddleware(both, rules, [RULES["asgi"]])
        await Exchange(path="/orders").served_by(app)
    assert held == [True, ["stock"]]


async def test_an_application_does_not_rely_on_what_another_one_beside_it_holds(url: str) -> None:
    """The other one may release it meanwhile. What the rule around both holds is theirs."""
    taken, asked = asyncio.Event(), asyncio.Event()

    async def first(*_request):  # type: ignore[no-untyped-def]
        await asgi.request_locks().acquire("stock")
        taken.set()
        await asked.wait()

    async def second(*_request):  # type: ignore[no-untyped-def]
        await taken.wait()
        try:
            assert (await asgi.request_locks().acquire("x", wait=0)).held
            with pytest.raises(LockTimeout):
                await asgi.request_locks().acquire("stock", wait=0)
        finally:
            asked.set()

    async def both(scope, *more):  # type: ignore[no-untyped-def]
        async def begun_late() -> None:
            await taken.wait()
            await asgi.RequestLayer(second, two)(dict(scope), *more)

        await asyncio.gather(asgi.RequestLayer(first, one)(dict(scope), *more), begun_late())

    one, two, rules = (AsyncLocks.from_url(url) for _ in range(3))
    async with one, two, rules:
        exchange = Exchange(path="/orders")
        await exchange.served_by(asgi.LockMiddleware(both, rules, [RULES["asgi"]]))
