"""Mistakes of a first day with FastAPI: each is refused where it stands, with what to write."""

import asyncio
from typing import Annotated

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Query
from fastapi.requests import HTTPConnection

from tests.support.http import client_of
from weblock import AsyncLease, AsyncLocks, ConfigurationError, Lease
from weblock.contrib.asgi import LockMiddleware, RequestLease, Rule
from weblock.contrib.fastapi import install, lock

from .wire import Exchange


async def nothing() -> None:
    """An endpoint."""


class Client:
    """Some client of a server, and no Locks."""


def route(**options):
    """An application with an endpoint."""
    FastAPI().post("/items", **options)(nothing)


async def annotated(lease: Annotated[AsyncLease, lock("a:{b}")]) -> None:
    """An endpoint that forgot ``Depends``."""


async def depends_lock(lease: Annotated[AsyncLease, Depends(lock)]) -> None:
    """An endpoint that names no key."""


@pytest.mark.parametrize(
    ("mistake", "remedy"),
    [
        (lambda: lock("a:{b}")(nothing), r"write @app.post\(.*\[Depends\(lock\('a:\{b\}'\)\)\]"),
        (lambda: route(dependencies=[lock("a:{b}")]), r"write Depends\(lock\('a:\{b\}'\)\)"),
        (
            lambda: FastAPI().post("/")(annotated),
            r"Annotated\[AsyncLease, Depends\(lock\('a:\{b\}'",
        ),
        (lambda: route(dependencies=[Depends(lock)]), r'write Depends\(lock\("create_item"\)\)'),
        (lambda: FastAPI().post("/")(depends_lock), r'write Depends\(lock\("create_item"\)\)'),
        (
            lambda: install(APIRouter(), "memory://"),
            r"given <.*APIRouter.*once, with the application",
        ),
        (lambda: install(FastAPI, "memory://"), "given <class .*once, with the application"),
        (lambda: install(FastAPI(), Client()), r"test_first_day\.Client .*from_client\(client\)"),
        (
            lambda: LockMiddleware(nothing, Client()),
            r"test_first_day\.Client .*from_client\(client\)",
        ),
    ],
    ids=[
        "decorator",
        "no Depends",
        "no Depends in Annotated",
        "no key",
        "no key in Annotated",
        "router",
        "class",
        "client",
        "client for rules",
    ],
)
def test_a_mistake_is_refused_with_its_remedy(mistake, remedy):
    """At once, where the application is written, and with the line to write instead."""
    with pytest.raises(TypeError, match=remedy):
        mistake()


def test_a_key_of_the_body_is_refused_with_its_remedy():
    """A template knows the URL and the headers; a function knows the rest."""
    with pytest.raises(ConfigurationError, match=r"\{body\.id\}.* a function that returns the key"):
        lock("item:{body.id}")
    with pytest.raises(ConfigurationError, match=r"\{body\.id\}.* a function that returns the key"):
        Rule("/items", key="item:{body.id}")


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
    """What its one endpoint answers."""
    install(app, locks)
    async with client_of(app, raises=True) as client:
        response = await client.post("/")
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.filterwarnings("error::RuntimeWarning")
class TestFaces:
    """The lease of a request has the face of whoever has it in hand."""

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

    async def test_an_async_endpoint_releases_early(self, locks):
        """What the endpoint gave back by itself was not lost, and its response says what it did."""
        app = FastAPI()

        @app.post("/")
        async def change(lease: Held) -> bool:
            await lease.release()
            return await locks.inspect("x") is None

        assert await answer(app, locks) is True

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
