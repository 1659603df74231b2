"""Django inside a layer that locks for the same request, such as ``LockMiddleware`` of ASGI or WSGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient

from tests.contrib.gateway import Gateway
from tests.support.http import client_of
from tests.support.waiting import eventually
from weblock import LeaseLost, Locks
from weblock.contrib import asgi, wsgi
from weblock.contrib.django import lock

pytestmark = pytest.mark.django_db(
    transaction=True,
    databases=["default", "lite"],
    available_apps=["weblock.contrib.django", "tests.contrib.django.project.shop"],
)

RULE = {"key": "items", "wait": 0}

Serve = Callable[[str], Awaitable[tuple[int, str]]]


async def by_asgi(url: str) -> tuple[int, str]:
    async with client_of(
        asgi.LockMiddleware(ASGIHandler(), url, [asgi.Rule("/items", **RULE)])
    ) as client:
        response = await client.post("/items")
    return response.status_code, response.text


async def by_wsgi(url: str) -> tuple[int, str]:
    layer = wsgi.LockMiddleware(WSGIHandler(), url, [wsgi.Rule("/items", **RULE)])
    response = await asyncio.to_thread(in_thread, Gateway(layer, path="/items").serve)
    return response.status, response.text.decode()


def in_thread(serve: Callable[[], Gateway]) -> Gateway:
    """Serves as a server's thread does, which keeps no connection that a later test would miss."""
    try:
        return serve()
    finally:
        for each in connections.all(initialized_only=True):
            BaseDatabaseWrapper.close(each)  # SQLite's own leaves a database in memory open.


served = pytest.mark.parametrize("served", [by_asgi, by_wsgi])


@pytest.fixture(params=["middleware", "decorator alone"], autouse=True)
def _bare(request: pytest.FixtureRequest, settings: Any) -> None:
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:] if request.param == "middleware" else []


def keys_of(url: str) -> list[str]:
    with Locks.from_url(url) as locks:
        return [info.key for info in locks.list()]


@served
async def test_a_view_does_not_wait_for_the_key_of_its_own_rule(
    served: Serve, serve: Any, url: str
) -> None:
    """It has the lease of the rule, in its own world, and acquires only the other keys."""

    @lock("items", "other", wait=0)
    def view(request: Any) -> HttpResponse:
        request.weblock.extend(60)
        return HttpResponse(f"{keys_of(url)} {request.weblock.remaining() > 50}")

    serve(items=view)
    assert await served(url) == (200, "['items', 'other'] True")
    assert keys_of(url) == []


@served
async def test_an_async_view_does_not_wait_for_the_key_of_its_own_rule(
    served: Serve, serve: Any, url: str
) -> None:
    """The same in a task, whose lease is awaited."""

    @lock("items", wait=0)
    async def view(request: Any) -> HttpResponse:
        await request.weblock.extend(60)
        return HttpResponse(f"{keys_of(url)} {request.weblock.remaining() > 50}")

    serve(items=view)
    assert await served(url) == (200, "['items'] True")
    assert keys_of(url) == []


async def test_a_commit_is_refused_when_the_rule_has_lost_its_lease(serve: Any, url: str) -> None:
    """What a view commits is inside the lock of the rule, too, which no middleware of Django holds."""
    outcomes = []

    def view(request: HttpRequest) -> HttpResponse:
        with Locks.from_url(url) as others:
            others.force_release("items")
        lease = request.weblock  # type: ignore[attr-defined]
        eventually(lambda: not lease.held)
        try:
            with transaction.atomic(using="lite"):
                pass
        except LeaseLost as loss:
            outcomes.append(loss.key)
        return HttpResponse()

    serve(items=lock("items", wait=0)(view))
    assert (await by_wsgi(url))[0] == 503
    assert outcomes == ["items"]


async def test_a_request_leaves_nothing_in_the_context_of_its_server(serve: Any) -> None:
    """What the view sets is kept, as Django does it, but later requests are no part of this one."""
    of_view: ContextVar[str] = ContextVar("of_view", default="")

    @lock("items")
    async def view(request: HttpRequest) -> HttpResponse:
        of_view.set("kept")
        return HttpResponse()

    serve(items=view)
    before = set(copy_context())
    await AsyncClient().post("/items")
    ours = {each.name for each in set(copy_context()) - before if each.name.startswith("weblock")}
    assert (of_view.get(), ours) == ("kept", set())
