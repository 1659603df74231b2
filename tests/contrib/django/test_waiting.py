"""Requests that wait: what they keep from others meanwhile, and what becomes of those who leave."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.utils.decorators import async_only_middleware
from django.views.decorators.csrf import csrf_exempt
from werkzeug.test import create_environ, run_wsgi_app

from tests.support.waiting import PATIENCE, eventually
from weblock.contrib.asgi import LockMiddleware as LayerOfRules
from weblock.contrib.asgi import Rule
from weblock.contrib.asgi.request import SCOPE_KEY
from weblock.contrib.django import async_locks, lock, locks
from weblock.contrib.django.middleware import LockMiddleware

from .requests import urls

POOL = {"min_size": 1, "max_size": 1, "timeout": PATIENCE}


def backends() -> set[int]:
    """The connections to the database, besides the one that asks, by the processes that serve them."""
    settings = connections["default"].settings_dict
    with psycopg.connect(
        f"postgresql://postgres@127.0.0.1:{settings['PORT']}/{settings['NAME']}", autocommit=True
    ) as asking:
        asked = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return {pid for (pid,) in asking.execute(asked)}


def without_ours() -> set[int]:
    """The connections besides our own, which is closed: the server takes its time to see that."""
    connection.ensure_connection()
    ours = connection.connection.info.backend_pid
    connection.close()
    eventually(lambda: ours not in backends())
    return backends()


def waiters(key: str) -> int:
    info = locks["default"].inspect(key)
    return len(info.waiters) if info else 0


@pytest.fixture
def logged_in(transactional_db: None) -> Callable[[], Client]:
    user = User.objects.create(username="ada")

    def make() -> Client:
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
def test_a_waiting_request_holds_no_connection(
    middleware: bool, database: Any, serve: Any, settings: Any, logged_in: Any
) -> None:
    """It has used the database for its session, and gives it back before it waits."""
    database(CONN_MAX_AGE=None)
    if not middleware:
        settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]

    @lock(lambda request: f"cart:{request.user.pk}", wait=30)
    def view(request: Any) -> HttpResponse:
        return HttpResponse(request.user.username)

    serve(cart=view)
    client = logged_in()
    user = User.objects.get()
    others = without_ours()

    def visit() -> Any:
        try:
            return client.get("/cart")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with locks["default"].hold(f"cart:{user.pk}"):
            response = pool.submit(visit)
            eventually(lambda: waiters(f"cart:{user.pk}") == 1)
            eventually(lambda: backends() <= others)
        assert response.result(PATIENCE).content == b"ada"


@pytest.mark.django_db(transaction=True)
def test_waiters_leave_the_pool_to_the_holder(database: Any, serve: Any, logged_in: Any) -> None:
    """With a pool of one connection, the holder gets it while others wait who had it before."""
    inside = threading.Event()

    @lock("cart", wait=30)
    def view(request: Any) -> HttpResponse:
        if not inside.is_set():
            connection.close()
            inside.set()
            eventually(lambda: waiters("cart") == 2)
        return HttpResponse(str(User.objects.count()))

    serve(cart=view)
    clients = [logged_in() for _ in range(3)]
    database(OPTIONS={"pool": POOL})

    def visit(client: Client) -> Any:
        try:
            return client.get("/cart").content
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(visit, clients[0])
        assert inside.wait(PATIENCE)
        rest = [pool.submit(visit, client) for client in clients[1:]]
        assert [each.result(PATIENCE) for each in (first, *rest)] == [b"1"] * 3
    connection.close_pool()


class Visit:
    """A request to the project's ASGI application, whose client may leave."""

    def __init__(self, path: str, headers: Any = (), app: Any = None) -> None:
        self._gone = asyncio.Event()
        self._asked = False
        self.status: int | None = None
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"testserver"), *headers],
        }
        self.task = asyncio.ensure_future(
            (app or ASGIHandler())(self.scope, self._receive, self._send)
        )

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if self._asked:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        self._asked = True
        return {"type": "http.request", "body": b""}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)


OURS = f"{LockMiddleware.__module__}.LockMiddleware"
CHAINS = {
    "middleware": [OURS],
    "sync middleware outside": [f"{__name__}.only_sync", OURS],
    "no middleware": [],
    "only sync middleware": [f"{__name__}.only_sync"],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_client_that_leaves_does_not_end_the_lock(
    is_async: bool, chain: list[str], serve: Any, settings: Any
) -> None:
    """Django cancels the request, but its view works on inside the lock, in a thread or a task."""
    settings.MIDDLEWARE = chain
    inside, go_on, held = threading.Event(), threading.Event(), []

    @lock("report")
    def view(request: Any) -> HttpResponse:
        inside.set()
        assert go_on.wait(PATIENCE)
        held.append(request.weblock.held)
        return HttpResponse()

    @lock("report")
    async def async_view(request: Any) -> HttpResponse:
        inside.set()
        assert await asyncio.to_thread(go_on.wait, PATIENCE)
        held.append(request.weblock.held)
        return HttpResponse()

    serve(report=async_view if is_async else view)
    visit = Visit("/report")
    assert await asyncio.to_thread(inside.wait, PATIENCE)
    visit.leave()
    await turns()
    assert await async_locks["default"].try_acquire("report") is None
    go_on.set()
    await visit.task
    assert held == [True]
    assert await async_locks["default"].try_acquire("report")


async def test_who_holds_and_has_left_waits_for_nothing_more(serve: Any, settings: Any) -> None:
    """A view goes on when its client has left, but does not queue for another lock any more."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]
    inside, go_on, ran = asyncio.Event(), asyncio.Event(), []

    @lock("other", wait=None)
    async def inner(request: Any) -> HttpResponse:
        ran.append(request)
        return HttpResponse()

    @lock("report")
    async def view(request: Any) -> HttpResponse:
        inside.set()
        await go_on.wait()
        return await inner(request)

    serve(report=view)
    async with async_locks["default"].hold("other"):
        visit = Visit("/report")
        await inside.wait()
        visit.leave()
        await turns()
        go_on.set()
        await visit.task
    assert not ran
    assert await async_locks["default"].try_acquire("report")


AROUND = {
    "a rule": lambda url: LayerOfRules(ASGIHandler(), url, [Rule("/report", key="rule")]),
    "two rules": lambda url: LayerOfRules(
        LayerOfRules(ASGIHandler(), url, [Rule("/report", key="rule")]),
        f"{url}-outer",
        [Rule("/report", key="outer")],
    ),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("name", ["middleware", "sync middleware outside", "no middleware"])
@pytest.mark.parametrize("leaves", ["before", "meanwhile"])
async def test_a_client_that_leaves_stops_waiting_behind_a_rule(  # noqa: PLR0917 - fixtures
    around: Any, name: str, leaves: str, serve: Any, settings: Any, url: str
) -> None:
    """The layer of the rule, which holds a key already, does not keep it from Django meanwhile."""
    settings.MIDDLEWARE = CHAINS[name]
    ran, asked, go_on = [], asyncio.Event(), asyncio.Event()

    async def key(request: Any) -> str:
        asked.set()
        await go_on.wait()
        return "report"

    @lock(key, wait=None)
    async def view(request: Any) -> HttpResponse:
        ran.append(request)
        return HttpResponse()

    serve(report=view)
    async with async_locks["default"].hold("report"):
        visit = Visit("/report", app=around(url))
        await asked.wait()
        if leaves == "before":
            visit.leave()
            await turns()
        go_on.set()
        await asyncio.to_thread(eventually, lambda: visit.task.done() or waiters("report") == 1)
        visit.leave()
        await asyncio.wait_for(visit.task, PATIENCE)
        await asyncio.to_thread(eventually, lambda: waiters("report") == 0)
        assert locks["default"].inspect("rule") is None
    assert not ran
    assert visit.status is None


async def test_what_runs_behind_a_rule_is_not_cancelled_after_its_wait(
    serve: Any, settings: Any, url: str
) -> None:
    """A client that leaves when the view has its key ends nothing: Django does not hear of it any more."""
    settings.MIDDLEWARE = [f"{__name__}.committing", OURS]
    inside, go_on = asyncio.Event(), asyncio.Event()
    committed.clear()

    @lock("report", wait=None)
    async def view(request: Any) -> HttpResponse:
        inside.set()
        await go_on.wait()
        return HttpResponse()

    serve(report=view)
    async with async_locks["default"].hold("report"):
        visit = Visit("/report", app=AROUND["a rule"](url))
        await asyncio.to_thread(eventually, lambda: waiters("report") == 1)
        inbox = visit.scope[SCOPE_KEY]._inbox
        await asyncio.to_thread(eventually, lambda: inbox._waits)
    await inside.wait()
    visit.leave()
    await turns()
    go_on.set()
    await visit.task
    assert (committed, visit.status) == ([200], 200)


committed: list[int] = []


@async_only_middleware
def committing(get_response: Any) -> Any:
    async def middleware(request: Any) -> Any:
        response = await get_response(request)
        committed.append(response.status_code)
        return response

    return middleware


async def turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("again", [False, True])
async def test_middleware_that_would_deadlock_is_refused(
    serve: Any, settings: Any, again: bool
) -> None:
    """With sync middleware behind ours, requests would wait in Django's one thread: it says so.

    Also if ours stands behind it once more.
    """
    ours = settings.MIDDLEWARE[-1:]
    settings.MIDDLEWARE = [*ours, f"{__name__}.only_sync", *(ours if again else ())]
    serve(report=lock("report")(lambda request: HttpResponse()))
    response = await AsyncClient(raise_request_exception=False).post("/report")
    assert response.status_code == 500
    assert "put it last into MIDDLEWARE" in str(response.exc_info[1])


def only_sync(get_response: Any) -> Any:
    return lambda request: get_response(request)  # noqa: PLW0108 - it is a middleware of its own


class _SlowInput(io.BytesIO):
    """``wsgi.input`` that notes whether the key is free while the client sends, slowly."""

    def __init__(self, body: bytes, pause: float) -> None:
        super().__init__(body)
        self.pause = pause
        self.was_free: list[bool] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.was_free.append(locks["default"].inspect("x") is None)
        time.sleep(self.pause)
        return super().read(size)


@pytest.mark.django_db
@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("by_middleware", [True, False])
def test_a_body_is_read_before_the_lock(
    settings: Any, url: str, by_middleware: bool, size: int
) -> None:
    """Under WSGI a client that sends slowly holds no key, and gets 408 when the limit is reached."""

    @csrf_exempt
    @lock("x")
    def save(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(len(request.body)))

    def post(pause: float) -> tuple[bytes, str, _SlowInput]:
        slow = _SlowInput(bytes(size), pause)
        environ = create_environ("/save", method="POST", input_stream=slow, content_length=size)
        parts, status, _ = run_wsgi_app(WSGIHandler(), environ)
        return b"".join(parts), status, slow

    if not by_middleware:
        settings.MIDDLEWARE = []
    settings.WEBLOCK = {"default": {"URL": url, "BODY_WAIT": 0.2}}
    settings.ROOT_URLCONF = urls(save=save)
    body, status, slow = post(0)
    assert (body, status[:3]) == (str(size).encode(), "200")
    assert slow.was_free
    assert all(slow.was_free)
    body, status, slow = post(0.5)
    assert status[:3] == "408"
    assert b"body_timeout" in body
    assert locks["default"].inspect("x") is None
