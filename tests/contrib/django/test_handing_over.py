"""Views that hand their lease over to a worker, in and after a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from weblock.contrib.django import lock, locks
from weblock.contrib.django.models import Fence

from .project.shop.models import Item
from .requests import fetch
from .test_guard import elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def posted(serve: Any) -> Callable[[Callable[..., None]], tuple[int, list[str]]]:
    def post(view: Callable[..., None]) -> tuple[int, list[str]]:
        tokens: list[str] = []

        @lock("create_item", wait=0)
        def enqueue(request: HttpRequest) -> HttpResponse:
            view(lambda: tokens.append(request.weblock.hand_over(ttl=60)))  # type: ignore[attr-defined]
            return HttpResponse(status=202)

        serve(items=enqueue)
        return fetch("/items").status_code, tokens

    return post


def work_off(token: str) -> None:
    """What a worker does; until then, nobody else gets the key."""
    assert locks["default"].try_acquire("create_item") is None
    locks["default"].take_over(token).release()
    assert locks["default"].inspect("create_item") is None


def after_own_transaction(hand_over: Callable[[], None]) -> None:
    with transaction.atomic():
        Item.objects.create()
    hand_over()


def at_the_commit(hand_over: Callable[[], None]) -> None:
    Item.objects.create()
    transaction.on_commit(hand_over)


def before_the_commit(hand_over: Callable[[], None]) -> None:
    Item.objects.create()
    hand_over()


@pytest.mark.parametrize(
    ("view", "atomic"), [(after_own_transaction, False), (at_the_commit, True)]
)
def test_a_view_hands_over_after_its_commit(
    database: Any, posted: Any, view: Callable[..., None], *, atomic: bool
) -> None:
    """The response is the view's, its work is committed, and the worker has the lease."""
    database(ATOMIC_REQUESTS=atomic)
    status, tokens = posted(view)
    assert status == 202
    assert Item.objects.count() == 1
    work_off(*tokens)


def test_what_was_handed_over_before_the_commit_is_rolled_back(database: Any, posted: Any) -> None:
    """Nothing is committed that the worker does not see, and the response says that it failed."""
    database(ATOMIC_REQUESTS=True)
    status, tokens = posted(before_the_commit)
    assert status == 503
    assert Item.objects.count() == 0
    work_off(*tokens)


@pytest.mark.parametrize("then", ["reads", "writes"])
def test_a_guarded_view_takes_the_place_of_no_worker(
    then: str, *, posted: Any, settings: Any, url: str
) -> None:
    """What it reads after the hand-over leaves the worker's fence alone, and what it writes is refused."""

    def view(hand_over: Callable[[], None]) -> None:
        hand_over()
        elsewhere(lambda: Fence.objects.update(token="of the worker"))
        if then == "reads":
            Item.objects.count()
        else:
            with transaction.atomic():
                Item.objects.create()

    there = {"URL": url, "GUARD": "database", "GUARD_DATABASES": ["default"]}
    settings.WEBLOCK = {"default": there}
    status, tokens = posted(view)
    assert status == (202 if then == "reads" else 503)
    assert (Item.objects.count(), Fence.objects.get().token) == (0, "of the worker")
    work_off(*tokens)
