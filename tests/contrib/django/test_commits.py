"""What a lost lease covers is not committed, whatever sends the COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from psycopg.sql import SQL

from weblock import LeaseLost
from weblock.contrib.django import lock, locks
from weblock.contrib.kit import Book

from .project.shop.models import Item
from .requests import fetch

DATABASES = ["lite", "default"]

pytestmark = pytest.mark.django_db(
    transaction=True,
    databases=DATABASES,
    available_apps=["weblock.contrib.django", "tests.contrib.django.project.shop"],
)


@pytest.fixture(autouse=True)
def bare(settings: Any) -> None:
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]


def lose() -> None:
    assert locks["default"].force_release("items")


COMMITS = {
    "COMMIT": "COMMIT",
    "end transaction": " /* done */ end transaction",
    "second": "SELECT 1; commit and no chain",
    "comment": "-- done\nCommit;",
}


def view_of(using: str, text: str, *, lost: bool) -> Callable[..., Any]:
    @lock("items")
    def view(request: Any) -> HttpResponse:
        with transaction.atomic(using):
            Item.objects.using(using).create()
            if lost:
                lose()
                with suppress(LeaseLost):
                    request.weblock.extend(1)
            with connections[using].cursor() as cursor:
                cursor.execute(SQL(text) if using == "default" else text)
        return HttpResponse(status=201)

    return view


@pytest.mark.parametrize("using", DATABASES)
@pytest.mark.parametrize("name", COMMITS)
def test_a_cursor_cannot_commit_without_a_lease(name: str, using: str, serve: Any) -> None:
    """A COMMIT as SQL is refused when the lease is lost, and rolled back; and else it commits."""
    if (name, using) == ("second", "lite"):
        pytest.skip("SQLite runs one statement at a time")
    serve(lost=view_of(using, COMMITS[name], lost=True))
    assert fetch("/lost").json()["code"] == "lease_lost"
    assert Item.objects.using(using).count() == 0
    assert connections[using].get_autocommit()
    serve(held=view_of(using, COMMITS[name], lost=False))
    assert fetch("/held").status_code == 201
    assert Item.objects.using(using).count() == 1


@pytest.mark.parametrize("using", DATABASES)
@pytest.mark.parametrize("inside", [nullcontext, transaction.atomic], ids=["bare", "atomic"])
def test_a_transaction_of_set_autocommit_is_not_written_in(
    inside: Callable[[str], Any], using: str, serve: Any
) -> None:
    """``set_autocommit(True)`` would commit it unchecked: the write is refused, and says what to use.

    Nothing is committed, and other reads may run so.
    """

    @lock("items")
    def view(request: HttpRequest) -> HttpResponse:
        transaction.set_autocommit(False, using=using)
        try:
            with inside(using):
                Item.objects.using(using).count()
                if "write" in request.GET:
                    Item.objects.using(using).create()
        finally:
            connections[using].rollback()
            transaction.set_autocommit(True, using=using)
        return HttpResponse()

    serve(items=view)
    assert "Use transaction.atomic()" in str(fetch("/items?write").exc_info[1])
    assert Item.objects.using(using).count() == 0
    assert fetch("/items").status_code == 200


class Stopped(BaseException):
    """What a signal handler raises."""


@pytest.mark.parametrize("using", DATABASES)
def test_whatever_ends_the_check_rolls_back(
    using: str, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``atomic`` turns autocommit on in any case, which commits on SQLite: so there is nothing left."""

    def check(_self: object) -> None:
        raise Stopped

    @lock("items")
    def view(request: HttpRequest) -> HttpResponse:
        with monkeypatch.context() as patches, transaction.atomic(using):
            Item.objects.using(using).create()
            patches.setattr(Book, "check", check)
        return HttpResponse()

    serve(items=view)
    with pytest.raises(Stopped):
        fetch("/items")
    assert Item.objects.using(using).count() == 0
    assert connections[using].get_autocommit()


def test_a_wrapper_that_is_there_first_removes_itself(serve: Any) -> None:
    """Django removes the last wrapper, which would be ours if it came after: ours stays."""

    def pass_on(execute: Any, *given: Any) -> Any:
        return execute(*given)

    connection = connections.create_connection("default")
    with connection.execute_wrapper(pass_on):
        connection.ensure_connection()
    connection.close()
    assert [each.__module__ for each in connection.execute_wrappers] == [
        "weblock.contrib.django.database"
    ]


@pytest.mark.parametrize("using", DATABASES)
def test_an_error_of_the_view_is_told_as_it_is(using: str, serve: Any) -> None:
    """Where nothing is to be committed, a lost lease hides no error, and leaves the connection usable."""

    @lock("items")
    def view(request: HttpRequest) -> HttpResponse:
        with transaction.atomic(using):
            Item.objects.using(using).create()
            lose()
            raise ZeroDivisionError

    serve(items=view)
    assert isinstance(fetch("/items").exc_info[1], ZeroDivisionError)
    assert connections[using].get_autocommit()
    assert Item.objects.using(using).count() == 0


@pytest.mark.parametrize("end", ["release", "hand_over"])
def test_a_lease_that_the_view_ends_before_the_commit_is_explained(
    end: str, serve: Any, settings: Any, database: Any, caplog: Any
) -> None:
    """The log says why all was rolled back and what to write instead; with DEBUG, the client sees it too."""

    @lock("items")
    def view(request: Any) -> HttpResponse:
        Item.objects.create()
        getattr(request.weblock, end)()
        return HttpResponse(status=201)

    serve(items=view)
    database(ATOMIC_REQUESTS=True)
    settings.DEBUG = True
    response = fetch("/items")
    assert (response.status_code, response.json()["code"]) == (503, "lease_lost")
    assert f"commit before {end}()" in response.json()["debug"]
    assert "in transaction.on_commit" in caplog.text
    assert Item.objects.count() == 0


@pytest.mark.parametrize(("last", "status"), [("unused", 201), ("read", 201), ("written", 503)])
def test_a_lease_that_ends_after_the_first_of_two_commits(
    last: str, status: int, serve: Any, database: Any
) -> None:
    """Of two databases with ATOMIC_REQUESTS, the second may commit after it only if nothing was written there."""

    @lock("items")
    def view(request: Any) -> HttpResponse:
        Item.objects.create()
        if last == "read":
            Item.objects.using("lite").count()
        if last == "written":
            Item.objects.using("lite").create()
        transaction.on_commit(request.weblock.release)
        return HttpResponse(status=201)

    serve(items=view)
    database("default", "lite", ATOMIC_REQUESTS=True)
    assert fetch("/items").status_code == status
    assert Item.objects.count() == 1
    assert Item.objects.using("lite").count() == 0
