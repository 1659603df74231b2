"""Locks and transactions, on PostgreSQL: nothing is read before the lock, or committed after it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.mixins import UserPassesTestMixin
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.views import View
from django.views.decorators.cache import cache_page
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import condition, require_POST
from ninja import NinjaAPI
from psycopg import IsolationLevel
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView

from weblock import LeaseLost
from weblock.contrib.django import lock, locks, request_locks

from .project.shop.models import Item
from .requests import Crowd, at_once, fetch

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

BOUND = 2
CROWD = 5

ISOLATION = [
    IsolationLevel.READ_COMMITTED,
    IsolationLevel.REPEATABLE_READ,
    IsolationLevel.SERIALIZABLE,
]
isolated = pytest.mark.parametrize("isolation", ISOLATION, ids=[each.name for each in ISOLATION])


class Shop:
    """A view that keeps the items bounded, as long as no other is inside."""

    def __init__(self, using: str = "default") -> None:
        self.items = Item.objects.using(using)
        self.crowd = Crowd(CROWD)

    def create(self, request: HttpRequest) -> HttpResponse:
        full = self.items.count() >= BOUND
        self.crowd.look()
        if full:
            return HttpResponse(status=422)
        self.crowd.linger()
        self.items.create()
        return HttpResponse(status=201)

    def slowly(self, view: Callable[..., Any]) -> Callable[..., Any]:
        """What other decorators do: they read before the view, and take their time after it."""

        @functools.wraps(view)
        def serve(request: HttpRequest) -> HttpResponse:
            self.items.exists()
            response = view(request)
            self.crowd.linger()
            return response

        return serve

    def overrun(self) -> list[int]:
        return sorted(at_once(CROWD, lambda: fetch("/items").status_code))


@isolated
@pytest.mark.parametrize("others", [(), ("other",)], ids=["one database", "two databases"])
def test_requests_in_a_transaction_never_overlap(
    isolation: IsolationLevel, others: Any, database: Any, serve: Any
) -> None:
    """With ATOMIC_REQUESTS, the lock is taken before the snapshot, and kept until the commit."""
    database("default", *others, ATOMIC_REQUESTS=True, OPTIONS={"isolation_level": isolation})
    shop = Shop(*others)
    serve(items=shop.slowly(lock("create_item")(shop.create)))
    assert shop.overrun() == [201] * BOUND + [422] * (CROWD - BOUND)
    assert shop.items.count() == BOUND


def test_a_service_that_locks_inside_a_transaction_is_rejected(database: Any, serve: Any) -> None:
    """A lock that would come after the transaction's snapshot is an error that names the remedy."""
    database(ATOMIC_REQUESTS=True)

    def view(request: HttpRequest) -> HttpResponse:
        request_locks().acquire("create_item")
        return HttpResponse()

    serve(items=view)
    assert "inside a transaction on the database" in str(fetch("/items").exc_info[1])


@isolated
@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "no middleware"])
def test_views_with_transactions_of_their_own_never_overlap(
    isolation: IsolationLevel, middleware: bool, database: Any, serve: Any, settings: Any
) -> None:
    """A view that opens its transaction itself does so inside the lock, with middleware or not."""
    database(OPTIONS={"isolation_level": isolation})
    if not middleware:
        settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    shop = Shop()
    serve(items=lock("create_item")(transaction.atomic(durable=True)(shop.create)))
    assert shop.overrun() == [201] * BOUND + [422] * (CROWD - BOUND)
    assert shop.items.count() == BOUND


AROUND: dict[str, Callable[..., Any]] = {
    "csrf_exempt": csrf_exempt,
    "cache_page": cache_page(60),
    "condition": condition(etag_func=lambda request: "tag"),
    "atomic": transaction.atomic,
    "require_POST": require_POST,
    "non_atomic_requests": transaction.non_atomic_requests,
}


def test_other_decorators_may_stand_above_and_below(database: Any, serve: Any) -> None:
    """Whatever else decorates a view, its work is committed inside the lock, which is freed then."""
    held: list[bool] = []

    def create(request: HttpRequest) -> HttpResponse:
        Item.objects.create()
        transaction.on_commit(lambda: held.append(request.weblock.held))  # type: ignore[attr-defined]
        return HttpResponse()

    database(ATOMIC_REQUESTS=True)
    under = lock("create_item", wait=0)
    serve(
        **{f"{name}_above": decorate(under(create)) for name, decorate in AROUND.items()},
        **{f"{name}_below": under(decorate(create)) for name, decorate in AROUND.items()},
    )
    names = [f"{name}_{place}" for name in AROUND for place in ("above", "below")]
    assert {name: fetch(f"/{name}").status_code for name in names} == dict.fromkeys(names, 200)
    assert held == [True] * len(names)


@pytest.mark.parametrize("atomic", ["ATOMIC_REQUESTS", "atomic"])
def test_without_the_middleware_a_transaction_outside_is_refused(
    atomic: str, database: Any, serve: Any, settings: Any
) -> None:
    """A decorator that would come too late says so, and what to do; it does not run the view."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    shop = Shop()
    view = lock("create_item")(shop.create)
    if atomic == "atomic":
        view = transaction.atomic(view)
    database(ATOMIC_REQUESTS=atomic == "ATOMIC_REQUESTS")
    serve(items=view)
    response = fetch("/items")
    assert response.status_code == 500
    assert "LockMiddleware last into MIDDLEWARE" in str(response.exc_info[1])
    assert shop.items.count() == 0


def that_reads(get_response: Any) -> Any:
    def serve(request: HttpRequest) -> Any:
        Item.objects.exists()
        return get_response(request)

    return serve


def test_a_transaction_for_want_of_autocommit_is_refused(
    database: Any, serve: Any, settings: Any
) -> None:
    """Without autocommit, what was read before the lock has begun a transaction, atomic or not."""
    settings.MIDDLEWARE = [f"{__name__}.that_reads", *settings.MIDDLEWARE[-1:]]
    database(AUTOCOMMIT=False)
    serve(items=lock("create_item")(Shop().create))
    assert "leave AUTOCOMMIT on" in str(fetch("/items").exc_info[1])
    connection.close()


def in_a_transaction(get_response: Any) -> Any:
    def serve(request: HttpRequest) -> Any:
        with transaction.atomic():
            return get_response(request)

    return serve


async def test_a_transaction_of_other_middleware_is_refused(
    database: Any, serve: Any, settings: Any
) -> None:
    """Also under ASGI, where the transaction is open in another thread than ours."""
    settings.MIDDLEWARE = [f"{__name__}.in_a_transaction", *settings.MIDDLEWARE[-1:]]
    serve(items=lock("create_item")(Shop().create))
    response = await AsyncClient(raise_request_exception=False).post("/items")
    await sync_to_async(connections.close_all)()
    assert "LockMiddleware last into MIDDLEWARE" in str(response.exc_info[1])
    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(lambda: fetch("/items")).result()
    assert "LockMiddleware last into MIDDLEWARE" in str(response.exc_info[1])


api = NinjaAPI(urls_namespace="weblock-transactions")


@api.post("/items")
@lock("create_item")
def operation(request: Any) -> None:
    Item.objects.create()


@api_view(["POST"])
@lock("create_item")
def below_api_view(request: Any) -> Response:
    Item.objects.create()
    return Response()


@pytest.mark.parametrize("url", ["/api/items", "/below"])
def test_what_the_middleware_cannot_see_is_refused_in_a_transaction(
    url: str, database: Any, settings: Any
) -> None:
    """With ATOMIC_REQUESTS it would acquire too late: it says so, and does nothing."""
    database(ATOMIC_REQUESTS=True)
    settings.ROOT_URLCONF = (path("api/", api.urls), path("below", below_api_view))
    response = fetch(url)
    assert "LockMiddleware last into MIDDLEWARE" in str(response.exc_info[1])
    assert Item.objects.count() == 0


class PassesOn(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return self.create(request)

    @lock("create_item")
    def create(self, request: HttpRequest) -> HttpResponse:
        Item.objects.create()
        return HttpResponse(status=201)


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "autocommit"])
def test_a_locked_method_that_a_handler_calls_is_refused_in_a_transaction(
    atomic: bool, database: Any, serve: Any
) -> None:
    """It would acquire too late: the error says where to put the lock. Elsewhere it locks by itself."""
    database(ATOMIC_REQUESTS=atomic)
    serve(items=PassesOn.as_view())
    response = fetch("/items")
    if atomic:
        assert "not on one that this method calls" in str(response.exc_info[1])
    assert (response.status_code, Item.objects.count()) == ((500, 0) if atomic else (201, 1))


class OverridesDispatch(View):
    @lock("create_item")
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)

    def post(self, request: HttpRequest) -> HttpResponse:
        Item.objects.create()
        return HttpResponse(status=201)


class Inherits(UserPassesTestMixin, OverridesDispatch):
    def test_func(self) -> bool:
        return True


def test_a_locked_dispatch_of_a_base_class_is_seen(database: Any, serve: Any) -> None:
    """A mixin that overrides ``dispatch`` hides no lock from the middleware, in a transaction either."""
    database(ATOMIC_REQUESTS=True)
    serve(items=Inherits.as_view())
    assert (fetch("/items").status_code, Item.objects.count()) == (201, 1)


def as_a_response(error: Exception, _context: Any) -> Response:
    """An exception handler of REST framework that lets no error out, and does not roll back."""
    return Response({"error": str(error)}, status=200)


@override_settings(REST_FRAMEWORK={"EXCEPTION_HANDLER": f"{__name__}.as_a_response"})
def test_errors_that_are_made_responses_do_not_commit(database: Any, serve: Any) -> None:
    """The loss is found again before the COMMIT, whatever REST framework made of it."""
    database(ATOMIC_REQUESTS=True)

    class Items(APIView):
        @lock("create_item")
        def post(self, request: Any) -> HttpResponse:
            return in_atomic_requests(request)

    serve(items=Items.as_view())
    assert fetch("/items").json()["code"] == "lease_lost"
    assert items() == 0


def test_a_hold_inside_a_transaction_is_warned_of(
    database: Any, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A view that holds a lock by itself, too late, finds a line in the log."""
    database(ATOMIC_REQUESTS=True)

    def too_late(request: HttpRequest) -> HttpResponse:
        with locks["default"].hold("create_item"):
            return Shop().create(request)

    serve(items=too_late)
    assert fetch("/items").status_code == 201
    assert "'create_item' is acquired inside a transaction on the database 'default'" in caplog.text


def test_what_goes_on_after_the_request_commits_by_itself(database: Any, serve: Any) -> None:
    """A thread with the request's context is not bound to what the request no longer holds."""
    contexts = []

    def create(request: HttpRequest) -> HttpResponse:
        contexts.append(copy_context())
        return HttpResponse()

    def later() -> None:
        with transaction.atomic():
            Item.objects.create()

    serve(items=lock("create_item")(create))
    assert fetch("/items").status_code == 200
    contexts[0].run(later)
    assert Item.objects.count() == 1


def test_what_was_committed_under_the_lease_is_told_as_it_is(
    database: Any, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A lease that was lost after the COMMIT is a line in the log, and no lie to the client."""
    database(ATOMIC_REQUESTS=True)

    @lock("create_item")
    def create(request: HttpRequest) -> HttpResponse:
        transaction.on_commit(lambda: lose(request))
        Item.objects.create()
        return HttpResponse(status=201)

    serve(items=create)
    assert fetch("/items").status_code == 201
    assert items() == 1
    assert "was committed before the lease of 'create_item'" in caplog.text


def lose(request: Any) -> None:
    assert locks["default"].force_release("create_item")
    with suppress(LeaseLost):
        request.weblock.extend(1)
    assert not request.weblock.held


def in_atomic_requests(request: Any) -> HttpResponse:
    Item.objects.create()
    lose(request)
    return HttpResponse(status=201)


def in_own_transaction(request: Any) -> HttpResponse:
    with transaction.atomic():
        Item.objects.create()
        lose(request)
    return HttpResponse(status=201)


def in_spite_of_errors(request: Any) -> HttpResponse:
    """A view that is told, and does not want to know."""
    try:
        in_own_transaction(request)
    except Exception:  # noqa: BLE001 - as people write it
        pass
    return HttpResponse(status=201)


def on_another_database(request: Any) -> HttpResponse:
    """A view whose transaction is on a database that is not the default."""
    with transaction.atomic("other"):
        Item.objects.using("other").create()
        lose(request)
    return HttpResponse(status=201)


def on_both_databases(request: Any) -> HttpResponse:
    with transaction.atomic(), transaction.atomic("other"):
        Item.objects.create()
        on_another_database(request)
    return HttpResponse(status=201)


ALONE = [in_own_transaction, in_spite_of_errors, on_another_database, on_both_databases]
LOSERS = [
    (in_atomic_requests, True),
    *((view, middleware) for view in ALONE for middleware in (True, False)),
]


def items() -> int:
    return Item.objects.count() + Item.objects.using("other").count()


@pytest.mark.parametrize(("view", "middleware"), LOSERS)
def test_what_is_not_committed_under_the_lease_is_rolled_back(
    view: Callable[..., Any], middleware: bool, database: Any, serve: Any, settings: Any
) -> None:
    """A lease that was lost before COMMIT rolls back, and the client is told."""
    if not middleware:
        settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    database(ATOMIC_REQUESTS=view is in_atomic_requests)
    serve(items=lock("create_item")(view))
    response = fetch("/items")
    assert response.status_code == 503
    assert response.json()["code"] == "lease_lost"
    assert "Retry-After" not in response
    assert items() == 0
    assert connection.get_autocommit()


def test_a_commit_that_others_have_wrapped_is_checked_too(database: Any, serve: Any) -> None:
    """Another package that wraps the connection's commit does not keep ours from being asked."""
    ours = connections["default"]
    connections["default"] = new = connections.create_connection("default")
    try:
        with mock.patch.object(new, "commit", wraps=new.commit) as wrapper:
            serve(items=lock("create_item")(in_own_transaction))
            response = Client().post("/items")
        new.close()
    finally:
        connections["default"] = ours
    assert response.json()["code"] == "lease_lost"
    assert not wrapper.called
    assert items() == 0
