"""Operations of django-ninja: where a lock stands, what its key is made of, and how a refusal is answered."""

from __future__ import annotations

import itertools
from asyncio import to_thread
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.urls import path
from ninja import NinjaAPI, Router

from weblock.contrib.django import async_locks, lock, locks

from .project.shop.models import Item
from .requests import fetch

_numbers = itertools.count()

both = pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
in_debug = pytest.mark.parametrize("debug", [True, False], ids=["DEBUG", "no DEBUG"])


def operation(request: HttpRequest, pk: int) -> list[str]:
    return list(request.weblock.keys)  # type: ignore[attr-defined]


async def async_operation(request: HttpRequest, pk: int) -> list[str]:
    return list(request.weblock.keys)  # type: ignore[attr-defined]


def new_api() -> NinjaAPI:
    return NinjaAPI(urls_namespace=f"weblock-ninja-{next(_numbers)}")


@pytest.fixture(params=[operation, async_operation], ids=["sync", "async"])
def api(request: pytest.FixtureRequest, serve: Any, settings: Any) -> NinjaAPI:
    api, router = new_api(), Router()
    for where in (api, router):
        where.post("/items/{pk}")(lock("item:{pk}", wait=0)(request.param))
    api.add_router("/routed", router)
    serve()
    settings.ROOT_URLCONF = (path("api/", api.urls),)
    return api


@pytest.fixture
def bare(middleware: bool, settings: Any) -> None:
    """Nothing but our middleware, or not even that."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:] if middleware else []


async def refusals() -> list[Any]:
    """What a thread and a task answer, for each operation, while somebody else has the lock."""
    urls = ("/api/items/7", "/api/routed/items/7")
    async with async_locks["default"].hold("item:7"):
        in_threads = [await to_thread(fetch, url) for url in urls]
        return [*in_threads, *[await AsyncClient().post(url) for url in urls]]


@both
async def test_keys_are_made_of_values(bare: None, api: NinjaAPI) -> None:
    """A key has what django-ninja made of the URL, so that all spellings of a number are one key."""
    for url in ("/api/items/7", "/api/items/07", "/api/routed/items/+7"):
        assert (await to_thread(fetch, url)).json() == ["item:7"]
        assert (await AsyncClient().post(url)).json() == ["item:7"]


@both
@in_debug
async def test_a_refusal_is_a_problem(
    bare: None, debug: bool, api: NinjaAPI, settings: Any
) -> None:
    """Clients get problem details, as from other views; no catch-all sees the errors."""
    settings.DEBUG = debug
    for catch_all in (False, True):
        if catch_all:
            api.add_exception_handler(Exception, lambda *_: HttpResponse(status=500))
        for response in await refusals():
            assert response.status_code == 409
            assert response.json()["code"] == "lock_timeout"
            assert "lock;dur=" in response["Server-Timing"]


def test_a_place_above_is_refused() -> None:
    """What stands above the decorator that registers an operation would never run."""
    registered = new_api().post("/items")(lambda request: None)
    with pytest.raises(TypeError, match="put @lock below it"):
        lock("item")(registered)


def test_in_a_transaction_a_rule_takes_its_place(database: Any, serve: Any, settings: Any) -> None:
    """With ATOMIC_REQUESTS the operation is refused, with the rule that locks it in time."""
    database(ATOMIC_REQUESTS=True)
    api = NinjaAPI(urls_namespace="shop")
    held: list[bool] = []

    @api.post("/items/{int:pk}")
    @lock("item:{pk}")
    def create(request: HttpRequest, pk: int) -> None:
        held.append(locks["default"].inspect(f"item:{pk}") is not None)
        Item.objects.create()

    serve()
    settings.ROOT_URLCONF = (path("api/", api.urls),)
    refused = str(fetch("/api/items/7").exc_info[1])
    assert "{'view': 'shop:create', 'methods': ['POST'], 'key': ...} in RULES" in refused
    rule = {"view": "shop:create", "methods": ["POST"], "key": "item:{pk}"}
    settings.WEBLOCK = {"default": {**settings.WEBLOCK["default"], "RULES": [rule]}}
    assert fetch("/api/items/7").status_code == 200
    assert held == [True]
