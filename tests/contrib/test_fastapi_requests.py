"""What a request that locks may count on, and what it is told when it cannot be served."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import Annotated

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Request, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse

from tests.support.aio import eventually, until_waited_for
from tests.support.http import client_of
from tests.support.waiting import PATIENCE
from weblock import (
    AsyncLease,
    ConfigurationError,
    Locks,
    LockTimeout,
    WeblockError,
)
from weblock._engines import engine_for
from weblock.contrib.fastapi import install, lock

from .losing import lose
from .shop import CommitFailed
from .wire import Exchange


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "bare"])
async def test_a_def_dependency_waits_in_a_thread_that_is_used_again(locks, installed):
    """Of requests that hold a key in a ``def`` dependency, each waits for the one before it.

    The pool runs the dependency of the second in the thread that has run that of the first.
    """
    app = FastAPI()
    if installed:
        install(app, locks)
    go_on, threads = asyncio.Event(), []
    with Locks.from_url(locks.engine) as blocking:

        def hold() -> Iterator[None]:
            threads.append(threading.get_ident())
            with blocking.hold("key", wait=PATIENCE):
                yield

        @app.get("/", dependencies=[Depends(hold)])
        async def read() -> None:
            await go_on.wait()

        async with client_of(app, raises=True) as client, asyncio.TaskGroup() as group:
            requests = [group.create_task(client.get("/"))]
            await eventually(lambda: threads)
            await eventually(lambda: blocking.inspect("key"))
            requests += [group.create_task(client.get("/")) for _ in range(2)]
            await until_waited_for(locks, "key", by=2)
            go_on.set()
    assert threads[0] in threads[1:]
    assert {(await each).status_code for each in requests} == {200}


class TestTheDependency:
    async def test_the_same_lock_at_every_level_is_one_lease(self, locks):
        """App, router, route, parameter and a longer lock: the key is acquired once, not again."""
        app = FastAPI(dependencies=[Depends(lock("x"))])
        install(app, locks, hold_back=60)
        router = APIRouter(dependencies=[Depends(lock("x"))])
        uncached = Depends(lock("x"), use_cache=False)

        @router.post("/items", dependencies=[Depends(lock("x")), uncached])
        async def create(
            both: Annotated[AsyncLease, Depends(lock("a", "x", "z"))],
            lease: Annotated[AsyncLease, Depends(lock("x", wait=0))],
        ) -> dict[str, int]:
            assert lease.fence == both.fences["x"]
            return both.fences

        app.include_router(router)
        async with client_of(app) as client:
            answer = await client.post("/items")
        assert set(answer.json()) == {"a", "x", "z"}
        assert await locks.try_acquire("a", "x", "z")

    async def test_an_override_names_the_lock_of_the_route(self, app, locks):
        """A test may replace a lock, by another lock too; one with other options is not ignored."""

        @app.post("/items", dependencies=[Depends(lock("x", wait=0))])
        async def create() -> str:
            return "created"

        overrides = app.dependency_overrides
        overrides[lock("x", wait=0)] = lambda page="": None
        async with locks.hold("x"), client_of(app, raises=True) as client:
            assert (await client.post("/items")).status_code == 200
            overrides[lock("x", wait=0)] = lock("x", wait=0, limit=3)
            assert (await client.post("/items")).status_code == 409
            overrides.clear()
            overrides[lock("x")] = lambda: None
            with pytest.raises(ConfigurationError, match=r"overrides\[lock\('x', wait=0\)\]"):
                await client.post("/items")

            @app.post("/others", dependencies=[Depends(lock("x"))])
            async def create_other() -> str:
                return "created"

            assert (await client.post("/others")).status_code == 200
            assert (await client.post("/items")).status_code == 409

    @pytest.mark.parametrize("value", ["a%0Ab", "%00", "{item_id}", "*", "%E2%80%A8", "%"])
    async def test_any_other_path_is_a_key(self, app, value):
        """Control characters and wildcards in a URL are encoded, and lock what they name."""

        @app.post("/items/{item_id}", dependencies=[Depends(lock("item:{item_id}"))])
        async def change() -> None:
            pass

        async with client_of(app) as client:
            assert (await client.post(f"/items/{value}")).status_code == 200


class TestInstalling:
    def test_installing_twice_is_refused(self, app, url):
        """A second ``install`` raises at once."""
        with pytest.raises(ConfigurationError, match="already"):
            install(app, url)

    def test_wrong_options_are_refused(self, url, locks):
        """Options, URLs and durations that cannot work raise at once."""
        with pytest.raises(ConfigurationError, match="ttl"):
            install(FastAPI(), url, ttl=0)
        with pytest.raises(ConfigurationError, match="hold_back"):
            install(FastAPI(), url, hold_back=-1)
        with pytest.raises(ConfigurationError, match="nowhere"):
            install(FastAPI(), "nowhere://")
        with pytest.raises(TypeError, match="ttl"):
            install(FastAPI(), locks, ttl=3)

    async def test_locks_made_from_a_url_live_as_long_as_the_application(self, url):
        """They let the engine go at shutdown, and open it again when somebody uses them again."""
        app = FastAPI()
        locks = install(app, url)

        @app.post("/items", dependencies=[Depends(lock("x"))])
        async def create() -> None:
            pass

        for _ in range(2):
            lifespan = Exchange(kind="lifespan")
            lives = lifespan.served_by(app)
            lifespan.says({"type": "lifespan.startup"})
            await eventually(lambda sent=lifespan.sent: sent)
            async with client_of(app) as client:
                assert (await client.post("/items")).status_code == 200
            before = engine_for(url)
            lifespan.says({"type": "lifespan.shutdown"})
            await lives
            assert engine_for(url) is not before
            async with client_of(app) as client:  # As a test client that runs no lifespan.
                assert (await client.post("/items")).status_code == 200
        async with locks.hold("x"):
            assert await locks.inspect("x")

    async def test_locks_that_their_user_closed_stay_closed(self, url):
        """Only a shutdown of the application is undone by the next use."""
        locks = install(FastAPI(), url)
        await locks.close()
        with pytest.raises(ConfigurationError, match="closed"):
            await locks.acquire("x")


class TestWhoIsToldWhat:
    async def test_busy_is_a_409_that_says_when_to_try_again(self, locks):
        """A lock not got in time: problem details, ``Retry-After``, CORS as for every answer."""
        app = FastAPI()
        app.add_middleware(CORSMiddleware, allow_origins=["*"])
        install(app, locks)

        @app.post("/items", dependencies=[Depends(lock("secret-key", wait=0.05))])
        async def create() -> None:
            pytest.fail("the handler ran")

        exchange = Exchange()
        async with locks.hold("secret-key") as lease:
            await exchange.served_by(app)
        assert exchange.status == 409
        assert 1 <= int(exchange.headers["retry-after"]) <= 60
        assert exchange.headers["access-control-allow-origin"] == "*"
        problem = exchange.problem
        assert problem.pop("title")
        assert problem.pop("detail")
        assert problem == {
            "type": "urn:weblock:lock_timeout",
            "status": 409,
            "code": "lock_timeout",
        }
        said = json.dumps(exchange.sent, default=str)
        assert lease.owner not in said
        assert locks.label.split(":")[0] not in said

    async def test_retry_after_is_what_is_left_of_the_lease(self, app, locks):
        """Where leases are not renewed: for who does not wait, and for who may not."""

        @app.post("/none", dependencies=[Depends(lock("x", wait=0, renew=False))])
        @app.post("/full", dependencies=[Depends(lock("x", wait=60, max_waiters=0, renew=False))])
        async def create() -> None:
            pytest.fail("the handler ran")

        async with locks.hold("x", ttl=40, renew=False), client_of(app) as client:
            for path in ("/none", "/full"):
                answer = await client.post(path)
                assert answer.status_code == 409
                assert 10 < int(answer.headers["retry-after"]) <= 40

    async def test_a_loss_that_comes_to_light_too_late_is_logged(self, locks, caplog):
        """A response that is on its way already stays the true one; the log has the error."""
        app = FastAPI()
        install(app, locks, hold_back=0)

        @app.post("/items", status_code=201)
        async def create(
            lease: Annotated[AsyncLease, Depends(lock("x"))], later: BackgroundTasks
        ) -> None:
            later.add_task(lose, lease)

        exchange = Exchange()
        with caplog.at_level(logging.ERROR, "weblock"):
            await exchange.served_by(app)
        assert exchange.status == 201
        assert "lost" in caplog.text

    @pytest.mark.parametrize("kind", [LockTimeout, WeblockError])
    @pytest.mark.parametrize("installed", ["first", "last"])
    async def test_users_handlers_go_first(self, locks, installed, kind):
        """``@app.exception_handler(LockTimeout)`` replaces the problem, whenever it is declared."""
        app = FastAPI()
        if installed == "first":
            install(app, locks)

        @app.exception_handler(kind)
        async def in_own_words(request: Request, error: LockTimeout) -> JSONResponse:
            return JSONResponse({"busy": error.key}, 423)

        @app.post("/items", dependencies=[Depends(lock("x", wait=0))])
        async def create() -> None:
            pytest.fail("the handler ran")

        if installed == "last":
            install(app, locks)
        async with locks.hold("x"), client_of(app) as client:
            assert (await client.post("/items")).status_code == 423

    async def test_a_mounted_application_answers_in_the_same_way(self, app, locks):
        """The outer layer answers for a sub-application that knows nothing of problems."""
        sub = FastAPI()

        @sub.post("/items", dependencies=[Depends(lock("x", wait=0))])
        async def create() -> None:
            pytest.fail("the handler ran")

        app.mount("/sub", sub)
        async with locks.hold("x"), client_of(app) as client:
            answer = await client.post("/sub/items")
        assert (answer.status_code, answer.json()["code"]) == (409, "lock_timeout")

    async def test_a_request_can_be_inspected(self, app, locks):
        """While a request holds a key, the key tells which one, in ASCII; a long path is cut."""
        infos = []

        @app.post("/items/{name}", dependencies=[Depends(lock("x"))])
        async def change() -> None:
            infos.append(await locks.inspect("x"))

        async with client_of(app) as client:
            for path in ("/items/a%0Aé", f"/items/{'n' * 500}"):
                assert (await client.post(path)).status_code == 200
        assert infos[0].holder == f"{locks.label} POST /items/a%0A%C3%A9"
        assert infos[1].holder.startswith(f"{locks.label} POST /items/nnn")
        assert len(infos[1].holder) == 200
        assert await locks.inspect("x") is None


class TestLongResponses:
    async def test_an_application_that_does_not_return_answers_in_time(self, locks):
        """With ``hold_back``, a complete response is sent after so long, whatever is done behind it."""
        app = FastAPI()
        answered = asyncio.Event()

        class Dawdling:
            def __init__(self, inner):
                self.inner = inner

            async def __call__(self, scope, receive, send):
                await self.inner(scope, receive, send)
                await answered.wait()

        app.add_middleware(Dawdling)
        install(app, locks, hold_back=0.01)

        @app.post("/items", dependencies=[Depends(lock("x"))])
        async def create() -> None:
            pass

        exchange = Exchange()
        served = exchange.served_by(app)
        await eventually(lambda: exchange.complete)
        answered.set()
        await served

    async def test_a_commit_that_blocks_the_loop_and_fails_is_never_reported(
        self, locks, monkeypatch
    ):
        """No timer that becomes due while a session keeps the loop from turning sends the 201."""
        monkeypatch.setattr("weblock.contrib.kit.bodies.STREAMS_AFTER", 0.0)
        app = FastAPI()
        install(app, locks)

        async def session():
            yield
            for _ in range(3):
                await asyncio.sleep(0.01)
                time.sleep(0.02)  # noqa: ASYNC251 - timers become due meanwhile
            raise CommitFailed

        @app.post("/items", status_code=201, dependencies=[Depends(lock("x")), Depends(session)])
        async def create() -> None:
            pass

        exchange = Exchange()
        with pytest.raises(CommitFailed):
            await exchange.served_by(app)
        assert exchange.status == 500


class TestWebsockets:
    @pytest.mark.parametrize("denial", [True, False])
    async def test_a_websocket_that_is_not_served_is_refused(self, app, locks, denial):
        """A busy lock refuses it: with the problem where the server can, else by closing."""

        @app.websocket("/items")
        async def talk(
            socket: WebSocket, lease: Annotated[AsyncLease, Depends(lock("x", wait=0))]
        ) -> None:
            pytest.fail("the handler ran")

        extensions = {"websocket.http.response": {}} if denial else {}
        exchange = Exchange(kind="websocket", extensions=extensions)
        exchange.says({"type": "websocket.connect"})
        async with locks.hold("x"):
            await exchange.served_by(app)
        if denial:
            assert (exchange.status, exchange.problem["code"]) == (409, "lock_timeout")
        else:
            assert [(each["type"], each["code"]) for each in exchange.sent] == [
                ("websocket.close", 1013)
            ]

    async def test_a_websocket_whose_client_leaves_stops_waiting(self, app, locks):
        """So it is with websockets: gone while waiting, the handler never runs."""

        @app.websocket("/items")
        async def talk(
            socket: WebSocket, _: Annotated[None, Depends(lock("x", wait=None))]
        ) -> None:
            pytest.fail("the handler ran")

        exchange = Exchange(kind="websocket")
        exchange.says({"type": "websocket.connect"})
        exchange.says({"type": "websocket.disconnect", "code": 1001})
        async with locks.hold("x"):
            await exchange.served_by(app)
        assert exchange.sent == []
