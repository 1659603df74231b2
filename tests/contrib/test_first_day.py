"""Mistakes of a first day with FastAPI: each is refused where it stands, with what to write."""

import asyncio
import copy
from functools import partial
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Query, params
from fastapi.requests import HTTPConnection
from flask import Flask
from pydantic import BaseModel

from tests.support.http import client_of
from weblock import AsyncLease, AsyncLocks, ConfigurationError, Lease, Locks
from weblock.contrib import celery, flask, wsgi
from weblock.contrib.asgi import LockMiddleware, RequestLease
from weblock.contrib.fastapi import LockDependency, guarded, install, lock
from weblock.contrib.litestar import LockedLitestar
from weblock.contrib.status import StatusPage

from .wire import Exchange


async def nothing() -> None:
    """An endpoint."""


class Client:
    """Some client of a server, and no Locks."""


def route(**options):
    FastAPI().post("/items", **options)(nothing)


async def depends_lock(lease: Annotated[AsyncLease, Depends(lock)]) -> None:
    """An endpoint that names no key."""


@pytest.mark.parametrize(
    ("mistake", "remedy"),
    [
        (lambda: lock("a:{b}")(nothing), "takes 1 positional argument but 2 were given"),
        (lambda: route(dependencies=[Depends(lock)]), r'write Depends\(lock\("create_item"\)\)'),
        (lambda: FastAPI().post("/")(depends_lock), r'write Depends\(lock\("create_item"\)\)'),
        (
            lambda: install(APIRouter(), "memory://"),
            r"given <.*APIRouter.*once, with the application",
        ),
        (lambda: install("redis://:secret@host"), "given 'redis://host': call it once, with the"),
        (lambda: install(FastAPI, "memory://"), "given <class .*once, with the application"),
        (lambda: install(FastAPI(), url="redis://h"), r"no option 'url': .*\(app, \"redis://"),
        (lambda: LockMiddleware(nothing, url="redis://h"), r"no option 'url': .*\(app, \"redis://"),
        *(
            (partial(adapter, *app, engine="memory://"), r"no option 'engine': .*locks=")
            for adapter, *app in (
                (install, FastAPI()),
                (LockMiddleware, nothing),
                (wsgi.LockMiddleware, nothing),
                (flask.WebLock, Flask(__name__)),
                (celery.WebLock,),
                (LockedLitestar,),
            )
        ),
        (lambda: install(FastAPI(), Client()), r"test_first_day\.Client .*from_client\(client\)"),
        (
            lambda: LockMiddleware(nothing, Client()),
            r"test_first_day\.Client .*from_client\(client\)",
        ),
    ],
    ids=[
        "decorator",
        "no key",
        "no key in Annotated",
        "router",
        "URL",
        "class",
        "url=",
        "url= in middleware",
        *(
            f"engine= in {each}"
            for each in ("install", "middleware", "WSGI", "Flask", "Celery", "Litestar")
        ),
        "client",
        "client for rules",
    ],
)
def test_a_mistake_is_refused_with_its_remedy(mistake, remedy):
    """At once, where the application is written, and with the line to write instead."""
    with pytest.raises(TypeError, match=remedy):
        mistake()


@pytest.mark.parametrize(
    ("mistake", "remedy"),
    [
        (lambda: guarded("item:7"), r"session first, and was given 'item:7': write guarded\(get_s"),
        (lambda: guarded(lock("x"), nothing), r"session first, and was given lock\('x'\)"),
        (lambda: guarded(Depends(nothing), lock("x")), "session first, .*without Depends"),
        (lambda: guarded(Client(), lock("x")), "session first, .*not called"),
        (
            lambda: guarded(nothing, "item:7"),
            r"after .* given 'item:7': write guarded\(get_session",
        ),
        (lambda: guarded(nothing, lock), "after the dependency .* given <function lock"),
        (lambda: guarded(nothing, Depends(lock("x"))), "after .*without Depends around the lock"),
        (lambda: guarded(nothing), r"no lock: write guarded\(get_session, lock"),
    ],
    ids=[
        "key alone",
        "swapped",
        "Depends",
        "session",
        "key",
        "no key",
        "Depends of a lock",
        "no lock",
    ],
)
def test_a_guard_of_other_things_is_refused_with_its_remedy(mistake, remedy):
    """The error names what was given, and what belongs there."""
    with pytest.raises(TypeError, match=remedy):
        mistake()


@pytest.mark.parametrize(
    "make",
    [
        lambda url: install(FastAPI(), url),
        lambda url: LockMiddleware(nothing, url),
        lambda url: wsgi.LockMiddleware(nothing, url),
        lambda url: flask.WebLock(Flask("shop"), url),
        lambda url: StatusPage(url, insecure=True),
    ],
    ids=["FastAPI", "ASGI", "WSGI", "Flask", "status"],
)
def test_a_variable_that_is_not_set_is_no_url(make):
    """``os.environ.get`` of a missing variable is refused, and is not the engine of one machine."""
    with pytest.raises(ConfigurationError, match="URL is None: name an engine"):
        make(None)


@pytest.mark.parametrize("place", ["default", "Annotated", "Any", "dependency", "route", "later"])
async def test_a_forgotten_depends_locks_all_the_same(url, locks, place):
    """Nothing runs without its lock, also where FastAPI would take a lock for the default of a parameter."""
    app = FastAPI()
    own = install(app, url, wait=0)

    def default(lease=lock("x")) -> str:  # noqa: B008 - the mistake
        return lease.key

    def annotated(lease: Annotated[AsyncLease, lock("x")]) -> str:
        return lease.key

    def of_any(lease: Annotated[Any, lock("x")]) -> str:
        return lease.key

    def dependency(key: Annotated[str, Depends(default)]) -> str:
        return key

    endpoints = {"default": default, "Annotated": annotated, "Any": of_any}
    if place == "route":
        app.post("/", dependencies=[lock("x")])(lambda: "x")
    elif place != "later":
        app.post("/")(endpoints.get(place, dependency))
    async with client_of(app, raises=True) as client:
        if place == "later":
            assert (await client.get("/docs")).status_code == 200
            app.post("/")(default)
        assert (await client.post("/", params={"lease": "7"})).json() == "x"
        async with locks.hold("x"):
            assert (await client.post("/")).status_code == 409
    await own.close()


def test_equal_locks_are_one():
    """So ``dependency_overrides`` finds a lock, and a copy of an application has the same locks."""
    assert lock("x", ttl=5, wait=1) == lock("x", wait=1, ttl=5)
    assert hash(lock("x", ttl=5, wait=1)) == hash(lock("x", wait=1, ttl=5))
    assert lock("x") not in (lock("x", wait=0), lock("y"), lock("x", on_lost="continue"))
    assert copy.deepcopy([lock("x")]) == [lock("x")]


def test_code_that_follows_dependencies_comes_to_an_end():
    """As Cadwyn does: it goes from each ``Depends`` to what that calls, and puts a copy in its place."""
    declared = lock("x", wait=0)
    called = declared.dependency
    assert isinstance(called, LockDependency)
    assert not isinstance(called, params.Depends)
    assert (called, hash(called)) == (declared, hash(declared))
    other = copy.copy(declared)
    object.__setattr__(other, "dependency", lock("y"))
    assert (other, other.dependency) == (declared, lock("y"))


def test_a_model_may_have_a_lease():
    """A Pydantic model that allows any type of Python's takes leases, as it takes other objects."""

    class Work(BaseModel, arbitrary_types_allowed=True):
        lease: Lease

    with Locks.from_url("memory://") as locks, locks.hold("x") as lease:
        assert Work(lease=lease).lease is lease


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("{query.year}", r"write \{query\.y\}"),
        ("{header.tenant}", r"write \{header\.x-tenant\}"),
        ("{query.y}:{header.x-tenant}:{query.else}", None),
    ],
)
async def test_a_name_that_requests_do_not_send_is_refused_at_the_start(key, remedy):
    """What the endpoint calls by a name of its own comes under its alias, and so it is in a key."""

    async def report(
        year: Annotated[int, Query(alias="y")], tenant: Annotated[str, Header(alias="X-Tenant")]
    ) -> None: ...

    app = FastAPI()
    install(app, "noop://")
    app.get("/report", dependencies=[Depends(lock(key))])(report)
    lifespan = Exchange(kind="lifespan")
    lifespan.says({"type": "lifespan.startup"})
    lifespan.says({"type": "lifespan.shutdown"})
    if remedy:
        with pytest.raises(ConfigurationError, match=remedy):
            await lifespan.served_by(app)
    else:
        await lifespan.served_by(app)


Held = Annotated[RequestLease, Depends(lock("x"))]


async def answer(app: FastAPI, locks: AsyncLocks) -> object:
    install(app, locks)
    async with client_of(app, raises=True) as client:
        response = await client.post("/")
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.filterwarnings("error::RuntimeWarning")
class TestApis:
    """The lease of a request has the API of whoever has it in hand."""

    async def test_in_a_def_endpoint_it_blocks(self, locks):
        """``lease.extend(10)`` extends, with nothing to await; and it is a ``Lease``, for annotations."""
        app = FastAPI()

        @app.post("/")
        def change(lease: Annotated[Lease, Depends(lock("x", ttl=30))]) -> bool:
            assert isinstance(lease, Lease)
            lease.extend(100)
            return lease.remaining() > 100

        assert await answer(app, locks) is True

    async def test_a_def_endpoint_releases_early(self, locks):
        """By the end of a block, too; then the key is free, and the request still succeeds."""
        app = FastAPI()

        @app.post("/")
        def change(lease: Held, connection: HTTPConnection) -> list[bool]:
            loop = connection.app.state.loop
            with lease as same:
                held = same.held
            found = asyncio.run_coroutine_threadsafe(locks.inspect("x"), loop).result()
            lease.release()
            return [held, found is None]

        app.state.loop = asyncio.get_running_loop()
        assert await answer(app, locks) == [True, True]

    async def test_dependencies_of_both_kinds_share_it(self, locks):
        """One awaits it on the loop, the other calls it in a thread, whatever the endpoint is."""
        app = FastAPI()

        async def on_the_loop(lease: Held) -> None:
            await lease.extend(100)
            with pytest.raises(TypeError, match="write async with"), lease:
                pytest.fail("nothing would release it")

        def in_a_thread(lease: Held) -> None:
            lease.extend(100)

        @app.post("/", dependencies=[Depends(on_the_loop), Depends(in_a_thread)])
        async def change(lease: Held) -> bool:
            return lease.remaining() > 150

        assert await answer(app, locks) is True

    @pytest.mark.parametrize("kind", ["def", "async def"])
    async def test_either_is_told_of_a_loss(self, locks, kind):
        """``on_lost`` calls in the loop or in another thread."""
        app, told = FastAPI(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def change(lease: Annotated[Lease, Depends(lock("x", on_lost="continue"))]) -> None:
            lease.on_lost(lambda: loop.call_soon_threadsafe(told.set))
            asyncio.run_coroutine_threadsafe(locks.force_release("x"), loop).result()
            with pytest.raises(Exception, match="lost"):
                lease.extend(1)

        async def change_on_loop(
            lease: Annotated[AsyncLease, Depends(lock("x", on_lost="continue"))],
        ) -> None:
            lease.on_lost(told.set)
            await locks.force_release("x")
            with pytest.raises(Exception, match="lost"):
                await lease.extend(1)

        app.post("/")(change if kind == "def" else change_on_loop)
        install(app, locks)
        async with client_of(app, raises=True) as client:
            assert (await client.post("/")).status_code == 503
        await asyncio.wait_for(told.wait(), 30)
