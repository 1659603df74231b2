"""Each way to commit without ``atomic``: what a lost lease covers is not committed in any of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from psycopg.sql import SQL

from weblock import LeaseLost
from weblock.contrib.django import lock, locks

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
    """Nothing but our middleware."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]


def lose() -> None:
    """Has the lease taken away, and notices."""
    assert locks["default"].force_release("items")


def by_autocommit(using: str) -> None:
    """Turns autocommit on again, which commits on SQLite and on MySQL."""
    transaction.set_autocommit(True, using=using)


def by_commit(using: str) -> None:
    """Calls ``commit`` of Django."""
    transaction.commit(using=using)


def by_cursor(text: str) -> Callable[[str], None]:
    """Sends SQL that commits."""

    def commit(using: str) -> None:
        composed = SQL(text) if using == "default" else text
        with connections[using].cursor() as cursor:
            cursor.execute(composed)

    return commit


COMMITS = {
    "autocommit": by_autocommit,
    "commit": by_commit,
    "COMMIT": by_cursor("COMMIT"),
    "end transaction": by_cursor(" /* done */ end transaction"),
    "second": by_cursor("SELECT 1; commit and no chain"),
    "comment": by_cursor("-- done\nCommit;"),
}


def view_of(using: str, commit: Callable[[str], None], *, lost: bool) -> Callable[..., Any]:
    """A view that begins a transaction by turning autocommit off, and commits it its own way."""

    @lock("items")
    def view(request: Any) -> HttpResponse:
        transaction.set_autocommit(False, using=using)
        try:
            Item.objects.using(using).create()
            if lost:
                lose()
                with suppress(LeaseLost):
                    request.weblock.extend(1)
            commit(using)
        finally:
            connections[using].rollback()
            transaction.set_autocommit(True, using=using)
        return HttpResponse(status=201)

    return view


@pytest.mark.parametrize("using", DATABASES)
@pytest.mark.parametrize("name", COMMITS)
def test_no_commit_without_a_lease(name: str, using: str, serve: Any) -> None:
    """Whatever commits is refused when the lease is lost, and rolled back; and else it commits."""
    if (name, using) == ("autocommit", "default"):
        pytest.skip("PostgreSQL refuses it inside a transaction")
    if (name, using) == ("second", "lite"):
        pytest.skip("SQLite runs one statement at a time")
    serve(lost=view_of(using, COMMITS[name], lost=True))
    response = fetch("/lost")
    assert (response.status_code, response.json()["code"]) == (503, "lease_lost")
    assert Item.objects.using(using).count() == 0
    assert connections[using].get_autocommit()
    serve(held=view_of(using, COMMITS[name], lost=False))
    assert fetch("/held").status_code == 201
    assert Item.objects.using(using).count() == 1


@pytest.mark.parametrize("using", DATABASES)
def test_a_cursor_cannot_commit_an_atomic_block_either(using: str, serve: Any) -> None:
    """SQL ``COMMIT`` inside ``atomic`` is checked too, and the block rolls back."""

    @lock("items")
    def view(request: Any) -> HttpResponse:
        with transaction.atomic(using):
            Item.objects.using(using).create()
            lose()
            with suppress(LeaseLost):
                request.weblock.extend(1)
            by_cursor("COMMIT")(using)
        return HttpResponse(status=201)

    serve(items=view)
    assert fetch("/items").json()["code"] == "lease_lost"
    assert Item.objects.using(using).count() == 0
    assert connections[using].get_autocommit()


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
