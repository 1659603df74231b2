"""Every place where a lock may stand, and what it says where it may not."""

import asyncio
from collections.abc import Callable
from typing import Annotated

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Security, WebSocket
from fastapi.security import SecurityScopes

from tests.support.aio import until_waited_for
from tests.support.http import client_of
from weblock import AsyncLease, AsyncLocks, ConfigurationError, Locks
from weblock.contrib.asgi import LockMiddleware, request_locks
from weblock.contrib.fastapi import install, lock

from .wire import Exchange


@pytest.mark.parametrize("add", [install, LockMiddleware])
def test_blocking_locks_are_refused(add: Callable[..., object]) -> None:
    """They would block the event loop; the message says what to give instead."""
    with (
        Locks.from_url("memory://blocking") as locks,
        pytest.raises(
            TypeError, match=r"a weblock\.sync\.Locks .* awaits its locks: .* AsyncLocks\.from_url"
        ),
    ):
        add(FastAPI(), locks)


Held = Annotated[AsyncLease, Depends(lock("x"))]


async def answer_while_held(app: FastAPI, locks: AsyncLocks, path: str) -> str:
    async with client_of(app, raises=True) as client:
        async with locks.hold("x"):
            request = asyncio.create_task(client.post(path))
            await until_waited_for(locks, "x")
            assert not request.done()
        answer = await request
    assert answer.status_code == 200, answer.text
    assert await locks.inspect("x") is None
    return answer.json()


def depends_def(lease: Held) -> str:
    return lease.key


async def depends_async(key: Annotated[str, Depends(depends_def)]) -> str:
    return key


class DependsClass:
    """A dependency whose parameters are those of its constructor."""

    def __init__(self, key: Annotated[str, Depends(depends_async)]) -> None:
        self.key = key


async def security(scopes: SecurityScopes, key: Annotated[str, Depends(depends_def)]) -> str:
    return f"{key} for {scopes.scope_str}"


class TestPlaces:
    @pytest.mark.parametrize("kind", ["def", "async def"])
    @pytest.mark.parametrize(
        "place", ["endpoint", "router", "include", "nested", "mounted", "mounted twice"]
    )
    async def test_declared_around_an_endpoint(self, locks, place, kind):
        """At the endpoint, its router, where that is included, and in applications in others."""
        one = [Depends(lock("x"))]
        app, sub, deeper = FastAPI(), FastAPI(), FastAPI()
        install(app, locks)
        router = APIRouter(dependencies=one if place == "router" else None)
        outer = APIRouter(dependencies=one if place == "nested" else None)

        def handler() -> str:
            return "done"

        async def async_handler() -> str:
            return "done"

        own = one if place in ("endpoint", "mounted", "mounted twice") else None
        target = {"mounted": sub, "mounted twice": deeper}.get(place, router)
        target.post("/items", dependencies=own)(handler if kind == "def" else async_handler)
        outer.include_router(router)
        app.include_router(outer, dependencies=one if place == "include" else None)
        sub.mount("/deeper", deeper)
        app.mount("/sub", sub)
        paths = {"mounted": "/sub/items", "mounted twice": "/sub/deeper/items"}
        assert await answer_while_held(app, locks, paths.get(place, "/items")) == "done"

    async def test_declared_as_a_parameter(self, app, locks):
        """Dependencies of dependencies, of functions and classes, and ``Security`` with scopes."""

        @app.post("/deep")
        def deep(found: Annotated[DependsClass, Depends()]) -> str:
            return found.key

        @app.post("/secure")
        def secure(found: Annotated[str, Security(security, scopes=["buy"])]) -> str:
            return found

        @app.post("/direct")
        def direct(lease: Annotated[AsyncLease, Security(lock("x"), scopes=["buy"])]) -> str:
            return lease.key

        assert await answer_while_held(app, locks, "/deep") == "x"
        assert await answer_while_held(app, locks, "/secure") == "x for buy"
        assert await answer_while_held(app, locks, "/direct") == "x"

    async def test_security_with_different_scopes_is_one_lease(self, app):
        """What FastAPI solves once for each set of scopes is acquired once, not waited for."""

        @app.post("/items", dependencies=[Security(lock("x"), scopes=["sell"])])
        def change(
            one: Annotated[AsyncLease, Security(lock("x"), scopes=["buy"])], other: Held
        ) -> bool:
            return one.fence == other.fence

        async with client_of(app, raises=True) as client:
            assert (await client.post("/items")).json() is True

    async def test_a_websocket_in_a_router_of_a_mounted_application(self, app, locks):
        """It holds its lock from before it is accepted until its endpoint ends."""
        sub, router = FastAPI(), APIRouter(prefix="/{shop}")
        keys = []

        @router.websocket("/talk")
        async def talk(
            socket: WebSocket, lease: Annotated[AsyncLease, Depends(lock("shop:{shop}"))]
        ) -> None:
            keys.append(lease.key)
            assert await locks.inspect("shop:7")
            await socket.accept()
            await socket.close()

        sub.include_router(router)
        app.mount("/sub", sub)
        exchange = Exchange(kind="websocket", path="/sub/7/talk")
        exchange.says({"type": "websocket.connect"})
        await exchange.served_by(app)
        assert keys == ["shop:7"]
        assert await locks.inspect("shop:7") is None

    async def test_an_application_with_locks_of_its_own_may_be_mounted(self, app, locks):
        """It uses them, and not those of the application around it."""
        sub = FastAPI()
        own = install(sub, "memory://of-the-mounted")

        @sub.post("/items", dependencies=[Depends(lock("x"))])
        async def change() -> bool:
            return bool(await own.inspect("x")) and not await locks.inspect("x")

        app.mount("/sub", sub)
        async with client_of(app, raises=True) as client:
            assert (await client.post("/sub/items")).json() is True
        assert await own.inspect("x") is None
        await own.close()


class TestWithoutInstall:
    @pytest.mark.parametrize("mounted", [False, True])
    async def test_the_first_request_says_what_to_call(self, mounted):
        """It names ``install``, also where the application is mounted in one without locks."""
        app, sub = FastAPI(), FastAPI()
        target = sub if mounted else app

        @target.post("/items", dependencies=[Depends(lock("x"))])
        async def change() -> None:
            pytest.fail("the handler ran")

        app.mount("/sub", sub)
        with pytest.raises(ConfigurationError, match=r"contrib\.fastapi\.install\(app"):
            await Exchange(path="/sub/items" if mounted else "/items").served_by(app)


class Work:
    """Work that has begun, goes on when the test says so, and tells whether it came to its end."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.done = False

    async def __call__(self) -> None:
        self.begun.set()
        await self.goes_on.wait()
        self.done = True


async def nothing() -> None:
    """A dependency, or an endpoint, that locks nothing."""


class TestEveryRequestIsProtected:
    """Work inside a lock is not cancelled, however the request came to lock, and not the first time either."""

    @pytest.fixture
    def work(self):
        return Work()

    async def cancelled_inside(self, app: FastAPI, locks: AsyncLocks, work: Work) -> None:
        served = Exchange(path="/items").served_by(app)
        await work.begun.wait()
        served.cancel()
        await asyncio.wait({asyncio.create_task(locks.inspect("x"))})  # The cancellation has come.
        assert not served.done()
        assert await locks.inspect("x")
        work.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await served
        assert work.done
        assert await locks.inspect("x") is None

    async def test_where_the_endpoint_locks_by_itself(self, app, locks, work):
        """Nothing of its declaration says that it will lock."""

        @app.post("/items")
        async def create(request: Request) -> None:
            await request_locks(request.scope).acquire("x")
            await work()

        await self.cancelled_inside(app, locks, work)


def test_installing_after_the_first_request_says_so():
    """Starlette would only say that no middleware can be added."""
    app = FastAPI()
    app.middleware_stack = app.build_middleware_stack()
    with pytest.raises(ConfigurationError, match="too late"):
        install(app, "memory://too-late")


def test_a_lock_looks_as_it_was_written():
    """Where a message or a debugger shows one, its keys and options can be read."""

    def cart_key() -> str:
        return "cart"

    assert repr(lock("item:{item_id}", ttl=5)) == "lock('item:{item_id}', ttl=5)"
    shown = repr(lock(cart_key, on_lost="continue"))
    assert shown.endswith("cart_key, on_lost='continue')")
