"""Every place where a lock may stand, and what it says where it may not."""

import asyncio
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Security, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.security import SecurityScopes

from tests.servers import Server
from weblock import AsyncLease, AsyncLocks, ConfigurationError
from weblock.contrib.fastapi import install, lock

from .wire import Exchange

Held = Annotated[AsyncLease, Depends(lock("x"))]


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """A client inside this process."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop", timeout=60)


@pytest.fixture
def app(locks: AsyncLocks) -> FastAPI:
    """An application with locks."""
    app = FastAPI()
    install(app, locks)
    return app


async def answer_while_held(app: FastAPI, locks: AsyncLocks, path: str) -> str:
    """What a request is answered that has to wait until "x" is released."""
    async with client_of(app) as client:
        async with locks.hold("x"):
            request = asyncio.create_task(client.post(path))
            await until_waited_for(locks, "x")
            assert not request.done()
        answer = await request
    assert answer.status_code == 200, answer.text
    assert await locks.inspect("x") is None
    return answer.json()


async def until_waited_for(locks: AsyncLocks, key: str) -> None:
    """Returns when somebody waits for the key."""
    async with asyncio.timeout(30):
        while not (info := await locks.inspect(key)) or not info.waiters:  # noqa: ASYNC110 - it rings nobody
            await asyncio.sleep(0.005)


def depends_def(lease: Held) -> str:
    """A dependency in a thread."""
    return lease.key


async def depends_async(key: Annotated[str, Depends(depends_def)]) -> str:
    """One that depends on it."""
    return key


class DependsClass:
    """A dependency whose parameters are those of its constructor."""

    def __init__(self, key: Annotated[str, Depends(depends_async)]) -> None:
        self.key = key


async def security(scopes: SecurityScopes, key: Annotated[str, Depends(depends_def)]) -> str:
    """One that is told its scopes."""
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

        async with client_of(app) as client:
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
        async with client_of(app) as client:
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

    async def test_so_does_the_first_websocket(self):
        """A websocket raises the same."""
        app = FastAPI()

        @app.websocket("/items")
        async def talk(socket: WebSocket, lease: Held) -> None:
            pytest.fail("the handler ran")

        exchange = Exchange(kind="websocket")
        exchange.says({"type": "websocket.connect"})
        with pytest.raises(ConfigurationError, match=r"contrib\.fastapi\.install\(app"):
            await exchange.served_by(app)


async def test_an_endpoint_may_run_without_a_lease_while_the_engine_is_down(tmp_path):
    """``on_unavailable="open"``, asked for by name: not held, no fence, and ``check`` passes.

    Without it, the same outage is a 503.
    """
    app = FastAPI()
    with Server() as server:
        locks = install(app, server.url(recovery="off"), wait=0)

        @app.post("/open")
        async def let_run(
            lease: Annotated[AsyncLease, Depends(lock("x", on_unavailable="open"))],
        ) -> dict:
            lease.check()
            return {"held": lease.held, "fence": lease.fence, "key": lease.key}

        @app.post("/closed", dependencies=[Depends(lock("x"))])
        async def refuse() -> None: ...

        async with client_of(app) as client:
            assert (await client.post("/open")).json()["held"] is True
            server.kill()
            answer = await client.post("/open")
            assert answer.json() == {"held": False, "fence": None, "key": "x"}
            refused = await client.post("/closed")
            assert (refused.status_code, refused.json()["code"]) == (503, "engine_unavailable")
            assert locks.fail_opens == 1
        await locks.close()


tasks: list[asyncio.Task | None] = []


async def note() -> None:
    """An endpoint that notes the task that it runs in."""
    tasks.append(asyncio.current_task())


async def runs_apart(app: FastAPI, path: str) -> bool:
    """Whether the endpoint of ``path`` runs in another task than the server's."""
    exchange = Exchange(path=path)
    served = exchange.served_by(app)
    await served
    assert exchange.status == 200
    return tasks.pop() is not served


class TestRequestsThatLockNothing:
    """They are served in the server's own task; those that may lock in one that is not cancelled."""

    @pytest.mark.parametrize(
        ("path", "apart"),
        [
            ("/plain", False),
            ("/plain/7", False),
            ("/plain/locks", False),
            ("/locks", True),
            ("/locks\n", True),
            ("/carts/7/lines", True),
            ("/files/a/b/c", True),
            ("/sub/tenant/locks", True),
            ("/sub/tenant/plain", False),
            ("/opaque/plain", True),
        ],
    )
    async def test_it_is_told_by_the_path(self, app, path, apart):
        """Parameters, prefixes, mounts, and applications that cannot be looked into."""
        sub, hidden, router = FastAPI(), FastAPI(), APIRouter(prefix="/carts/{cart}")
        one = [Depends(lock("x"))]
        for target in (app, sub, hidden):
            target.post("/locks", dependencies=one)(note)
            target.post("/plain")(note)
        app.post("/plain/{item}")(note)
        app.post("/files/{name:path}", dependencies=one)(note)
        router.post("/lines", dependencies=one)(note)
        app.include_router(router)
        app.mount("/sub/{tenant}", sub)
        app.mount("/opaque", CORSMiddleware(hidden))
        assert await runs_apart(app, path) is apart

    async def test_a_path_below_a_root(self, app):
        """A server may say that the application is at home below a prefix."""
        app.post("/locks", dependencies=[Depends(lock("x"))])(note)
        app.post("/plain")(note)
        for path, apart in (("/root/locks", True), ("/locks", True), ("/root/plain", False)):
            exchange = Exchange(path=path)
            exchange.scope["root_path"] = "/root"
            served = exchange.served_by(app)
            await served
            assert exchange.status == 200
            assert (tasks.pop() is not served) is apart

    async def test_a_lock_that_was_not_known_of_is_held_all_the_same(self, app, locks):
        """A route that came after the start is served rightly, and apart from the next time on."""
        app.post("/plain")(note)
        assert not await runs_apart(app, "/plain")
        app.post("/late", dependencies=[Depends(lock("x"))])(note)
        assert not await runs_apart(app, "/late")
        assert await runs_apart(app, "/late")
        assert await locks.try_acquire("x")

    async def test_errors_and_losses_are_answered_there_too(self, app, locks):
        """Where it was not known that a request locks, it is answered in the same way."""
        app.post("/plain")(note)
        assert not await runs_apart(app, "/plain")

        @app.post("/busy", dependencies=[Depends(lock("x", wait=0))])
        async def busy() -> None: ...

        @app.post("/lost")
        async def lost(lease: Held) -> None:
            for holding in lease._holdings:
                holding.lose("taken")
            await asyncio.sleep(60)

        async with locks.hold("x"):
            exchange = Exchange(path="/busy")
            await exchange.served_by(app)
        assert exchange.problem["code"] == "lock_timeout"
        exchange = Exchange(path="/lost")
        await exchange.served_by(app)
        assert exchange.problem["code"] == "lease_lost"

    async def test_an_override_may_lock(self, app):
        """``dependency_overrides`` are seen when the request comes."""

        def nothing() -> None: ...

        app.post("/plain", dependencies=[Depends(nothing)])(note)
        assert not await runs_apart(app, "/plain")
        app.dependency_overrides[nothing] = lock("x")
        assert await runs_apart(app, "/plain")
