"""``hold_until_commit``: locks that model code acquires, and that end with its transaction."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.views.decorators.csrf import csrf_exempt

from tests.support.busy import busy
from weblock import AlreadyHeld, ConfigurationError, Lease, LeaseLost, LockTimeout
from weblock.contrib.django import hold_until_commit, lock, locks
from weblock.contrib.django.database import LOCKED_READS, UntilEnd, until_end

from .project.replica import REPLICA
from .project.shop.models import Item
from .requests import fetch

DATABASES = ["lite", "default"]

on_databases = pytest.mark.django_db(transaction=True, databases=DATABASES)
each_database = pytest.mark.parametrize("using", DATABASES)


@pytest.fixture(autouse=True)
def project(serve: Any, settings: Any) -> None:
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]


def held() -> list[str]:
    return [each.key for each in locks["default"].list()]


@on_databases
@each_database
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_key_is_held_until_its_transaction_ends(ends: str, using: str, caplog: Any) -> None:
    """By COMMIT or ROLLBACK, whatever acquires it again, inside savepoints too; and no log warns of it."""
    with transaction.atomic(using):
        with transaction.atomic(using):
            hold_until_commit("b", "a", using=using)
        with transaction.atomic(using):
            hold_until_commit("a", using=using)
        hold_until_commit("b", using=using)
        assert held() == ["a", "b"]
        assert locks["default"].try_acquire("a") is None
        transaction.set_rollback(ends == "rollback", using=using)
        transaction.on_commit(lambda: hooks.append(held()), using=using)
        hooks: list[list[str]] = []
    assert held() == []
    assert hooks == ([[]] if ends == "commit" else [])
    assert "inside a transaction" not in caplog.text


@on_databases
@each_database
def test_a_savepoint_gives_up_what_it_acquired(using: str) -> None:
    """What was acquired inside a savepoint is released when that is rolled back, and nothing else."""
    with transaction.atomic(using):
        hold_until_commit("outer", using=using)
        with suppress(ZeroDivisionError), transaction.atomic(using):
            hold_until_commit("inner", "outer", using=using)
            raise ZeroDivisionError
        assert held() == ["outer"]
        hold_until_commit("inner", using=using)
        assert held() == ["inner", "outer"]
    assert held() == []


@on_databases
@each_database
def test_a_connection_that_breaks_holds_nothing(using: str) -> None:
    """A transaction whose connection was closed is over."""
    with suppress(ZeroDivisionError), transaction.atomic(using):
        hold_until_commit("a", using=using)
        connections[using].close()
        raise ZeroDivisionError
    assert held() == []


class Stopped(BaseException):
    """What a signal handler raises."""


@on_databases
@each_database
@pytest.mark.parametrize("ends", ["rollback", "savepoint", "close"])
def test_whoever_rolls_back_releases(
    ends: str, using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is raised during the release arrives there, and it does not matter who refers to the lease."""

    def stop(lease: Lease) -> None:
        release(lease)
        raise Stopped

    release = Lease.release
    monkeypatch.setattr(Lease, "release", stop)
    mine: list[UntilEnd] = []

    @transaction.atomic(using)
    @transaction.atomic(using, savepoint=ends == "savepoint")
    def fail() -> None:
        hold_until_commit("a", using=using)
        mine.extend(until_end(connections[using]))
        if ends == "close":
            connections[using].close()
        raise ZeroDivisionError

    with pytest.raises(Stopped):
        fail()
    assert mine
    assert held() == []


@on_databases
@each_database
@pytest.mark.parametrize("trap", ["", "COMMIT as SQL", "opened before weblock was imported"])
def test_a_lost_lease_rolls_back(trap: str, using: str) -> None:
    """What was written under a lease that was taken away is not committed, outside of requests too."""
    if "opened" in trap:
        connections[using].ensure_connection()
        connections[using].execute_wrappers.clear()
        del connections[using].commit  # The class has its own.

    @transaction.atomic(using)
    def write() -> None:
        hold_until_commit("a", using=using)
        Item.objects.using(using).create()
        assert locks["default"].force_release("a")
        (mine,) = until_end(connections[using])
        with suppress(LeaseLost):  # As a renewal would, it learns of the loss.
            mine.lease.extend(1)
        if "SQL" in trap:
            with connections[using].cursor() as cursor:
                cursor.execute("COMMIT")

    with pytest.raises(LeaseLost):
        write()
    assert Item.objects.using(using).count() == 0
    with transaction.atomic(using):
        hold_until_commit("a", using=using)
    assert held() == []


@on_databases
def test_a_request_does_not_wait_for_itself(serve: Any, database: Any) -> None:
    """With ATOMIC_REQUESTS, model code names keys that the view has locked, or others, and all end after COMMIT."""
    seen: list[list[str]] = []

    @lock("view")
    def view(request: HttpRequest) -> HttpResponse:
        hold_until_commit("view", "model")
        seen.append(held())
        transaction.on_commit(lambda: seen.append(held()))
        return HttpResponse(status=201)

    serve(items=view)
    database(ATOMIC_REQUESTS=True)
    assert fetch("/items").status_code == 201
    assert seen == [["model", "view"], ["view"]]
    assert held() == []


@on_databases
def test_a_shared_lock_of_the_view_is_not_enough(serve: Any, database: Any) -> None:
    """What the request holds with others is no exclusive lock, and cannot become one."""

    @lock("a", shared=True)
    def view(request: HttpRequest) -> HttpResponse:
        with pytest.raises(AlreadyHeld):
            hold_until_commit("a")
        return HttpResponse(status=201)

    serve(items=view)
    database(ATOMIC_REQUESTS=True)
    assert fetch("/items").status_code == 201


@on_databases
def test_a_busy_key_is_a_conflict(serve: Any, database: Any) -> None:
    """A request whose model code finds a key busy is rolled back and answered with 409."""

    def view(request: HttpRequest) -> HttpResponse:
        Item.objects.create()
        hold_until_commit("a", wait=0)
        return HttpResponse(status=201)

    serve(items=view)
    database(ATOMIC_REQUESTS=True)
    begun, done = threading.Event(), threading.Event()

    def other() -> None:
        with transaction.atomic("lite"):
            hold_until_commit("a", using="lite")
            begun.set()
            done.wait(60)
        connections["lite"].connection.close()  # Django leaves a database in memory open.
        connections.close_all()

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(60)
    response = fetch("/items")
    done.set()
    thread.join()
    assert (response.status_code, response.json()["code"]) == (409, "lock_timeout")
    assert Item.objects.count() == 0


@on_databases
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_comes_too_early(level: str) -> None:
    """A transaction that does not see what the last holder has committed cannot acquire."""
    with transaction.atomic():
        with connections["default"].cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        with pytest.raises(ConfigurationError, match=level.lower()):
            hold_until_commit("a")
    assert held() == []


@on_databases
def test_without_a_transaction_nothing_would_end_it(settings: Any) -> None:
    """Autocommit on or off, another database and an alias with GUARD are refused, with the remedy."""
    with pytest.raises(ConfigurationError, match=r"transaction\.atomic\(using='default'\)"):
        hold_until_commit("a")
    with transaction.atomic("lite"), pytest.raises(ConfigurationError, match="with using="):
        hold_until_commit("a")
    transaction.set_autocommit(False)
    with transaction.atomic(), pytest.raises(ConfigurationError, match="Leave AUTOCOMMIT on"):
        hold_until_commit("a")
    transaction.rollback()
    transaction.set_autocommit(True)
    settings.WEBLOCK["guarded"] = {"URL": "memory://guarded", "GUARD": "database"}
    with transaction.atomic(), pytest.raises(ConfigurationError, match="GUARD"):
        hold_until_commit("a", alias="guarded")


@pytest.mark.django_db
def test_in_a_test_case_it_ends_with_the_test() -> None:
    """The transaction of a ``TestCase`` is none of the code's: a block inside it is, and may lock again."""
    with pytest.raises(ConfigurationError, match="has none here"):
        hold_until_commit("a")
    for _ in range(2):
        with transaction.atomic():
            hold_until_commit("a")


@on_databases
def test_it_reads_what_is_written(settings: Any) -> None:
    """After it, ``LockedReads`` sends reads to the database that is written, until the transaction ends."""
    settings.DATABASE_ROUTERS = [LOCKED_READS, REPLICA]
    with transaction.atomic():
        assert Item.objects.all().db == "other"
        hold_until_commit("a")
        assert Item.objects.all().db == "default"
    assert Item.objects.all().db == "other"


def resolve() -> str:
    """Locks as a resolver of a mutation does."""
    with transaction.atomic():
        hold_until_commit("a", wait=0)
        Item.objects.create()
        assert locks["default"].force_release("a")
        (mine,) = until_end(connections["default"])
        with suppress(LeaseLost):
            mine.lease.extend(1)
    return "created"


def caught(request: HttpRequest) -> HttpResponse:
    """A view that catches what its resolver raises, as GraphQL servers do."""
    try:
        return JsonResponse({"data": resolve()})
    except (LockTimeout, LeaseLost) as error:
        return JsonResponse({"errors": [{"message": str(error)}]})


def by_strawberry() -> Any:
    """The view of a Strawberry schema."""
    strawberry = pytest.importorskip("strawberry", reason="Strawberry is not installed here")
    views = pytest.importorskip("strawberry.django.views")

    def ping() -> str:
        return "pong"

    query = type("Query", (), {"ping": strawberry.field(resolver=ping)})
    mutation = type("Mutation", (), {"create": strawberry.mutation(resolver=resolve)})
    schema = strawberry.Schema(strawberry.type(query), strawberry.type(mutation))
    return views.GraphQLView.as_view(schema=schema)


def by_graphene() -> Any:
    """The view of a Graphene schema."""
    views = pytest.importorskip("graphene_django.views", reason="Graphene is not installed here")
    graphene = pytest.importorskip("graphene")
    query = type("Query", (graphene.ObjectType,), {"ping": graphene.String()})
    fields = {"create": graphene.String(), "resolve_create": lambda *_: resolve()}
    mutation = type("Mutation", (graphene.ObjectType,), fields)
    return views.GraphQLView.as_view(schema=graphene.Schema(query=query, mutation=mutation))


@on_databases
@pytest.mark.parametrize("server", [lambda: caught, by_strawberry, by_graphene])
@pytest.mark.parametrize("trouble", ["busy", "lost"])
@pytest.mark.parametrize("atomic", [False, True])
def test_a_server_that_catches_what_resolvers_raise(
    atomic: bool, trouble: str, server: Any, serve: Any, database: Any
) -> None:
    """As GraphQL's do: nothing is committed without the lock, and a loss after the resolver is a 503."""
    serve(items=csrf_exempt(server()))
    database(ATOMIC_REQUESTS=atomic)
    with busy(locks["default"], "a" if trouble == "busy" else "b", "another"):
        client = Client(raise_request_exception=False)
        query = {"query": "mutation { create }"}
        response = client.post("/items", query, content_type="application/json")
    lost_later = atomic and trouble == "lost"
    assert response.status_code == (503 if lost_later else 200)
    assert lost_later or len(response.json()["errors"]) == 1
    assert "another" not in response.content.decode()
    assert Item.objects.count() == 0
