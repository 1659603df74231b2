"""``guard=`` on one lock: what it says counts, whatever the alias's ``GUARD`` is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import override_settings

from weblock.contrib.django import lock
from weblock.contrib.django.checks import check_guard
from weblock.contrib.kit.sql import TABLE

from .project.shop.models import Item
from .requests import fetch
from .test_guard import Story, elsewhere, pytestmark  # noqa: F401 - the databases of these tests

MIDDLEWARE = ["weblock.contrib.django.middleware.LockMiddleware"]


@pytest.fixture
def alias(settings: Any, url: str) -> Callable[..., None]:
    def alias(**given: Any) -> None:
        there = {"URL": url, "WAIT": 0, "GUARD": "lease", "GUARD_DATABASES": ["default", "other"]}
        settings.WEBLOCK = {"default": {**there, **given}}

    return alias


def is_refused(response: Any) -> bool:
    """Whether the first holder's COMMIT was refused; else both have committed."""
    committed = Item.objects.count()
    assert committed == 2 or (committed, response.status_code) == (1, 503)
    return committed == 1


@pytest.mark.parametrize(
    ("of_alias", "of_lock", "guarded"),
    [
        ("lease", "database", True),
        ("lease", None, False),
        ("database", "lease", False),
        ("database", None, True),
    ],
)
def test_the_lock_overrides_its_alias(
    of_alias: str, of_lock: Any, guarded: bool, *, serve: Any, alias: Any
) -> None:
    """With and without a guard of its own, under either setting."""
    serve(items=lock("create_item", guard=of_lock)(Story().create))
    alias(GUARD=of_alias)
    assert is_refused(fetch("/items")) is guarded


@pytest.mark.parametrize("rule", [{"view": "items"}, {"route": "items"}], ids=["view", "route"])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_rule_may_have_a_guard(rule: Any, guarded: bool, *, serve: Any, alias: Any) -> None:
    """By view and by route."""
    serve(items=Story().create)
    rule = {**rule, "key": "create_item", **({"guard": "database"} if guarded else {})}
    alias(RULES=[rule])
    with override_settings(MIDDLEWARE=MIDDLEWARE):
        assert is_refused(fetch("/items")) is guarded


@pytest.mark.parametrize("middleware", [[], MIDDLEWARE], ids=["alone", "middleware"])
@pytest.mark.parametrize("order", [("lease", "database"), ("database", "lease")])
def test_one_of_several_locks_on_a_key_is_enough(
    middleware: Any, order: Any, *, serve: Any, alias: Any
) -> None:
    """The request holds the key once, and it is guarded if any of its locks says so."""
    view: Any = Story().create
    for guard in order:
        view = lock("create_item", guard=guard)(view)
    serve(items=view)
    alias()
    with override_settings(MIDDLEWARE=middleware):
        assert is_refused(fetch("/items"))


def test_a_guard_may_come_later_than_the_lease(serve: Any, alias: Any) -> None:
    """A function inside the view that locks the same key with a guard has it guarded from then on."""
    story = Story()

    @lock("create_item")
    def view(request: HttpRequest) -> HttpResponse:
        return lock("create_item", guard="database")(story.create)(request)

    serve(items=view)
    alias()
    assert is_refused(fetch("/items"))


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(connection.ensure_connection).result()
        yield pool
        pool.submit(connections.close_all).result()


def new_cursor() -> Any:
    return connection.cursor()


def atomic(story: Story, _cursor: Any) -> None:
    with transaction.atomic():
        story.create()


def by_an_old_cursor(story: Story, cursor: Any) -> None:
    full = story.items.count() >= 1
    story.sleep()
    if not full:
        with transaction.atomic():
            cursor.execute("INSERT INTO shop_item (name) VALUES ('')")


@pytest.mark.parametrize("way", [atomic, by_an_old_cursor])
def test_connections_of_other_threads_are_checked(
    way: Any, *, thread: ThreadPoolExecutor, serve: Any, alias: Any
) -> None:
    """A view may have another thread write, whose connection was open before it."""
    story, cursor = Story(), thread.submit(new_cursor).result()

    @lock("create_item", guard="database")
    def view(request: HttpRequest) -> HttpResponse:
        if story.followed:
            return story.create()  # The next holder, while the first one has the thread.
        thread.submit(copy_context().run, way, story, cursor).result()
        return HttpResponse(status=201)

    serve(items=view)
    alias()
    assert is_refused(fetch("/items"))


def test_what_is_not_guarded_sends_nothing(serve: Any, alias: Any) -> None:
    """After a guarded request, the connection serves an unguarded one as if there were no guard."""
    from .test_guard import statements

    serve(
        items=lock("create_item", guard="database")(lambda _request: created()),
        others=lock("create_item")(lambda _request: created()),
    )
    alias()
    assert TABLE in "".join(statements("default", lambda: fetch("/items")))
    assert [sql[:6] for sql in statements("default", lambda: fetch("/others"))] == [
        *("BEGIN", "INSERT", "COMMIT")
    ]


def created() -> HttpResponse:
    with transaction.atomic():
        Item.objects.create()
    return HttpResponse(status=201)


@pytest.mark.parametrize("by", ["decorator", "rule by view", "rule by route"])
def test_checks_know_of_it(by: str, serve: Any, alias: Any) -> None:
    """W007 says where the table is missing, and E007 where engines share rows, though no alias has a GUARD."""
    rule = {"view": "items"} if by == "rule by view" else {"route": "items"}
    rules = [{**rule, "key": "create_item", "guard": "database"}]
    marked = lock("create_item", guard="database" if by == "decorator" else None)
    serve(items=marked(Story().create))
    alias(**({} if by == "decorator" else {"RULES": rules}))
    with connections["other"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {TABLE} RENAME TO elsewhere")
    try:
        (found,) = check_guard(databases=["default", "other"])
        assert found.id == "weblock.W007"
    finally:
        with connections["other"].cursor() as cursor:
            cursor.execute(f"ALTER TABLE elsewhere RENAME TO {TABLE}")


def test_a_guard_of_the_alias_needs_exclusive_leases(serve: Any, alias: Any, caplog: Any) -> None:
    """A lock that is shared is refused at its request, with what to change, and commits nothing."""
    serve(items=lock("create_item", shared=True)(lambda request: created()))
    alias(GUARD="database")
    assert fetch("/items").status_code == 500
    assert "leave that out, or the guard" in caplog.text
    assert Item.objects.count() == 0


def test_the_settings_of_a_guard_serve_single_locks(serve: Any, alias: Any) -> None:
    """GUARD_DATABASES beside "GUARD": "lease" is about locks that have a guard of their own."""
    serve(items=lock("create_item", guard="database")(Story().create))
    alias(GUARD="lease", GUARD_DATABASES=["other"])
    assert not is_refused(fetch("/items"))
    assert elsewhere(lambda: fetch("/items").status_code) == 422
