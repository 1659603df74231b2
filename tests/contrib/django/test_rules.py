"""Rules in settings, for projects that cannot touch their views."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.sessions.models import Session
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import include, path
from ninja import NinjaAPI

from tests.support.busy import busy
from weblock import ConfigurationError, Key, LeaseLost
from weblock.contrib.django import lock, locks

from .project.shop.models import Item
from .requests import fetch


def held_keys(request: HttpRequest, **_url: object) -> HttpResponse:
    keys = ("shop:1", "item:7", "all", "color:red")
    return HttpResponse(" ".join(key for key in keys if locks["default"].inspect(key)))


api = NinjaAPI(urls_namespace="weblock-rules")


@api.post("/things/{int:pk}")
def operation(request: HttpRequest, pk: int) -> Any:
    return held_keys(request)


SHOP = (
    [
        path("<int:shop>/items/", held_keys, name="items"),
        path("<int:shop>/items/<int:pk>", held_keys, name="item"),
        path("<int:shop>/about", held_keys, name="about"),
        path("back/", include(([path("<int:shop>", held_keys, name="office")], "back"))),
    ],
    "shop",
)
URLS = (
    path("shops/", include(SHOP)),
    path("branch/", include(SHOP, namespace="branch")),
    path("api/", api.urls),
    path("other", held_keys),
)

ITEM = {"view": "shop:item", "key": "item:{pk}"}
NAMESPACE = {"namespace": "shop", "methods": ["POST"], "key": "shop:{shop}"}
EXEMPT = {"view": "shop:about", "exempt": True}
ROUTE = {"route": "shops/<int:shop>/items/", "key": "shop:{shop}", "methods": ["POST"]}
ROUTES = {"route": re.compile("api/things/.*"), "key": "item:{pk}"}


@pytest.fixture
def rule(settings: Any, url: str) -> Any:
    settings.ROOT_URLCONF = URLS
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]

    def rule(*rules: Any, **options: Any) -> None:
        settings.WEBLOCK = {"default": {"URL": url, "WAIT": 0, "RULES": list(rules), **options}}

    return rule


@pytest.mark.parametrize(
    ("rules", "target", "held"),
    [
        ([ITEM], "/shops/1/items/7", "item:7"),
        ([ITEM], "/shops/1/items/8", ""),
        ([ITEM], "/shops/1/items/", ""),
        ([NAMESPACE], "/shops/1/items/", "shop:1"),
        ([NAMESPACE], "/shops/back/1", "shop:1"),
        ([NAMESPACE], "/other", ""),
        ([ITEM], "/branch/1/items/7", "item:7"),
        ([NAMESPACE], "/branch/back/1", "shop:1"),
        ([{**ITEM, "view": "branch:item"}], "/branch/1/items/7", "item:7"),
        ([{**ITEM, "view": "branch:item"}], "/shops/1/items/7", ""),
        ([EXEMPT, NAMESPACE], "/shops/1/about", ""),
        ([ROUTE], "/shops/1/items/", "shop:1"),
        ([ROUTE], "/shops/1/items/%0A", ""),
        ([ROUTE], "/shops/01/items/", "shop:1"),
        ([ROUTES], "/api/things/7", "item:7"),
        (
            [{"route": "other", "key": [lambda _request: "all", "color:{query.c}"]}],
            "/other?c=red",
            "all color:red",
        ),
        ([{"route": "other", "key": lambda _request: "all"}], "/other?c=red", "all"),
        ([{"route": "other", "key": ["all", "color:{query.c}"]}], "/other?c=red", "all color:red"),
        ([{"view": "shop:item", "key": ["all", "shop:{shop}"]}], "/shops/1/items/7", "shop:1 all"),
    ],
)
async def test_requests_lock_what_the_rules_say(
    rules: Any, target: str, held: str, rule: Any
) -> None:
    """By the view's name, its namespace, or its route, in WSGI and ASGI."""
    rule(*rules)
    async_answer = await AsyncClient().post(target)
    answer = fetch(target)
    for each in (answer, async_answer):
        assert each.content.decode() == held if each.status_code == 200 else not held


def test_a_rule_is_about_its_methods(rule: Any) -> None:
    """Others pass without a lock; and HEAD goes with GET."""
    rule({**NAMESPACE, "methods": ["GET"]})
    with locks["default"].hold("shop:1"):
        statuses = {each: fetch("/shops/1/items/", each).status_code for each in ("get", "head")}
        assert statuses == {"get": 409, "head": 409}
        assert fetch("/shops/1/items/", "put").status_code == 200


def test_a_rule_has_options_and_an_alias(rule: Any, settings: Any, url: str) -> None:
    """The rules of each alias lock with what it says, and all that match are held."""
    rule({"route": "other", "key": "all", "max_waiters": 0, "wait": 30})
    settings.WEBLOCK["other"] = {"URL": url, "RULES": [{"route": "other", "key": "item:7"}]}
    assert fetch("/other").content == b"item:7 all"
    assert fetch("/other")["Server-Timing"].startswith("lock")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"view": "shop:item"}, r"RULES'\]\[0\]: give either a key"),
        ({"view": "shop:item", "namespace": "shop", "key": "k"}, "give one of these: view"),
        ({"view": "shop:item", "key": "{pk"}, "brace"),
        ({"view": "shop:item", "key": "k", "timeout": 1}, "'timeout'"),
        ({"view": "shop:item", "key": "k", "methods": ["PSOT"]}, "PSOT"),
        (
            {"path": "/shops", "key": "k"},
            r"RULES'\]\[0\] has 'path', which is not an option of a rule.* route",
        ),
        ({"view": "shop:item", "key": 7}, r"RULES'\]\[0\]: key=7 must be a template"),
        ({"view": "shop:item", "key": None}, "key=None must be a template"),
        ({"route": 7, "key": "k"}, "such as 'shops/<int:shop>/items/'"),
        ({"key": "k"}, "give one of these: view"),
        ("shops", "give a dict"),
        ({"view": "shop:item", "key": "k", "guard": "both"}, "guard='both'"),
        ({"route": "other", "key": "k", "guard": "both"}, "guard='both'"),
        ({"view": "shop:item", "key": "k", "guard": "database", "limit": 2}, "guard"),
        ({"route": "other", "key": "k", "guard": "database", "shared": True}, "guard"),
        ({"view": "shop:item", "exempt": True, "guard": "database"}, "exempt"),
        ({"route": "other", "exempt": True, "guard": "database"}, "exempt"),
    ],
)
def test_wrong_rules_are_refused_when_the_server_starts(
    wrong: Any, message: str, rule: Any
) -> None:
    """A rule that cannot work is named before any request comes."""
    rule(wrong)
    with pytest.raises(ConfigurationError, match=message):
        WSGIHandler()


def lose(request: Any) -> None:
    assert locks["default"].force_release("items")
    with suppress(LeaseLost):
        request.weblock.extend(1)


@pytest.mark.django_db(transaction=True)
def test_a_lost_lease_of_a_rule_rolls_back(rule: Any, settings: Any, database: Any) -> None:
    """Views that know nothing of locks do not commit without theirs."""
    database(ATOMIC_REQUESTS=True)

    def create(request: Any) -> HttpResponse:
        Item.objects.create()
        lose(request)
        return HttpResponse(status=201)

    rule({"view": "items", "key": "items"})
    settings.ROOT_URLCONF = (path("items", create, name="items"),)
    response = fetch("/items")
    assert (response.status_code, response.json()["code"]) == (503, "lease_lost")
    assert Item.objects.count() == 0


def test_an_inner_function_says_nothing_of_the_view(rule: Any, settings: Any) -> None:
    """What an inner function has done under a lock of its own does not vouch for a rule's view."""

    @lock("inner")
    def inner(request: HttpRequest) -> None:
        """A part of the view, under another lock."""

    def create(request: Any) -> HttpResponse:
        lease = request.weblock
        inner(request)
        request.weblock = lease
        lose(request)
        return HttpResponse(status=201)

    rule({"view": "items", "key": "items"})
    settings.ROOT_URLCONF = (path("items", create, name="items"),)
    assert fetch("/items").json()["code"] == "lease_lost"


class ItemAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Pages of which one is locked by a decorator, and others by rules."""

    @lock("item:{object_id}")
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        return super().delete_view(request, object_id, extra_context)


def site() -> Any:
    """A site of the admin with rows whose keys are numbers, and with others whose keys are text."""
    made = admin.AdminSite("admin")
    made.register(Item, ItemAdmin)
    made.register(Session)
    return path("admin/", made.urls)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "url",
    [
        "shop/item/7/change/",
        "shop/item/07/change/",
        "shop/item/+7/change/",
        "shop/item/+7/history/",
        "shop/item/07/delete/",
        "shop/item/07/change/?_to_field=id",
        "sessions/session/a_2Fb/change/",
    ],
)
@pytest.mark.parametrize("serves", [Client, AsyncClient])
def test_a_row_is_one_key_in_the_admin(url: str, serves: Any, settings: Any) -> None:
    """The admin's own quoting and spellings of a primary key are the key that an API makes of the value."""
    Item.objects.create(pk=7)
    settings.ROOT_URLCONF = (site(),)
    views = ["shop_item_change", "shop_item_history"]
    rules = [{"view": f"admin:{each}", "key": "item:{object_id}"} for each in views]
    rules.append({"view": "admin:sessions_session_change", "key": "session:{object_id}"})
    settings.WEBLOCK = {"default": {"URL": "memory://admin", "WAIT": 0, "RULES": rules}}
    get = serves().get if serves is Client else async_to_sync(serves().get)
    key = Key("session:{pk}", pk="a/b") if "session" in url else Key("item:{pk}", pk=7)
    assert get(f"/admin/{url}").status_code == 302
    with busy(locks["default"], key, "another"):
        assert get(f"/admin/{url}").status_code == 409
