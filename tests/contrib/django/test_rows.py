"""Rows that were read before the lock are read again inside it, whatever has read them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path, register_converter
from django.urls.converters import IntConverter
from django.utils.decorators import method_decorator, sync_and_async_middleware
from django.utils.functional import SimpleLazyObject
from django.views import View
from ninja import NinjaAPI
from ninja.security import django_auth
from psycopg import IsolationLevel
from rest_framework.views import APIView

from tests.support.waiting import PATIENCE, eventually
from weblock import ConfigurationError
from weblock.contrib.django import async_locks, lock, locks, request_locks
from weblock.contrib.django.checks import MIDDLEWARE
from weblock.contrib.django.database import LOCKED_READS
from weblock.contrib.django.request import kept_rows

from .project.replica import REPLICA
from .project.shop.models import Item
from .test_checks import found
from .test_waiting import backends, waiters, without_ours

pytestmark = pytest.mark.django_db(
    transaction=True,
    databases=["default", "other"],
    # Fewer tables to empty, and none to fill again.
    available_apps=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "weblock.contrib.django",
        "tests.contrib.django.project.shop",
    ],
)

LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"
KEEPS_A_ROW = f"{__name__}.keeps_a_row"
KEEPS_A_LAZY_ROW = f"{__name__}.keeps_a_lazy_row"


def buy(request: Any, member: Any = None) -> HttpResponse:
    """Spend the one credit of a user, unless the row says that it is spent."""
    member = member or request.user
    credit = int(member.first_name)
    if credit < 1:
        return HttpResponse(status=402)
    Item.objects.create()
    member.first_name = str(credit - 1)
    member.save()
    return HttpResponse(status=201)


def key_of_user(request: Any) -> str:
    assert request.user.first_name
    return "wallet"


async def key_of_auser(request: Any) -> str:
    assert (await request.auser()).first_name
    return "wallet"


@sync_and_async_middleware
def keeps_a_row(get_response: Any) -> Any:
    return _keeping(get_response, User.objects.get)


@sync_and_async_middleware
def keeps_a_lazy_row(get_response: Any) -> Any:
    def read() -> Any:
        lazy = SimpleLazyObject(User.objects.get)
        assert lazy.username
        return lazy

    return _keeping(get_response, read)


def _keeping(get_response: Any, read: Callable[[], Any]) -> Any:
    if not iscoroutinefunction(get_response):

        def keep(request: Any) -> Any:
            request.member = read()
            return get_response(request)

        return keep

    async def akeep(request: Any) -> Any:
        request.member = await sync_to_async(read)()
        return await get_response(request)

    return akeep


class MemberConverter(IntConverter):
    """A part of the URL that stands for a row."""

    def to_python(self, value: str) -> Any:
        return User.objects.get(pk=int(value))


register_converter(MemberConverter, "member")


def with_member(view: Any) -> Any:
    @wraps(view)
    def wrapper(request: Any) -> Any:
        return view(request, User.objects.get())

    return wrapper


def buy_of_request(request: Any) -> HttpResponse:
    return buy(request, request.member)


def buy_by_service(request: Any) -> HttpResponse:
    request_locks().acquire(key_of_user(request))
    return buy(request)


class OfInstance(View):
    """Keep a row on the instance of the view."""

    def setup(self, request: Any, *args: Any, **url: Any) -> None:
        super().setup(request, *args, **url)
        self.member = User.objects.get()

    @lock("wallet")
    def post(self, request: Any) -> HttpResponse:
        return buy(request, self.member)


class ByMethodDecorator(OfInstance):
    """The same, with Django's way to decorate methods."""

    @method_decorator(lock("wallet"))
    def post(self, request: Any) -> HttpResponse:
        return buy(request, self.member)


class Rest(APIView):
    """REST framework has authenticated before its method runs."""

    @lock("wallet")
    def post(self, request: Any) -> HttpResponse:
        return buy(request)


api = NinjaAPI(urls_namespace="weblock-rows")


@api.post("/buy", auth=django_auth)
@lock("wallet")
def operation(request: Any) -> Any:
    return buy(request, request.auth)


async def abuy(request: Any) -> HttpResponse:
    member = await request.auser()
    return await sync_to_async(buy)(request, member)


WITH_MIDDLEWARE: dict[str, tuple[list[str], Any]] = {
    "key function": ([], lock(key_of_user)(buy)),
    "LoginRequiredMiddleware": ([LOGIN_REQUIRED], lock("wallet")(buy)),
    "middleware": ([KEEPS_A_ROW], lock("wallet")(buy_of_request)),
    "lazy middleware": ([KEEPS_A_LAZY_ROW], lock("wallet")(buy_of_request)),
    "converter": ([], lock("wallet")(buy)),
    "login_required above": ([], login_required(lock(key_of_user)(buy))),
    "login_required below": ([], lock(key_of_user)(login_required(buy))),
    "REST framework": ([LOGIN_REQUIRED], Rest.as_view()),
}
ALONE: dict[str, tuple[list[str], Any]] = {
    **WITH_MIDDLEWARE,
    "argument": ([], with_member(lock("wallet")(buy))),
    "instance": ([], OfInstance.as_view()),
    "method_decorator": ([], ByMethodDecorator.as_view()),
    "ninja": ([], api.urls),
}
ASYNC: dict[str, tuple[list[str], Any]] = {
    "async key function": ([], lock(key_of_auser)(abuy)),
    "key function": ([], lock(key_of_user)(abuy)),
    "LoginRequiredMiddleware": ([LOGIN_REQUIRED], lock("wallet")(abuy)),
}


@pytest.fixture
def sell(settings: Any, database: Any, url: str) -> Any:
    """Sets up a shop where one user has one credit; returns the URL and the cookies of the user."""

    def sell(way: tuple[list[str], Any], *, middleware: bool, **options: Any) -> tuple[str, Any]:
        database(**options)
        more, view = way
        first = settings.MIDDLEWARE[:-1]
        settings.MIDDLEWARE = [*first, *more, *([MIDDLEWARE] if middleware else [])]
        settings.WEBLOCK = {"default": {"URL": url, "WAIT": PATIENCE}}
        user = User.objects.create(username="ada", first_name="1")
        target = "buy"
        if view is WITH_MIDDLEWARE["converter"][1]:
            settings.ROOT_URLCONF = (path("buy/<member:member>", view),)
            target = f"buy/{user.pk}"
        elif isinstance(view, tuple):
            settings.ROOT_URLCONF = (path("", view),)
        else:
            settings.ROOT_URLCONF = (path("buy", view),)
        client = Client()
        client.force_login(user)
        return f"/{target}", client.cookies

    return sell


def bought(answers: list[Any]) -> tuple[list[int], int]:
    return sorted(each.status_code for each in answers), Item.objects.count()


ONE = ([201, 402, 402], 1)


def at_once(target: str, cookies: Any) -> list[Any]:
    """Send three requests, each of which has read its rows before the first gets the lock.

    While they wait, they hold no connection.
    """
    others = without_ours()

    def visit(_number: int) -> Any:
        client = Client()
        client.cookies = cookies
        try:
            return client.post(target)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        with locks["default"].hold("wallet"):
            answers = pool.map(visit, range(3))
            eventually(lambda: waiters("wallet") == 3)
            eventually(lambda: backends() <= others)
        return list(answers)


@pytest.mark.parametrize(
    ("way", "isolation"),
    [
        *((way, IsolationLevel.REPEATABLE_READ) for way in WITH_MIDDLEWARE),
        ("key function", IsolationLevel.READ_COMMITTED),
        ("key function", IsolationLevel.SERIALIZABLE),
    ],
)
def test_one_credit_is_one_purchase(way: str, isolation: Any, sell: Any) -> None:
    """With ``ATOMIC_REQUESTS``, on each isolation level: three requests at once, one purchase."""
    options = {"isolation_level": isolation}
    target, cookies = sell(
        WITH_MIDDLEWARE[way], middleware=True, ATOMIC_REQUESTS=True, OPTIONS=options
    )
    assert bought(at_once(target, cookies)) == ONE


@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
@pytest.mark.parametrize("way", ALONE)
def test_one_credit_is_one_purchase_in_autocommit(way: str, middleware: bool, sell: Any) -> None:
    """Also where the decorator acquires by itself, after other decorators and authentication."""
    assert bought(at_once(*sell(ALONE[way], middleware=middleware))) == ONE


def test_one_credit_is_one_purchase_in_a_service(sell: Any) -> None:
    """A service that acquires for the request reads what the request has read before."""
    assert bought(at_once(*sell(([], buy_by_service), middleware=True))) == ONE


@pytest.mark.parametrize(
    ("way", "is_async"),
    # Django reads the URL on the event loop, where a converter cannot use the database.
    [
        *((way, False) for way in WITH_MIDDLEWARE if way != "converter"),
        *((way, True) for way in ASYNC),
    ],
)
async def test_one_credit_is_one_purchase_under_asgi(way: str, is_async: bool, sell: Any) -> None:
    """In tasks, for views of both kinds."""
    target, cookies = await sync_to_async(sell)(
        (ASYNC if is_async else WITH_MIDDLEWARE)[way],
        middleware=True,
        ATOMIC_REQUESTS=not is_async,
    )

    async def visit() -> Any:
        client = AsyncClient()
        client.cookies = cookies
        return await client.post(target)

    others = await sync_to_async(without_ours)()
    async with async_locks["default"].hold("wallet"):
        visits = [asyncio.ensure_future(visit()) for _ in range(3)]
        await asyncio.to_thread(eventually, lambda: waiters("wallet") == 3)
        await asyncio.to_thread(eventually, lambda: backends() <= others)
    answers = await asyncio.gather(*visits)
    assert await sync_to_async(bought)(answers) == ONE
    await sync_to_async(connections.close_all)()


@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
def test_a_user_who_is_gone_gets_403(middleware: bool, sell: Any) -> None:
    """The view does not run for a user who was deleted while the request waited."""
    target, cookies = sell(WITH_MIDDLEWARE["key function"], middleware=middleware)
    client = Client()
    client.cookies = cookies
    with ThreadPoolExecutor(1) as pool:
        with locks["default"].hold("wallet"):
            answer = pool.submit(client.post, target)
            eventually(lambda: waiters("wallet") == 1)
            User.objects.all().delete()
        assert answer.result(PATIENCE).status_code == 403
        pool.submit(connections.close_all).result()
    assert not Item.objects.exists()
    assert locks["default"].inspect("wallet") is None


def test_a_row_is_read_again_in_place() -> None:
    """What an application has put on the row stays, and what nobody has read is not read."""
    user = User.objects.create(username="ada")
    user.is_verified = lambda: True  # type: ignore[attr-defined] # So do packages for two factors.
    lazy = SimpleLazyObject(lambda: user)
    uncopied = SimpleLazyObject(threading.Lock)
    assert uncopied.locked() is False
    assert kept_rows([lazy, uncopied, User(username="new"), user.pk, None]) == []
    assert lazy.username
    outer = SimpleLazyObject(lambda: SimpleLazyObject(lambda: user))
    assert kept_rows([lazy, user, outer]) == [user]

    request = RequestFactory().post("/")
    request.user = lazy
    view = lock("x")(lambda request: HttpResponse(request.user.first_name))
    User.objects.update(first_name="Ada")
    assert view(request).content == b"Ada"
    assert request.user.is_verified()


def test_reads_inside_a_lock_go_to_the_database_that_is_written(
    sell: Any, settings: Any, serve: Any
) -> None:
    """A replica that is behind is read before the lock only, unless the view names it."""
    settings.DATABASE_ROUTERS = [LOCKED_READS, REPLICA]

    def view(request: Any) -> HttpResponse:
        return HttpResponse(f"{Item.objects.all().db} {Item.objects.using('other').db}")

    serve(locked=lock("x")(view), free=view)
    settings.MIDDLEWARE = [MIDDLEWARE]
    assert Client().post("/locked").content == b"default other"
    assert Client().post("/free").content == b"other other"
    settings.MIDDLEWARE = []
    assert Client().post("/locked").content == b"default other"
    assert "weblock.E011" not in found()


async def test_reads_in_tasks_inside_a_lock(settings: Any, serve: Any) -> None:
    """In async views, and in the threads that they use."""
    settings.DATABASE_ROUTERS = [LOCKED_READS, REPLICA]
    settings.MIDDLEWARE = [MIDDLEWARE]

    async def view(request: HttpRequest) -> HttpResponse:
        in_thread = await sync_to_async(lambda: Item.objects.all().db)()
        return HttpResponse(f"{Item.objects.all().db} {in_thread}")

    serve(locked=lock("x")(view), free=view)
    assert (await AsyncClient().post("/locked")).content == b"default default"
    assert (await AsyncClient().post("/free")).content == b"other other"


def test_a_router_that_sends_reads_elsewhere_is_refused(settings: Any, serve: Any) -> None:
    """It is an error of the check, and the server does not start: a stale row would lose an update."""
    serve(locked=lock("x")(buy))
    settings.MIDDLEWARE = [MIDDLEWARE]
    assert "weblock.E011" not in found()
    for routers in ([REPLICA], [REPLICA, LOCKED_READS]):  # The first router that answers decides.
        settings.DATABASE_ROUTERS = routers
        message = found()["weblock.E011"]
        assert "to 'other' and its writes to 'default'" in message
        assert f"put {LOCKED_READS!r} first into DATABASE_ROUTERS" in message
        with pytest.raises(ConfigurationError, match="DATABASE_ROUTERS"):
            WSGIHandler()
    settings.DATABASE_ROUTERS = [LOCKED_READS, REPLICA]
    assert "weblock.E011" not in found()
    WSGIHandler()
