"""What clients are told that do not get their lock: each in the form that it reads."""

from __future__ import annotations

from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from rest_framework.authentication import BasicAuthentication, SessionAuthentication
from rest_framework.decorators import api_view
from rest_framework.generics import UpdateAPIView
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.response import Response
from rest_framework.versioning import AcceptHeaderVersioning
from rest_framework.views import APIView, exception_handler
from rest_framework.viewsets import ViewSet

from tests.servers.ports import free_port
from weblock import LeaseLost, LockTimeout, WeblockError
from weblock.contrib.django import async_locks, lock, locks
from weblock.contrib.kit.guarding import FenceLocked
from weblock.contrib.kit.problems import Problem

from .requests import fetch

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}

both = pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])


@pytest.fixture
def bare(middleware: bool, settings: Any) -> None:
    """Nothing but our middleware, or not even that."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:] if middleware else []


@lock("items", wait=0)
def items(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def responses(url: str = "/items", **headers: str) -> list[Any]:
    async with async_locks["default"].hold("items"):
        return [fetch(url, **headers), await AsyncClient().post(url, headers=headers)]


@both
async def test_a_browser_gets_a_page(bare: None, serve: Any) -> None:
    """Who asks for HTML gets HTML; who takes anything gets problem details, as programs do."""
    serve(items=items)
    for response in await responses(**BROWSER):
        assert response.status_code == 409
        assert response["Content-Type"] == "text/html; charset=utf-8"
        assert response["Vary"] == "Accept"
        assert response["Cache-Control"] == "no-store"
        assert int(response["Retry-After"]) >= 1
        assert b"<h1>The resource is busy</h1>" in response.content
    for accept in ("*/*", "application/json", "application/problem+json, text/html"):
        for response in await responses(Accept=accept):
            assert response["Content-Type"] == "application/problem+json"


@both
async def test_a_project_has_pages_of_its_own(
    bare: None, serve: Any, settings: Any, tmp_path: Path
) -> None:
    """A template of the status, or one for all, goes before ours; without templates, it is JSON."""
    serve(items=items)
    (tmp_path / "weblock").mkdir()
    (tmp_path / "weblock/409.html").write_text(
        "{{ request.path }} {{ problem.code }} {{ error.key }}"
    )
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [str(tmp_path)]}]
    for response in await responses(**BROWSER):
        assert response.content == b"/items lock_timeout items"
    settings.TEMPLATES = []
    for response in await responses(**BROWSER):
        assert response.json()["code"] == "lock_timeout"


def in_other_words(problem: Problem, error: WeblockError) -> Problem:
    """What a project says instead."""
    assert isinstance(error, LockTimeout)
    return replace(problem, status=429, title=f"{error.key}!", headers={"X-Busy": "1"})


@both
@pytest.mark.parametrize("named", [True, False], ids=["path", "function"])
async def test_answers_are_rewritten(
    named: bool, bare: None, serve: Any, settings: Any, url: str
) -> None:
    """``REWRITE`` changes status, words and headers, whatever form the client gets them in."""
    serve(items=items)
    rewrite = f"{__name__}.in_other_words" if named else in_other_words
    settings.WEBLOCK = {"default": {"URL": url, "REWRITE": rewrite}}
    for response in await responses():
        assert (response.status_code, response["X-Busy"]) == (429, "1")
        assert (response.json()["title"], response.json()["status"]) == ("items!", 429)
        assert "Retry-After" not in response
    for response in await responses(**BROWSER):
        assert response.status_code == 429
        assert b"<h1>items!</h1>" in response.content


@both
async def test_an_outage_is_explained_to_its_developer(
    bare: None, serve: Any, settings: Any
) -> None:
    """With DEBUG, a 503 names the engine and what is wrong with it; to strangers it does not."""
    port = free_port()
    serve(items=items)
    settings.WEBLOCK = {"default": {"URL": f"redis://:s3cret@127.0.0.1:{port}", "WAIT": 0}}
    for debug in (False, True):
        settings.DEBUG = debug
        for response in (fetch("/items"), await AsyncClient().post("/items", headers=BROWSER)):
            assert response.status_code == 503
            assert (str(port) in response.content.decode()) == debug
            assert b"s3cret" not in response.content


class Plain(BaseRenderer):
    media_type = "text/plain"
    format = "txt"

    def render(self, data: Any, media_type: Any = None, renderer_context: Any = None) -> bytes:
        return f"{data['code']}: {data['detail']}".encode()


class Rest(APIView):
    renderer_classes = (Plain,)

    @lock("items", wait=0)
    def post(self, request: Any) -> Response:
        return Response({"code": "fine", "detail": "done"})


class RestSet(ViewSet):
    renderer_classes = (Plain,)

    @lock("items", wait=0)
    def touch(self, request: Any) -> Response:
        return Response()


@lock("items", wait=0)
@api_view(["POST"])
def rest_function(request: Any) -> Response:
    return Response()


@api_view(["POST"])
@lock("items", wait=0)
def rest_function_below(request: Any) -> Response:
    """The same, where the middleware does not see it."""
    return Response()


@both
async def test_rest_framework_renders_refusals(bare: None, serve: Any) -> None:
    """A view's own renderers make the response, with what its clients know errors by."""
    serve(items=Rest.as_view(), touch=RestSet.as_view({"post": "touch"}))
    for path in ("/items", "/touch"):
        for response in await responses(path):
            assert response.status_code == 409
            assert response["Content-Type"].startswith("text/plain")
            assert response.content.startswith(b"lock_timeout: Another request")
            assert int(response["Retry-After"]) >= 1
            assert response["Cache-Control"] == "no-store"


class Realistic(ViewSet):
    """What needs more of its request than its data: versions by header, and clients with passwords."""

    authentication_classes = (BasicAuthentication,)
    versioning_class = AcceptHeaderVersioning
    renderer_classes = (JSONRenderer, BrowsableAPIRenderer)

    @lock("items", wait=0)
    def touch(self, request: Any) -> Response:
        return Response()

    @lock("item:{query.pk}")
    def invalid(self, request: Any) -> Response:
        return Response()

    @lock("lost")
    def lost(self, request: Any) -> Response:
        locks["default"].force_release("lost")
        with suppress(LeaseLost):
            request.weblock.extend(1)
        return Response()


def curious_handler(error: Exception, context: Any) -> Response | None:
    """One that reads what the framework has settled before a handler of its own is called."""
    request = context["request"]
    assert request.accepted_renderer
    assert not request.user.pk
    return exception_handler(error, context)


@pytest.mark.django_db
@pytest.mark.parametrize("accept", ["application/json; version=2", "text/html"])
@pytest.mark.parametrize(("path", "status"), [("touch", 409), ("invalid", 400), ("lost", 503)])
async def test_rest_framework_has_settled_a_refused_request(
    path: str, status: int, accept: str, serve: Any, settings: Any
) -> None:
    """Refusals have what handlers and renderers read: renderer, version, user, and the action's methods.

    A client with a wrong password is refused as others are, and anonymous.
    """
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": f"{__name__}.curious_handler"}
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": True}]
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    serve(**{path: Realistic.as_view({"post": path})})
    headers = {"Accept": accept}
    if path != "lost":  # Its view would not begin.
        headers["Authorization"] = "Basic " + b64encode(b"ada:wrong").decode()
    async with async_locks["default"].hold("items"):
        response = await sync_to_async(fetch)(f"/{path}", **headers)
    assert response.status_code == status
    assert response["Allow"] == "POST, OPTIONS"


@pytest.mark.django_db
@pytest.mark.parametrize("accept", ["application/json; version=2", "text/html"])
def test_authentication_that_fails_changes_no_refusal(
    accept: str, serve: Any, settings: Any
) -> None:
    """Where the database of the users does not answer, a busy key is still a 409, to an anonymous client."""

    class Tokens(BasicAuthentication):
        def authenticate(self, request: Any) -> Any:
            raise OperationalError

    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": f"{__name__}.curious_handler"}
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": True}]
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    serve(items=Realistic.as_view({"post": "touch"}, authentication_classes=[Tokens]))
    with locks["default"].hold("items"):
        assert fetch("/items", Accept=accept).status_code == 409


def own_handler(error: Exception, context: Any) -> Response | None:
    """An exception handler as projects have it: it puts all errors into one form."""
    response = exception_handler(error, context)
    if response is not None:
        view = type(context["view"]).__name__
        response.data = {"error": response.data["code"], "codes": error.get_codes(), "view": view}  # type: ignore[attr-defined]
        assert isinstance(error.__cause__, LockTimeout)
    return response


def silent_handler(error: Exception, context: Any) -> Response | None:
    return None


@both
@pytest.mark.parametrize("view", [rest_function, rest_function_below], ids=["above", "below"])
async def test_rest_framework_handles_refusals(
    view: Any, bare: None, serve: Any, settings: Any
) -> None:
    """The project's exception handler gets them as any error of the framework, and may let them pass."""
    serve(items=view)
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": f"{__name__}.own_handler"}
    for response in await responses():
        assert response.status_code == 409
        assert response.json()["error"] == "lock_timeout"
        assert set(response.json()["codes"].values()) == {"lock_timeout"}
        assert response.json()["view"].startswith("rest_function")
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": f"{__name__}.silent_handler"}
    for response in await responses():
        assert response["Content-Type"] == "application/problem+json"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("password", "status", "answered"),
    [
        ("right", 200, "user:7"),
        (None, 200, "user:None"),
        ("wrong", 403, {"detail": "Invalid username/password."}),
    ],
)
def test_a_key_function_reads_the_user_of_rest_framework(
    password: str | None, status: int, answered: Any, serve: Any
) -> None:
    """``request.user`` is the view's own in a key function; whom the view refuses is refused as it does."""
    User.objects.create_user("ada", password="right", pk=7)

    class Orders(Realistic):
        versioning_class = None  # type: ignore[assignment]
        # The first would take a user that is left on the request for that of a session.
        authentication_classes = (SessionAuthentication, BasicAuthentication)  # type: ignore[assignment]

        @lock(lambda request: f"user:{request.user.pk}")
        def touch(self, request: Any) -> Response:
            return Response(request.weblock.key)

    serve(items=Orders.as_view({"post": "touch"}))
    sent = b64encode(f"ada:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {sent}"} if password else {}
    in_thread = Client(enforce_csrf_checks=True).post("/items", headers=headers)
    in_task = async_to_sync(AsyncClient(enforce_csrf_checks=True).post)("/items", headers=headers)
    for response in (in_thread, in_task):
        assert (response.status_code, response.json()) == (status, answered)


@pytest.mark.django_db
def test_a_locked_method_that_a_handler_calls_authenticates_no_further_time(serve: Any) -> None:
    """Its key function reads the user of the view, which has begun: credentials may be good for one use."""
    User.objects.create_user("ada", password="right", pk=7)
    authenticated: list[str] = []

    class Counting(BasicAuthentication):
        def authenticate(self, request: Any) -> Any:
            authenticated.append(request.path)
            return super().authenticate(request)

    class Order(UpdateAPIView):
        authentication_classes = (Counting,)

        @lock(lambda request: f"user:{request.user.pk}")
        def update(self, request: Any, *args: Any, **kwargs: Any) -> Response:
            return Response(request.weblock.key)

    serve(items=Order.as_view())
    sent = b64encode(b"ada:right").decode()
    response = Client().put("/items", headers={"Authorization": f"Basic {sent}"})
    assert response.json() == "user:7"
    assert authenticated == ["/items"]


@pytest.mark.django_db
def test_a_view_that_authenticates_when_its_user_is_read_leaves_the_user_on_the_request(
    serve: Any,
) -> None:
    """Also if a key function reads it first: middleware and logs read it on Django's request."""
    User.objects.create_user("ada", password="right", pk=7)

    class Order(UpdateAPIView):
        authentication_classes = (BasicAuthentication,)

        def perform_authentication(self, request: Any) -> None:
            """Authenticate lazily, as REST framework documents."""

        @lock(lambda request: f"user:{request.user.pk}")
        def update(self, request: Any, *args: Any, **kwargs: Any) -> Response:
            return Response(request.user.pk)

    serve(items=Order.as_view())
    sent = b64encode(b"ada:right").decode()
    response = Client().put("/items", headers={"Authorization": f"Basic {sent}"})
    assert (response.json(), response.wsgi_request.user.pk) == (7, 7)


@pytest.mark.parametrize("accept", ["application/json", "text/html"])
def test_a_lost_lease_is_told_in_the_same_way(accept: str, serve: Any, settings: Any) -> None:
    """What is said after the view, instead of its response, has the form of what is said before it."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]

    def lose(request: Any) -> None:
        assert locks["default"].force_release("items")
        with suppress(LeaseLost):
            request.weblock.extend(1)

    @lock("items")
    def view(request: Any) -> HttpResponse:
        lose(request)
        return HttpResponse(status=201)

    class Lost(APIView):
        @lock("items")
        def post(self, request: Any) -> Response:
            lose(request)
            return Response(status=201)

    serve(items=view, rest=Lost.as_view())
    response = fetch("/items", Accept=accept)
    assert (response.status_code, "html" in response["Content-Type"]) == (503, "html" in accept)
    response = fetch("/rest", Accept="application/json")
    assert (response.status_code, response.json()["code"]) == (503, "lease_lost")
    assert response["Content-Type"] == "application/json"


def titled(alias: str) -> Any:
    def rewrite(problem: Problem, error: WeblockError) -> Problem:
        return replace(problem, title=alias)

    return rewrite


@pytest.fixture
def aliases(settings: Any, url: str) -> None:
    def busy_of(alias: str) -> Any:
        return lambda request, error: HttpResponse(f"{alias}: {error.key}", status=429)

    settings.WEBLOCK = {
        alias: {
            "URL": f"{url}-{alias}",
            "WAIT": 0,
            "REWRITE": titled(alias),
            "BUSY_VIEW": busy_of(alias),
        }
        for alias in ("default", "reports")
    }


async def in_a_task(path: str) -> Any:
    return await AsyncClient(raise_request_exception=False).post(path)


@both
async def test_the_alias_of_a_key_that_cannot_be_made_answers(
    bare: None, serve: Any, aliases: None
) -> None:
    """A request without a usable key gets the ``REWRITE`` of the alias of the lock that wants it."""

    @lock("item:{query.pk}", alias="reports")
    def items(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @lock("item:{query.pk}", alias="reports")
    async def async_items(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @lock("outer")
    def inner_only(request: HttpRequest) -> Any:
        return items(request)

    serve(items=items, async_items=async_items, inner=inner_only)
    in_tasks = [await in_a_task(path) for path in ("/items", "/async_items", "/inner")]
    for response in [fetch("/items"), fetch("/inner"), *in_tasks]:
        assert (response.status_code, response.json()["title"]) == (400, "reports")


def lose(alias: str, lease: Any) -> None:
    """Take the lease of ``items`` away, so that its holder notices at once."""
    assert locks[alias].force_release("items")
    with suppress(LeaseLost):
        lease.extend(1)


@both
@pytest.mark.parametrize("raises", [True, False], ids=["raised", "noticed at the end"])
def test_the_alias_of_a_lost_lease_answers(
    raises: bool, bare: None, serve: Any, aliases: None
) -> None:
    """A request that loses its lease gets the ``REWRITE`` of the lease's alias."""

    @lock("items", alias="reports")
    def view(request: Any) -> HttpResponse:
        lose("reports", request.weblock)
        if raises:
            request.weblock.check()
        return HttpResponse(status=201)

    serve(items=view)
    response = fetch("/items")
    assert (response.status_code, response.json()["code"]) == (503, "lease_lost")
    assert response.json()["title"] == "reports"


@both
@pytest.mark.parametrize(("lost", "expected"), [("items", "reports"), ("other", "default")])
def test_of_several_aliases_the_one_of_the_key_answers(
    lost: str, expected: str, bare: None, serve: Any, aliases: None
) -> None:
    """Where locks of several aliases are held, the error's key decides, or else the innermost lock."""

    @lock("items", alias="reports")
    @lock("inner")
    def view(request: HttpRequest) -> HttpResponse:
        raise LeaseLost(lost, fence=1, reason="taken")

    serve(items=view)
    assert fetch("/items").json()["title"] == expected


@both
async def test_a_fence_that_is_locked_is_a_busy_key(bare: None, serve: Any, aliases: None) -> None:
    """``FenceLocked`` is answered by the ``BUSY_VIEW`` of the lock's alias, as another busy key is."""

    @lock("items", alias="reports")
    def view(request: HttpRequest) -> HttpResponse:
        raise FenceLocked("items", wait=1)

    @lock("items", alias="reports")
    async def async_view(request: HttpRequest) -> HttpResponse:
        raise FenceLocked("items", wait=1)

    serve(items=view, async_items=async_view)
    in_tasks = [await in_a_task(path) for path in ("/items", "/async_items")]
    for response in [fetch("/items"), *in_tasks]:
        assert (response.status_code, response.content) == (429, b"reports: items")


@both
async def test_a_busy_view_answers_for_its_own_lock(bare: None, serve: Any, aliases: None) -> None:
    """For a key that the view itself finds busy, ``BUSY_VIEW`` of the lock's alias answers."""

    def busy(request: HttpRequest, error: LockTimeout) -> HttpResponse:
        return HttpResponse(f"the lock's own: {error.key}", status=423)

    @lock("items", alias="reports", busy_view=busy)
    def view(request: HttpRequest) -> HttpResponse:
        raise LockTimeout("another", wait=0)

    @lock("items", alias="reports", busy_view=busy)
    async def async_view(request: HttpRequest) -> HttpResponse:
        raise LockTimeout("another", wait=0)

    serve(items=view, async_items=async_view)

    async def contents() -> list[bytes]:
        in_tasks = [await in_a_task(path) for path in ("/items", "/async_items")]
        return [response.content for response in [fetch("/items"), *in_tasks]]

    assert await contents() == [b"reports: another"] * 3
    with ThreadPoolExecutor(1) as stranger:
        lease = stranger.submit(locks["reports"].acquire, "items").result()
        assert await contents() == [b"the lock's own: items"] * 3
        stranger.submit(lease.release).result()


def test_a_busy_key_of_the_view_itself(serve: Any, settings: Any, aliases: None) -> None:
    """A view without a lock that finds a key busy is answered by the ``BUSY_VIEW`` of ``default``."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]

    def view(request: HttpRequest) -> HttpResponse:
        raise LockTimeout("own", wait=0)

    serve(items=view)
    response = fetch("/items")
    assert (response.status_code, response.content) == (429, b"default: own")
