"""``"GUARD": "database"``: no COMMIT of a holder that another has followed, whatever it believes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now
from psycopg import IsolationLevel

from weblock import ConfigurationError
from weblock.contrib.django import lock, locks
from weblock.contrib.django.checks import check_guard, check_settings
from weblock.contrib.django.models import Fence
from weblock.contrib.kit import sql
from weblock.contrib.kit.sql import TABLE

from .project.shop.models import Item
from .requests import fetch

TOP = Path(__file__).parents[3]

pytestmark = pytest.mark.django_db(
    transaction=True,
    databases=["default", "other"],
    available_apps=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "weblock.contrib.django",
        "tests.contrib.django.project.shop",
    ],
)

ISOLATION = [
    IsolationLevel.READ_COMMITTED,
    IsolationLevel.REPEATABLE_READ,
    IsolationLevel.SERIALIZABLE,
]
isolated = pytest.mark.parametrize("isolation", ISOLATION, ids=[each.name for each in ISOLATION])


@pytest.fixture
def guard(settings: Any, url: str) -> Callable[..., None]:
    """Has the engine of this test guarded by the database, or not."""

    def guard(kind: str = "database", **given: Any) -> None:
        there = {"URL": url, "WAIT": 0, "GUARD": kind, "GUARD_DATABASES": ["default", "other"]}
        settings.WEBLOCK = {"default": {**there, **given}}

    guard()
    return guard


def elsewhere(work: Callable[[], Any]) -> Any:
    def do() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()


class Story:
    """A holder that sleeps: its lease is given to another, which commits, and then it goes on."""

    def __init__(self, using: str = "default") -> None:
        self.items = Item.objects.using(using)
        self.followed = False

    def sleep(self) -> None:
        if self.followed:
            return
        self.followed = True
        assert locks["default"].force_release("create_item")
        assert elsewhere(lambda: fetch("/items").status_code) == 201

    def create(self, _request: Any = None) -> HttpResponse:
        full = self.items.count() >= 1
        self.sleep()
        if full:
            return HttpResponse(status=422)
        with transaction.atomic(using=self.items.db):
            self.items.create()
        return HttpResponse(status=201)


@isolated
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "lease only"])
def test_a_stale_holder_commits_nothing(
    isolation: IsolationLevel, guarded: bool, database: Any, serve: Any, guard: Any
) -> None:
    """With ATOMIC_REQUESTS a holder that was followed is refused at COMMIT; without the guard it is not."""
    database(ATOMIC_REQUESTS=True, OPTIONS={"isolation_level": isolation})
    story = Story()
    serve(items=lock("create_item")(story.create))
    guard("database" if guarded else "lease")
    response = fetch("/items")
    if guarded:
        assert (response.status_code, response.json()["code"]) == (503, "lease_lost")
    refused = guarded or isolation is IsolationLevel.SERIALIZABLE  # Which needs no guard, here.
    assert story.items.count() == (1 if refused else 2)


def in_own_transaction(story: Story) -> Callable[..., HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        with transaction.atomic(using=story.items.db):
            return story.create()

    return view


def in_savepoints(story: Story) -> Callable[..., HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        with transaction.atomic(using=story.items.db):
            with transaction.atomic(using=story.items.db):
                response = story.create()
            with transaction.atomic(using=story.items.db):
                story.items.filter(pk=0).delete()
                transaction.set_rollback(True, using=story.items.db)
            return response

    return view


def in_steps(story: Story) -> Callable[..., HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        with transaction.atomic(using=story.items.db):
            full = story.items.count() >= 1
        story.sleep()
        if full:
            return HttpResponse(status=422)
        with transaction.atomic(using=story.items.db):
            story.items.create()
        return HttpResponse(status=201)

    return view


def by_sql(story: Story) -> Callable[..., HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        using = connections[story.items.db]
        with transaction.atomic(using=using.alias), using.cursor() as cursor:
            cursor.execute(
                "CREATE OR REPLACE FUNCTION make_item() RETURNS void LANGUAGE sql"
                " AS 'INSERT INTO shop_item (name) VALUES ('''')'"
            )
        with transaction.atomic(using=using.alias):
            full = story.items.count() >= 1
            story.sleep()
            if not full:
                with using.cursor() as cursor:
                    cursor.execute("SELECT make_item()")
        return HttpResponse(status=422 if full else 201)

    return view


def by_copy(story: Story) -> Callable[..., HttpResponse]:
    """One that writes by COPY, which nothing sees: each COMMIT of ``atomic`` is checked."""

    def view(request: HttpRequest) -> HttpResponse:
        using = connections[story.items.db]
        with transaction.atomic(using=using.alias):
            full = story.items.count() >= 1
            story.sleep()
            if not full:
                with using.cursor() as cursor:
                    cursor.execute("SELECT 1")
                    with cursor.copy("COPY shop_item (name) FROM STDIN") as copy:
                        copy.write_row(["copied"])
        return HttpResponse(status=422 if full else 201)

    return view


def by_callproc(story: Story) -> Callable[..., HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        using = connections[story.items.db]
        with transaction.atomic(using=using.alias), using.cursor() as cursor:
            cursor.execute(
                "CREATE OR REPLACE FUNCTION make_item() RETURNS void LANGUAGE sql"
                " AS 'INSERT INTO shop_item (name) VALUES ('''')'"
            )
        with transaction.atomic(using=using.alias), using.cursor() as cursor:
            full = story.items.count() >= 1
            story.sleep()
            if not full:
                cursor.callproc("make_item")
        return HttpResponse(status=422 if full else 201)

    return view


WAYS = [
    in_own_transaction,
    in_savepoints,
    in_steps,
    by_sql,
    by_copy,
    by_callproc,
]


@pytest.mark.parametrize(
    ("way", "using"), [*((way, "default") for way in WAYS), (in_own_transaction, "other")]
)
def test_every_way_to_commit_is_checked(way: Any, using: str, serve: Any, guard: Any) -> None:
    """Each is refused once another has followed, on each database."""
    story = Story(using)
    serve(items=lock("create_item")(way(story)))
    guard()
    response = fetch("/items")
    assert (response.status_code, response.json()["code"]) == (503, "lease_lost")
    assert story.items.count() == 1


@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "decorator alone"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_serialization_error_of_a_stale_holder_is_503(  # noqa: PLR0917 - fixtures
    kind: str, middleware: bool, database: Any, serve: Any, guard: Any, settings: Any
) -> None:
    """The database itself refuses it at REPEATABLE READ: it is answered like any lost lease."""
    database(OPTIONS={"isolation_level": IsolationLevel.REPEATABLE_READ})
    if not middleware:
        settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if "weblock" not in each]
    item = Item.objects.create()

    def rename(request: HttpRequest) -> HttpResponse:
        with transaction.atomic():
            Item.objects.count()
            story.sleep()
            Item.objects.filter(pk=item.pk).update(name="renamed")
        return HttpResponse(status=201)

    async def arename(request: HttpRequest) -> HttpResponse:
        return await sync_to_async(rename)(request)

    story = Story()
    serve(items=lock("create_item")(rename if kind == "sync" else arename))
    guard()
    response = fetch("/items")
    assert (response.status_code, response.json()["code"]) == (503, "lease_lost")


def test_nobody_else_is_disturbed(serve: Any, guard: Any, database: Any) -> None:
    """One request after the other commits, on both databases, and on_commit hooks run."""
    database("default", ATOMIC_REQUESTS=True)
    hooks: list[str] = []

    @lock("create_item")
    def view(request: HttpRequest) -> HttpResponse:
        Item.objects.create()
        with transaction.atomic(using="other"):
            Item.objects.using("other").create()
        transaction.on_commit(lambda: hooks.append("done"))
        return HttpResponse(status=201)

    serve(items=view)
    guard()
    assert [fetch("/items").status_code for _ in range(3)] == [201] * 3
    assert len(hooks) == Item.objects.count() == Item.objects.using("other").count() == 3


def statements(using: str, work: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connections[using]) as queries:
        work()
    return [each["sql"] for each in queries]


def test_it_costs_two_short_statements(serve: Any, guard: Any, database: Any) -> None:
    """One when the lease is acquired, on each guarded database, and one before each COMMIT."""
    database(ATOMIC_REQUESTS=True)

    @lock("create_item")
    def view(request: HttpRequest) -> HttpResponse:
        Item.objects.count()
        return HttpResponse()

    serve(items=view)
    guard()
    sent = statements("default", lambda: fetch("/items"))
    assert [TABLE in sql for sql in sent] == [True, False, False, True, False]
    assert sent[1] == "BEGIN"
    assert sent[-2].endswith("FOR UPDATE")
    assert sent[-1] == "COMMIT"
    assert [TABLE in sql for sql in statements("other", lambda: fetch("/items"))] == [True]


def test_a_read_only_transaction_is_left_alone(serve: Any, guard: Any) -> None:
    """One that is declared so commits, also where a function might have written."""

    @lock("create_item")
    def view(request: HttpRequest) -> HttpResponse:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute("SELECT pg_backend_pid()")
            transaction.on_commit(lambda: hooks.append("done"))
        return HttpResponse()

    hooks: list[str] = []
    serve(items=view)
    guard()
    assert fetch("/items").status_code == 200
    assert hooks == ["done"]


def insert(cursor: Any) -> None:
    cursor.execute("INSERT INTO shop_item (name) VALUES ('')")


def by_orm() -> None:
    Item.objects.create()


def by_cursor() -> None:
    with connection.cursor() as cursor:
        insert(cursor)


def by_many() -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO shop_item (name) VALUES (%s)", [("a",), ("b",)])


def by_function() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify('weblock_test', '')")


def by_copied_connection() -> None:
    copy = connection.copy()
    try:
        with transaction.atomic(), copy.cursor() as cursor:
            insert(cursor)
    finally:
        copy.close()


AUTOCOMMIT = [by_orm, by_cursor, by_many, by_function, by_copied_connection]
autocommit = pytest.mark.parametrize("write", AUTOCOMMIT)


@autocommit
def test_a_write_outside_of_a_transaction_is_refused(write: Any, serve: Any, guard: Any) -> None:
    """It would commit unchecked: the error says what to use, and nothing is written."""
    serve(items=lock("create_item")(lambda request: write() or HttpResponse()))
    guard()
    refused = str(fetch("/items").exc_info[1])
    assert "put it into transaction.atomic(using='default')" in refused
    assert Item.objects.count() == 0
    guard("lease")
    assert fetch("/items").status_code == 200


def test_hooks_that_write_after_the_commit_all_run(serve: Any, guard: Any) -> None:
    """They run outside of a transaction, and the work is done: each write gets a transaction, and is checked."""
    hooks = []

    def view(request: HttpRequest) -> HttpResponse:
        with transaction.atomic():
            by_orm()
            for write in (by_orm, by_cursor, by_many):
                transaction.on_commit(write)
            transaction.on_commit(lambda: hooks.append("mail"))
        return HttpResponse(status=201)

    serve(items=lock("create_item")(view))
    guard()
    assert fetch("/items").status_code == 201
    assert (Item.objects.count(), hooks) == (5, ["mail"])


async def test_a_write_of_an_async_view_outside_of_a_transaction_is_refused(
    serve: Any, guard: Any
) -> None:
    """Also by the async ORM, in another thread than the loop's."""

    @lock("create_item")
    async def view(request: HttpRequest) -> HttpResponse:
        await Item.objects.acreate()
        return HttpResponse()

    serve(items=view)
    guard()
    with pytest.raises(ConfigurationError, match=r"put it into transaction\.atomic"):
        await AsyncClient().post("/items")
    assert await sync_to_async(Item.objects.count)() == 0
    await sync_to_async(connections.close_all)()


@pytest.mark.parametrize(
    "statement", ["COMMIT", "INSERT INTO shop_item (name) VALUES (''); COMMIT"]
)
def test_sql_that_commits_is_refused(statement: str, serve: Any, guard: Any) -> None:
    """A COMMIT as SQL says what to do instead, and commits nothing."""

    @lock("create_item")
    def view(request: HttpRequest) -> HttpResponse:
        with transaction.atomic(), connection.cursor() as cursor:
            Item.objects.create()
            cursor.execute(statement)
        return HttpResponse()

    serve(items=view)
    guard()
    assert "ends the transaction before" in str(fetch("/items").exc_info[1])
    assert Item.objects.count() == 0


def test_a_holder_stopped_before_its_commit_is_waited_for(serve: Any, guard: Any) -> None:
    """While it has the row, the next one waits for GUARD_WAIT, and is told; then the first commits."""
    followers: list[Any] = []

    def stopped() -> None:
        """What sends COMMIT, after the check."""
        del first._commit
        assert locks["default"].force_release("create_item")
        followers.append(elsewhere(lambda: fetch("/items")))
        first._commit()

    @lock("create_item")
    def view(request: HttpRequest) -> HttpResponse:
        with transaction.atomic():
            Item.objects.create()
        return HttpResponse(status=201)

    first = connections["default"]
    first._commit = stopped  # type: ignore[method-assign]
    serve(items=view)
    guard(GUARD_WAIT=0.1)
    assert fetch("/items").status_code == 201
    (refused,) = followers
    assert (refused.status_code, refused.json()["code"]) == (409, "lock_timeout")
    assert Item.objects.count() == 1


def test_an_engine_that_was_set_back_is_noticed(serve: Any, guard: Any, caplog: Any) -> None:
    """Its fences are below the database's; that is said, work goes on, and the stale are still refused."""
    story = Story()
    story.followed = True
    serve(items=lock("create_item")(story.create))
    guard()
    assert elsewhere(lambda: fetch("/items").status_code) == 201
    Fence.objects.update(fence=2**60, token="of another")
    story.items.all().delete()
    story.followed = False
    assert fetch("/items").status_code == 503
    assert story.items.count() == 1
    assert "the engine lost its data" in caplog.text
    assert Fence.objects.get().fence > 2**60


def test_rows_that_nobody_uses_are_deleted(
    serve: Any, guard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of yesterday go now and then; that of a key in use stays."""
    monkeypatch.setattr(sql, "SWEEPS", 1.0)
    Fence.objects.create(
        digest="old", lock_key="old", fence=1, token="", raised_at=now() - timedelta(days=2)
    )
    serve(items=lock("create_item")(Story().create))
    guard()
    fetch("/items")
    assert [fence.lock_key for fence in Fence.objects.all()] == ["default:create_item"]


def test_a_missing_table_says_what_to_do(serve: Any, guard: Any) -> None:
    """The error names the database and the command; manage.py check --database says it before."""
    serve(items=lock("create_item")(Story("other").create))
    guard()
    with connections["other"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {TABLE} RENAME TO elsewhere")
    try:
        assert "migrate weblock --database=other" in str(fetch("/items").exc_info[1])
        (found,) = check_guard(databases=["default", "other"])
        assert (found.id, "'other'" in found.msg) == ("weblock.W007", True)
    finally:
        with connections["other"].cursor() as cursor:
            cursor.execute(f"ALTER TABLE elsewhere RENAME TO {TABLE}")
    assert check_guard(databases=["default", "other"]) == []


def test_without_autocommit_it_says_so(serve: Any, guard: Any, database: Any) -> None:
    """A database without AUTOCOMMIT cannot commit the fence by itself."""
    database(AUTOCOMMIT=False)
    serve(items=lock("create_item")(Story().create))
    guard()
    assert "has AUTOCOMMIT off" in str(fetch("/items").exc_info[1])
    connection.close()


def test_two_engines_must_not_share_rows(settings: Any) -> None:
    """Two aliases with one namespace and different engines would mix their fences: a check says so."""
    one = {"URL": "memory://one", "GUARD": "database"}
    settings.WEBLOCK = {"default": one, "b": {**one, "URL": "memory://two"}}
    assert "weblock.E007" in [each.id for each in check_settings()]
    settings.WEBLOCK["b"]["NAMESPACE"] = "b"
    with override_settings(WEBLOCK={**settings.WEBLOCK}):
        assert "weblock.E007" not in [each.id for each in check_settings()]


def outcomes(vendor: str, where: str) -> list[str]:
    command = [sys.executable, "-m", f"{__package__}.stale_elsewhere", vendor, where]
    ran = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.skipif(
    not os.environ.get("WEBLOCK_LONG"), reason="it starts a MariaDB: WEBLOCK_LONG=1"
)
def test_mariadb_refuses_too() -> None:
    """On MariaDB, at its own isolation level, in one transaction and in steps."""
    from tests.servers.mariadb import MariaDB

    with MariaDB() as server:
        found = outcomes("mysql", str(server.port))
    assert found[:2] == ["atomic: 503 [201] stale 0", "steps: 503 [201] stale 0"]
    for each in found[2:]:
        assert "ends the transaction before" in each
        assert each.endswith("items 0")
    assert len(found) == 4
