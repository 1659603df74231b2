"""What a project's own tests are given: locks in memory, and assert_serialized."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import (
    AsyncClient,
    Client,
    SimpleTestCase,
    TestCase,
    TransactionTestCase,
    override_settings,
)
from django.views import View

from tests.support.waiting import PATIENCE
from weblock import ConfigurationError
from weblock.contrib.django import lock, locks
from weblock.contrib.django.testing import (
    assert_serialized,
    assert_serialized_async,
    memory_locks,
    views,
)

from .project.shop.models import Item
from .requests import urls

BUSY = pytest.mark.django_db(transaction=True)


def create(request: HttpRequest) -> HttpResponse:
    Item.objects.create()
    return HttpResponse(status=201)


def create_what_is_named(request: HttpRequest) -> HttpResponse:
    return create(request)


async def create_async(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse(status=201)


class Create(View):
    """Makes an item."""

    @lock("create_item")
    def post(self, request: HttpRequest) -> HttpResponse:
        return create(request)


def post() -> Any:
    return Client().post("/items")


@BUSY
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("view", [lock("create_item")(create), Create.as_view()])
def test_a_locked_view_passes(view: Any, atomic: bool, serve: Any, database: Any) -> None:
    """A view that @lock serializes passes, and what the clients got is returned."""
    database(ATOMIC_REQUESTS=atomic)
    serve(items=view)
    answers = assert_serialized(post, times=3)
    assert [each.status_code for each in answers] == [201] * 3
    assert Item.objects.count() == 3


@BUSY
def test_an_unlocked_view_fails(serve: Any) -> None:
    """A view without @lock fails, with a report of the requests that overlapped."""
    serve(items=create)
    with pytest.raises(
        AssertionError, match=r"(?s)not serialized.*overlapping: 1 with 2.*status 201"
    ):
        assert_serialized(post, pause=10)


@BUSY
def test_a_release_before_commit_fails(serve: Any, database: Any) -> None:
    """What releases when the view returns, and so before the COMMIT, is found out."""
    database(ATOMIC_REQUESTS=True)

    def too_early(request: HttpRequest) -> HttpResponse:
        with locks["default"].hold("create_item", wait=PATIENCE):
            return create(request)

    serve(items=too_early)
    with pytest.raises(AssertionError, match="not serialized"):
        assert_serialized(post, pause=10)


@BUSY
def test_only_named_views_count(serve: Any) -> None:
    """Views that may overlap are left out, by naming those that may not."""
    serve(items=lock("create_item")(create), free=create)

    def ask_for_both() -> None:
        Client().post("/free")
        post()

    assert_serialized(ask_for_both, inside=views("items"), times=2)
    with pytest.raises(AssertionError, match="not serialized"):
        assert_serialized(ask_for_both, pause=10)


async def post_async() -> Any:
    return await AsyncClient().post("/items")


async def test_the_async_client(serve: Any) -> None:
    """Async views are tried with the async client; others cannot overlap there, which is said."""
    serve(items=lock("create_item")(create_async))
    answers = await assert_serialized_async(post_async, times=3)
    assert [each.status_code for each in answers] == [201] * 3
    serve(items=create_async)
    with pytest.raises(AssertionError, match="not serialized"):
        await assert_serialized_async(post_async, pause=10)
    serve(items=lambda request: HttpResponse())
    with pytest.raises(AssertionError, match="all calls ran in one thread"):
        await assert_serialized_async(post_async, times=2)


def held_inside(request: HttpRequest) -> HttpResponse:
    with locks["default"].hold("create_item"):
        return create_what_is_named(request)


@BUSY
@pytest.mark.parametrize("middleware", [True, False])
def test_a_view_that_waits_inside_is_found_out(middleware: bool, serve: Any, settings: Any) -> None:
    """A view that takes its lock itself cannot be watched from outside: the error says to name what it runs."""
    if middleware:
        serve(items=held_inside)
    else:
        settings.MIDDLEWARE = []
        serve(items=lock("create_item")(create_what_is_named))
    with pytest.raises(AssertionError, match="not serialized") as failed:
        assert_serialized(post, times=2, pause=10)
    assert "inside='shop.orders.make_item'" in failed.value.__notes__[0]
    assert_serialized(post, times=2, inside=f"{__name__}.create")


@pytest.mark.django_db
def test_a_transaction_of_the_test_is_refused(serve: Any) -> None:
    """In the transaction of a TestCase nothing can be proven, and the error says what to use."""
    serve(items=create)
    with pytest.raises(ConfigurationError, match=r"django_db\(transaction=True\)"):
        assert_serialized(post)


@override_settings(
    WEBLOCK={
        "default": {"URL": "redis://far", "REQUIRE_SCOPE": "cluster", "WAIT": 0},
        "same": {"URL": "redis://far"},
        "other": {"URL": "redis://near"},
    }
)
def test_engines_are_replaced_and_options_stay() -> None:
    """Each engine has one in memory instead: shared by those who shared it, and new each time."""
    with memory_locks():
        default, same, other = (locks[alias] for alias in ("default", "same", "other"))
        assert default.engine == same.engine != other.engine
        assert default.scope == other.scope == "process"
        with default.hold("key"), pytest.raises(TimeoutError, match="wait=0"):
            in_another_thread(default)
        before = default.engine
    with memory_locks():
        assert locks["default"].engine != before


def test_engines_end_with_their_use() -> None:
    """Of a run of many tests, with the settings of each, no engine's thread is left."""
    before = keepers()
    with memory_locks():
        for _ in range(3):
            with override_settings(WEBLOCK=None), memory_locks(), locks["default"].hold("key"):
                assert keepers() - before
        with locks["default"].hold("key") as lease:
            assert lease.held
    assert keepers() <= before


def keepers() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "weblock-keeper"}


def in_another_thread(default: Any) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(default.acquire, "key").result()


def test_the_fixture_of_the_plugin(settings: Any, request: pytest.FixtureRequest) -> None:
    """The fixture is found by pytest itself, and puts the memory engine in.

    It ends before the settings that it has replaced: the later fixture ends first.
    """
    settings.WEBLOCK = {"default": {"URL": "redis://far"}}
    request.getfixturevalue("weblock_memory")
    assert locks["default"].engine.startswith("memory://")


@memory_locks()
class InOneTransaction(TestCase):
    """Locks under the transaction of a TestCase."""

    def test_views_are_served(self) -> None:
        """A locked view is served, though the test's own transaction has begun before."""
        with self.settings(ROOT_URLCONF=_urls()):
            assert self.client.post("/items").status_code == 201
        assert Item.objects.count() == 1

    async def test_async_views_are_served(self) -> None:
        """The same with the async client."""
        with self.settings(ROOT_URLCONF=_urls()):
            assert (await self.async_client.post("/async")).status_code == 201

    def test_a_busy_view_says_so(self) -> None:
        """A view whose key is taken answers 409."""
        with self.settings(ROOT_URLCONF=_urls(wait=0)), locks["default"].hold("create_item"):
            assert self.client.post("/items").status_code == 409


@memory_locks()
class InTransactionsOfItsOwn(TransactionTestCase):
    """Locks under a TransactionTestCase."""

    def test_views_are_serialized(self) -> None:
        """The views of a TransactionTestCase can be proven to be serialized."""
        with self.settings(ROOT_URLCONF=_urls()):
            assert_serialized(post, times=3)
        assert Item.objects.count() == 3

    def test_the_rest_of_the_transaction_is_seen(self) -> None:
        """A function that is named is watched, where it commits by itself."""
        with self.settings(ROOT_URLCONF=_urls()):
            assert_serialized(post, times=2, inside=f"{__name__}.make_item")


class WithoutDatabase(SimpleTestCase):
    """Locks where there is no database."""

    @memory_locks()
    def test_views_are_served(self) -> None:
        """A locked view that needs no database is served."""
        with self.settings(ROOT_URLCONF=_urls()):
            assert self.client.post("/async").status_code == 201


def make_item() -> None:
    with transaction.atomic():
        Item.objects.create()


def _urls(**options: Any) -> Any:
    @lock("create_item", **options)
    def items(request: HttpRequest) -> HttpResponse:
        make_item()
        return HttpResponse(status=201)

    return urls(**{"items": items, "async": lock("create_item", **options)(create_async)})
