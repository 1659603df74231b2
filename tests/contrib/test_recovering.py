"""What a client is told while the engine recovers from having lost leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from fastapi import Depends, FastAPI

from tests.servers import Server
from tests.support.aio import eventually
from weblock import AsyncLocks, EngineRecovering, EngineUnavailable, Locks
from weblock.contrib.fastapi import install, lock
from weblock.contrib.kit.problems import problem_of

from .wire import Exchange


def locked() -> FastAPI:
    app = FastAPI()
    install(app, AsyncLocks.from_url("memory://"))

    @app.post("/items", dependencies=[Depends(lock("x"))])
    async def create() -> None:
        raise EngineRecovering("memory://", "it was started just now", retry_after=6.2)

    return app


async def posted(app: FastAPI) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post("/items")


async def test_the_client_is_told_when_to_come_back() -> None:
    """It is a 503 with a code of its own, and the seconds that are left, as a whole number."""
    answer = await posted(locked())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "7"
    assert answer.json()["code"] == "engine_recovering"
    assert answer.json()["type"] == "urn:weblock:engine_recovering"


async def test_a_handler_for_engines_that_are_down_is_asked_as_well() -> None:
    """Whoever answers ``EngineUnavailable`` in words of their own answers this kind of it, too."""
    app = locked()

    @app.exception_handler(EngineUnavailable)
    async def down(_request: object, error: EngineUnavailable) -> httpx.Response:
        from fastapi.responses import JSONResponse

        return JSONResponse({"ours": error.reason[:23]}, 500)

    answer = await posted(app)
    assert (answer.status_code, answer.json()) == (500, {"ours": "it was started just now"})


@pytest.mark.parametrize(("left", "told"), [(0.0, "1"), (6.2, "7"), (86_400.0, "60")])
def test_no_client_is_sent_away_for_long(left: float, told: str) -> None:
    """The seconds are at least 1, and no more than a minute."""
    problem = problem_of(EngineRecovering("redis://h", "it was started just now", retry_after=left))
    assert problem
    assert problem.headers == {"Retry-After": told}


@pytest.fixture(scope="module")
def quorum() -> Iterator[list[str]]:
    """Three servers that have just been started, and may have forgotten leases of an hour."""
    with ExitStack() as stack:
        yield [stack.enter_context(Server()).url(recovery=3600) for _ in range(3)]


async def test_a_quorum_that_recovers_says_so_on_both_apis(quorum: list[str]) -> None:
    """Its majority grants nothing yet: that is another error than that the key is held."""
    with Locks.from_url(quorum) as locks, pytest.raises(EngineRecovering) as refused:
        locks.acquire("x", wait=0)
    async with AsyncLocks.from_url(quorum) as async_locks:
        with pytest.raises(EngineRecovering) as refused_there:
            await async_locks.acquire("x", wait=0)
        with pytest.raises(EngineRecovering):
            await async_locks.try_acquire("x")
    for error in (refused.value, refused_there.value):
        assert 0 < round(error.retry_after, 6) <= 3600
        assert "started just now" in error.reason


async def test_the_recovery_begins_when_the_application_starts(caplog) -> None:
    """Not with the first request, on a server that was emptied long ago; until then nothing connects."""
    with Server() as server, Locks.from_url(server.url(recovery=600)) as locks:
        server.command("FLUSHALL")
        app = FastAPI()
        own = install(app, server.url(recovery=600))
        assert server.command("CLIENT", "LIST").count("\n") <= 1
        with caplog.at_level("WARNING", "weblock"):
            lifespan = Exchange(kind="lifespan")
            lifespan.says({"type": "lifespan.startup"})
            running = lifespan.served_by(app)
            await eventually(lambda: caplog.messages)
        lifespan.says({"type": "lifespan.shutdown"})
        await running
        await own.close()
        assert "is recovering: it may have been emptied" in caplog.text
        with pytest.raises(EngineRecovering) as refused:
            locks.acquire("x", wait=0)
        assert 0 < refused.value.retry_after < 600
