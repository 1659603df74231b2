"""Locks and transactions, on PostgreSQL: nothing is read before the lock, or committed after it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from psycopg import IsolationLevel

from weblock.contrib.django import lock, locks

from .naive import naive_lock
from .project.shop.models import Item
from .requests import Crowd, at_once, fetch

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

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
        self.crowd = Crowd()

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
        """The statuses of a crowd's requests."""
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


@isolated
def test_a_naive_decorator_breaks_in_a_transaction(
    isolation: IsolationLevel, database: Any, serve: Any
) -> None:
    """The same test finds out one that acquires and releases inside the transaction."""
    database(ATOMIC_REQUESTS=True, OPTIONS={"isolation_level": isolation})
    shop = Shop()
    serve(items=shop.slowly(naive_lock("create_item")(shop.create)))
    statuses = shop.overrun()
    assert shop.items.count() > BOUND or 500 in statuses


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


def test_views_without_a_transaction_never_overlap(database: Any, serve: Any) -> None:
    """In autocommit mode too, with another decorator around."""
    shop = Shop()
    serve(items=shop.slowly(lock("create_item")(shop.create)))
    assert shop.overrun() == [201] * BOUND + [422] * (CROWD - BOUND)


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


def test_hooks_after_the_commit_run_inside_the_lock(database: Any, serve: Any) -> None:
    """What on_commit runs is done before the next one gets the lock."""
    database(ATOMIC_REQUESTS=True)
    held: list[bool] = []

    @lock("create_item")
    def create(request: HttpRequest) -> HttpResponse:
        transaction.on_commit(lambda: held.append(request.weblock.held))  # type: ignore[attr-defined]
        Item.objects.create()
        return HttpResponse()

    serve(items=create)
    assert fetch("/items").status_code == 200
    assert held == [True]


def test_an_exception_rolls_back_and_releases(database: Any, serve: Any, url: str) -> None:
    """A view that fails leaves neither work nor lock behind."""
    database(ATOMIC_REQUESTS=True)

    @lock("create_item", wait=0)
    def create(request: HttpRequest) -> HttpResponse:
        Item.objects.create()
        if request.GET:
            raise ZeroDivisionError
        return HttpResponse()

    serve(items=create)
    assert fetch("/items?fail").status_code == 500
    assert Item.objects.count() == 0
    assert fetch("/items").status_code == 200


def until_lost(request: Any) -> None:
    """Spins until the lease has ended."""
    while request.weblock.held:
        pass


def in_atomic_requests(request: Any) -> HttpResponse:
    """A view whose transaction is the request's."""
    Item.objects.create()
    until_lost(request)
    return HttpResponse(status=201)


def in_own_transaction(request: Any) -> HttpResponse:
    """A view whose lease ends inside a transaction of its own."""
    with transaction.atomic():
        Item.objects.create()
        until_lost(request)
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
        until_lost(request)
    return HttpResponse(status=201)


ALONE = [in_own_transaction, in_spite_of_errors, on_another_database]
LOSERS = [
    (in_atomic_requests, True),
    *((view, middleware) for view in ALONE for middleware in (True, False)),
]


def items() -> int:
    """How many there are, in both databases."""
    return Item.objects.count() + Item.objects.using("other").count()


@pytest.mark.parametrize(("view", "middleware"), LOSERS)
def test_what_is_not_committed_under_the_lease_is_rolled_back(
    view: Callable[..., Any], middleware: bool, database: Any, serve: Any, settings: Any
) -> None:
    """A lease that was lost before COMMIT rolls back, and the client is told."""
    if not middleware:
        settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    database(ATOMIC_REQUESTS=view is in_atomic_requests)
    serve(items=lock("create_item", ttl=0.1, renew=False)(view))
    response = fetch("/items")
    assert response.status_code == 503
    assert response.json()["code"] == "lease_lost"
    assert "Retry-After" not in response
    assert items() == 0
    assert connection.get_autocommit()


def test_a_naive_decorator_commits_without_a_lease(database: Any, serve: Any) -> None:
    """The same view under a naive decorator commits, for nobody asks."""

    def held(request: Any) -> HttpResponse:
        with locks["default"].hold("create_item", ttl=0.1, renew=False) as request.weblock:
            return in_own_transaction(request)

    serve(items=held)
    assert fetch("/items").status_code == 503
    assert items() == 1
