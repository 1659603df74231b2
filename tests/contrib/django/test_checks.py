"""What ``manage.py check`` finds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.core.checks import run_checks
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client
from django.urls import include, path, re_path, resolve
from django.utils.functional import lazy
from django.utils.translation import get_language, gettext_lazy, override
from django.views import View
from rest_framework.decorators import action
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.viewsets import ViewSet

from weblock.contrib.django import lock, locks
from weblock.contrib.django.checks import MIDDLEWARE

from .project.shop.models import Item
from .requests import urls

SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"


@pytest.fixture(autouse=True)
def project(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings.WEBLOCK = {"default": {"URL": f"file://{tmp_path}/locks"}}
    return settings


def found() -> dict[str, str]:
    return {each.id: f"{each.msg} {each.hint}" for each in run_checks(tags=["weblock"])}


def items(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=201)


class Items(View):
    """A view with a method under a lock."""

    @lock("item:{pk:int}")
    def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return items(request)


def test_nothing_is_wrong(project: Any, tmp_path: Path) -> None:
    """A project with the middleware, and with keys that its URLs fill in, has nothing to hear."""
    project.ROOT_URLCONF = urls(
        items=lock("create_item", wait=1000)(items), item__pk=Items.as_view()
    )
    assert found() == {}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"default": {"URL": "carrier-pigeon://"}}, "carrier-pigeon"),
        ({"default": {"URL": "carrier-pigeon://", "GUARD": "database"}}, "carrier-pigeon"),
        ({"default": {"WIAT": 5}}, "'WIAT'"),
        ({"default": {"TTL": -1}}, "ttl=-1"),
        ({"default": {}, "jobs": {"CACHE": "default"}}, "WEBLOCK['jobs'] has 'CACHE'"),
        ({"default": {"BUSY_VIEW": "no.such.module"}}, "['BUSY_VIEW']: No module"),
        ({"default": {"RULES": [{"view": "shop:item"}]}}, "RULES"),
        ({"default": {"RULES": [{"view": "shop:item", "key": 7}]}}, "key=7 must be a template"),
        ({"default": {"RULES": [{"namespace": "shop", "key": None}]}}, "key=None must be"),
        ({"default": {"RULES": [{"view": "shop:item", "key": Items.post}]}}, "missing a required"),
        ("redis://localhost", "dict of aliases"),
    ],
)
def test_settings_that_cannot_work(setting: Any, message: str, project: Any) -> None:
    """What cannot work in WEBLOCK is an error, which names it, and other checks go on."""
    project.ROOT_URLCONF = urls(items=lock("create_item")(items))
    project.WEBLOCK = setting
    assert message in found()["weblock.E001"]


def test_settings_by_another_name(project: Any) -> None:
    """``WEBLOCK_URL`` alone is nobody's setting, and the locks would stay on this machine unnoticed."""
    project.WEBLOCK_URL = "redis://localhost"
    assert found() == {}  # WEBLOCK may be made of it.
    del project.WEBLOCK
    message = found()["weblock.W010"]
    assert "WEBLOCK_URL has no effect: locks are on file://" in message
    assert 'WEBLOCK = {"default"' in message


@pytest.mark.parametrize("url", ["memory://", "noop://"])
def test_engines_for_one_process(url: str, project: Any) -> None:
    """An engine that keeps no two workers apart is a warning of ``check --deploy``, and not of tests."""
    project.WEBLOCK = {"default": {"URL": url}}
    assert found() == {}
    deployed = run_checks(tags=["weblock"], include_deployment_checks=True)
    assert [each.id for each in deployed] == ["weblock.W001"]
    assert url in deployed[0].msg


@pytest.mark.parametrize(
    ("url", "location", "warned"),
    [
        ("redis://localhost:6379/1", "redis://user:secret@127.0.0.1:6379/1", True),
        ("redis://localhost?db=1", ["redis://replica/1", "redis://localhost/1"], True),
        (["redis://a", "redis://b", "redis://c"], "redis://x/0;rediss://b:6379/0", True),
        ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0", True),
        ("redis://localhost/1", "redis://localhost/1?health_check_interval=30&protocol=3", True),
        ("redis://localhost/1?timeout=2", "redis://localhost?socket_timeout=5&db=1", True),
        ("redis://localhost/1", "redis://LocalHost/1", True),
        ("redis://localhost/2", "redis://localhost/1", False),
        ("redis://localhost/1", "redis://localhost:6380/1", False),
        ("redis://localhost/1", Path("/var/cache/shop"), False),
        ("redis://localhost/1", "redis://:sec,ret@localhost/1", False),
        ("redis://localhost/1", "redis://:secret@localhost/1", True),
        ("memory://", "", False),
    ],
)
def test_a_cache_that_is_where_the_locks_are(
    url: Any, location: Any, warned: bool, project: Any
) -> None:
    """A cache on the locks' database of Redis is a warning, for to clear it takes every lease."""
    project.DEBUG = True
    project.WEBLOCK = {"default": {"URL": url}}
    backend = "django.core.cache.backends.redis.RedisCache"
    project.CACHES = {"default": {"BACKEND": backend, "LOCATION": location}}
    messages = found()
    assert list(messages) == (["weblock.W011"] if warned else [])
    assert not warned or "secret" not in messages["weblock.W011"]


def test_rules_without_the_middleware(project: Any) -> None:
    """Rules that nobody looks at are an error."""
    project.ROOT_URLCONF = urls(items=items)
    project.WEBLOCK = {"default": {"RULES": [{"route": "items", "key": "create_item"}]}}
    assert found() == {}
    project.MIDDLEWARE = [SESSIONS]
    assert set(found()) == {"weblock.E002"}


def test_marked_views_without_the_middleware(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked views without the middleware are a warning, and with ATOMIC_REQUESTS an error."""
    project.ROOT_URLCONF = urls(items=lock("create_item")(items), item__pk=Items.as_view())
    project.MIDDLEWARE = [SESSIONS]
    assert "(and 1 more)" in found()["weblock.W003"]
    monkeypatch.setitem(connections.databases["other"], "ATOMIC_REQUESTS", True)
    assert "(and 1 more) is rejected" in found()["weblock.E003"]
    project.ROOT_URLCONF = urls(items=transaction.non_atomic_requests(lock("create_item")(items)))
    assert set(found()) == {"weblock.E003"}  # Of another database.
    view = transaction.non_atomic_requests(using="other")(lock("create_item")(items))
    project.ROOT_URLCONF = urls(items=view)
    assert set(found()) == {"weblock.W003"}
    project.ROOT_URLCONF = urls(items=items)
    assert found() == {}


@pytest.mark.parametrize(
    ("middleware", "message"),
    [
        ([MIDDLEWARE, SESSIONS], f"before {SESSIONS!r}"),
        ([SESSIONS, MIDDLEWARE, MIDDLEWARE], "more than once"),
    ],
)
def test_middleware_that_is_not_last(middleware: list[str], message: str, project: Any) -> None:
    """Middleware after ours, or ours twice, is a warning."""
    project.MIDDLEWARE = middleware
    assert message in found()["weblock.W002"]


def test_keys_that_no_url_fills_in(project: Any) -> None:
    """A key that wants what the URL does not have is an error, before a request fails."""
    project.ROOT_URLCONF = urls(items=lock("item:{pk}:{query.page}")(items))
    assert "needs 'pk' from its URL. The URL has nothing." in found()["weblock.E004"]


def test_aliases_that_there_are_not(project: Any) -> None:
    """A view whose lock is of no alias in WEBLOCK is an error, before its requests fail."""
    project.ROOT_URLCONF = urls(items=lock("create_item", alias="reprots")(items))
    assert "needs the alias 'reprots'" in found()["weblock.E005"]


@pytest.mark.parametrize(
    ("route", "key", "warned"),
    [
        (path("<pk>", items), "item:{pk}", True),
        (path("<str:pk>", items), "item:{path.pk}", True),
        (re_path(r"(?P<pk>\d+)", items), "item:{pk}", True),
        (re_path(r"(?P<pk>\d+)", items), "item:{pk:int}", False),
        (path("<pk>", items), "item:{pk:str}", False),
        (path("<int:pk>", items), "item:{pk}", False),
        (path("<slug:pk>", items), "item:{pk}", False),
        (path("", items, {"pk": 7}), "item:{pk}", False),
        (path("<pk>", items), "item:{query.pk}", False),
    ],
)
def test_keys_of_spellings(route: Any, key: str, warned: bool, project: Any) -> None:
    """A key that is made of a spelling, of which one row has many, is a warning with the remedy."""
    route.callback = lock(key)(route.callback)
    project.ROOT_URLCONF = (route,)
    messages = found()
    assert ("weblock.W006" in messages) == warned
    assert not warned or "{pk:int}" in messages["weblock.W006"]


def test_a_view_with_several_urls_is_warned_of_once(project: Any) -> None:
    """A router of REST framework has two URLs for a view: the warning names the first, and comes once."""

    class Shops(ViewSet):
        @lock("shop:{pk}")
        def update(self, request: HttpRequest, pk: str) -> HttpResponse:
            return HttpResponse()

    router = DefaultRouter()
    router.register("shops", Shops, basename="shop")
    project.ROOT_URLCONF = (path("api/", include(router.urls)),)
    (warning,) = run_checks(tags=["weblock"])
    assert "Shops, for 'api/shops/(?P<pk>[^/.]+)/$', has the key 'shop:{pk}'" in warning.msg


VIEWS = ([path("<int:pk>", items, name="item")], "shop")
SHOP = (path("shop/", include(VIEWS, namespace="branch")),)


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ({"view": "shop:item", "key": "item:{pk}"}, None),
        ({"namespace": "shop", "key": "item:{pk}"}, None),
        ({"view": "branch:item", "key": "item:{pk}"}, None),
        ({"view": "shop:item", "exempt": True}, None),
        ({"route": "shop/<int:pk>", "key": "item:{pk}"}, None),
        ({"route": re.compile("shop/.*"), "key": "item:{pk}"}, None),
        ({"route": "shop/<int:pk>", "exempt": True}, None),
        ({"route": "shop", "key": "shop"}, "weblock.W005"),
        ({"route": "shop/<int:pk>", "key": "item:{id}"}, "weblock.E004"),
        ({"view": "shop:itme", "key": "item:{pk}"}, "weblock.W005"),
        ({"view": "item", "key": "item:{pk}"}, "weblock.W005"),
        ({"namespace": "sho", "key": "shop"}, "weblock.W005"),
        ({"view": "shop:item", "key": "item:{id}"}, "weblock.E004"),
        ({"namespace": "shop", "key": "item:{id}"}, "weblock.E004"),
    ],
)
def test_rules_that_are_about_nothing(rule: Any, wrong: str | None, project: Any) -> None:
    """A rule by view that covers none, and so locks nothing, is found; one without its key, too."""
    project.ROOT_URLCONF = SHOP
    project.WEBLOCK["default"]["RULES"] = [rule]
    assert list(found()) == ([wrong] if wrong else [])
    assert all("RULES'][0]" in message for message in found().values())


@pytest.mark.parametrize(
    ("route", "key", "warned"),
    [
        (path("<pk>", items), "item:{pk}", True),
        (re_path(r"^(?P<pk>\d+)$", items), "item:{pk}", True),
        (re_path(r"^(?P<pk>\d+)$", items), "item:{pk:int}", False),
        (path("<int:pk>", items), "item:{pk}", False),
        (path("<pk>", items), "items", False),
    ],
)
def test_rules_of_spellings(route: Any, key: str, warned: bool, project: Any) -> None:
    """A rule whose key is made of a spelling is a warning, as a decorator's is."""
    project.ROOT_URLCONF = (route,)
    project.WEBLOCK["default"]["RULES"] = [{"route": str(route.pattern), "key": key}]
    messages = found()
    assert list(messages) == (["weblock.W006"] if warned else [])
    assert not warned or "<int:pk> in the URL" in messages["weblock.W006"]


def test_rules_beside_languages(project: Any) -> None:
    """Below ``i18n_patterns``, a rule by route locks in all languages, and names none."""
    project.ROOT_URLCONF = tuple(i18n_patterns(path("items", held)))
    project.LANGUAGES = [("en", "English"), ("de", "German")]
    project.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", MIDDLEWARE]
    project.WEBLOCK["default"]["RULES"] = [{"route": "items", "key": "items"}]
    assert found() == {}
    assert [Client().post(f"/{each}/items").json() for each in ("en", "de")] == [["items"]] * 2
    project.WEBLOCK = {"default": {"RULES": [{"route": "de/items", "key": "items"}]}}
    assert "without the language" in found()["weblock.W005"]


def test_a_route_that_is_translated(project: Any) -> None:
    """A rule names it as the project has written it, whatever language the first request has."""
    word = lazy(lambda: "artikel/" if get_language() == "de" else "items/", str)
    project.ROOT_URLCONF = (path(word(), held),)
    project.LANGUAGES = [("en", "English"), ("de", "German")]
    project.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", MIDDLEWARE]
    project.WEBLOCK["default"]["RULES"] = [{"route": "items/", "key": "items"}]
    assert Client().post("/artikel/", HTTP_ACCEPT_LANGUAGE="de").json() == ["items"]
    assert Client().post("/items/", HTTP_ACCEPT_LANGUAGE="en").json() == ["items"]


def held(_request: HttpRequest, **_url: object) -> HttpResponse:
    return JsonResponse([each.key for each in locks["default"].list()], safe=False)


class Customers(ViewSet):
    """A viewset with an action that no decorator locks."""

    @action(detail=True, methods=["post"])
    def raw(self, request: Any, pk: str, format: str = "") -> Response:  # noqa: A002 - of the framework
        return Response([each.key for each in locks["default"].list()])


@pytest.mark.django_db
@pytest.mark.parametrize("by_regex", [True, False])
def test_a_rule_by_route_locks_all_urls_of_its_view(project: Any, by_regex: bool) -> None:
    """The format suffixes that REST framework adds are no way around a rule."""
    router = DefaultRouter(use_regex_path=by_regex)
    router.register("customers", Customers, basename="customer")
    project.ROOT_URLCONF = (path("api/", include(router.urls)),)
    project.MIDDLEWARE = [MIDDLEWARE]
    route = resolve("/api/customers/7/raw/").route
    rule = {"route": route, "key": "customer:{pk:int}", "methods": ["POST"]}
    project.WEBLOCK["default"]["RULES"] = [rule]
    assert found() == {}
    for target in ("raw/", "raw.json", "raw.json/"):
        assert Client().post(f"/api/customers/7/{target}").json() == ["customer:7"]


def test_a_view_at_two_urls(project: Any) -> None:
    """One function, or one class in the same way, is one view; other options make it another."""
    shops, branches = path("shops/<int:pk>", held), path("branches/<int:pk>", held)
    project.ROOT_URLCONF = (shops, branches)
    project.MIDDLEWARE = [MIDDLEWARE]
    rule: Any = {"route": "shops/<int:pk>", "key": "x"}
    project.WEBLOCK = {"default": {"RULES": [rule]}}
    assert Client().post("/branches/7").json() == ["x"]
    exempt = {"route": "branches/<int:pk>", "exempt": True}
    project.WEBLOCK = {"default": {"RULES": [exempt, rule]}}
    assert Client().post("/branches/7").json() == []
    assert Client().post("/shops/7").json() == ["x"]


class Listed(View):
    option: Any = None

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return held(request)


ROWS = Item.objects.all()


@pytest.mark.parametrize(
    ("option", "equal"),
    [(ROWS, ROWS), (gettext_lazy("Yes"), gettext_lazy("Yes")), (["get"], ["get"])],
    ids=["queryset", "translated", "list"],
)
async def test_a_class_at_several_urls(option: object, equal: object, project: Any) -> None:
    """Equal options lead to one view, in each language, and another option to another view.

    A queryset is not executed, which no event loop may do.
    """
    project.ROOT_URLCONF = (
        path("shops/<int:pk>", Listed.as_view(option=option)),
        path("branches/<int:pk>", Listed.as_view(option=equal)),
        path("others/<int:pk>", Listed.as_view(option="other")),
    )
    project.MIDDLEWARE = [MIDDLEWARE]
    project.WEBLOCK = {"default": {"RULES": [{"route": "shops/<int:pk>", "key": "x"}]}}
    for language in ("en", "de"):
        with override(language):
            answers = [
                (await AsyncClient().post(f"/{each}/7")).json()
                for each in ("shops", "branches", "others")
            ]
        assert answers == [["x"], ["x"], []]
