"""What a request that was refused its lock is told, by rules and under FastAPI alike."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from tests.support.busy import busy
from weblock import AsyncLocks, ConfigurationError, EngineUnavailable, LeaseLost, Locks
from weblock.contrib.asgi import LockMiddleware, Rule, request_locks
from weblock.contrib.fastapi import install, lock
from weblock.contrib.flask import WebLock
from weblock.contrib.wsgi import LockMiddleware as WsgiLockMiddleware

from .gateway import Gateway, plain
from .wire import Exchange

RULES = [Rule("/items", key="x", wait=0)]


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def ruled(locks: AsyncLocks, work: Callable[[], Any]) -> LockMiddleware:
    async def app(scope, receive, send):
        await work()
        await answer(scope, receive, send)

    return LockMiddleware(app, locks, [Rule("/items", key="x", wait=0.01)])


def depending(locks: AsyncLocks, work: Callable[[], Any]) -> FastAPI:
    app = FastAPI()
    install(app, locks)

    @app.post("/items", dependencies=[Depends(lock("x", wait=0.01, on_lost="continue"))])
    async def create() -> None:
        await work()

    return app


async def nothing() -> None:
    """Work that is none."""


def in_other_words(problem, error):
    headers = {**problem.headers, "X-Busy": "yes"}
    return replace(problem, status=423, headers=headers, more={"key": error.key})


def by_wsgi(url):
    return WsgiLockMiddleware(plain, url, RULES, rewrite=in_other_words)


def by_flask(url):
    app = Flask(__name__)
    app.config["WEBLOCK_REWRITE"] = in_other_words
    app.post("/items")(WebLock(app, url).lock("x", wait=0)(lambda: "done"))
    return app


def is_reworded(response):
    """Whether a response is the problem of ``in_other_words``, with what is told of each."""
    assert int(response.headers["retry-after"]) >= 1
    found = response.status, response.headers["x-busy"], response.problem["key"]
    return found == (423, "yes", "x")


async def test_a_rule_tells_its_problem_in_other_words(locks):
    """``rewrite`` changes status, headers and body, and knows the error that it comes of."""
    exchange = Exchange()
    async with locks.hold("x"):
        await exchange.served_by(LockMiddleware(answer, locks, RULES, rewrite=in_other_words))
    assert is_reworded(exchange)


@pytest.mark.parametrize("make", [by_wsgi, by_flask])
def test_a_thread_tells_its_problem_in_other_words(url, make):
    """The same for WSGI and Flask."""
    with Locks.from_url(url) as others, busy(others, "x", "another"):
        assert is_reworded(Gateway(make(url)).serve())


@pytest.mark.parametrize("make", [ruled, depending])
class TestServerTiming:
    """``Server-Timing`` says how long the request has waited, whatever the answer is."""

    async def test_of_an_engine_that_is_down(self, locks, make, monkeypatch):
        """A 503."""

        async def fail(*call):
            raise EngineUnavailable("redis://inner-host:6379", "connection refused")

        monkeypatch.setattr(locks._locker, "acquire", fail)
        exchange = Exchange()
        await exchange.served_by(make(locks, nothing))
        assert (exchange.status, exchange.problem["code"]) == (503, "engine_unavailable")
        assert exchange.headers["server-timing"].startswith("lock;dur=")

    async def test_of_a_lost_lease(self, locks, make):
        """A 503, too: the request had waited for what it lost."""

        async def lose():
            await locks.force_release("x")

        exchange = Exchange()
        await exchange.served_by(make(locks, lose))
        assert (exchange.status, exchange.problem["code"]) == (503, "lease_lost")
        assert exchange.headers["server-timing"].startswith("lock;dur=")


@pytest.mark.parametrize("debug", [False, True])
async def test_an_outage_is_explained_to_its_developer(locks, monkeypatch, debug):
    """With ``FastAPI(debug=True)``, a 503 names the engine and what is wrong with it; else it does not."""

    async def fail(*call):
        raise EngineUnavailable("redis://inner-host:6379", "connection refused")

    monkeypatch.setattr(locks._locker, "acquire", fail)
    app = depending(locks, nothing)
    app.debug = debug
    exchange = Exchange()
    await exchange.served_by(app)
    assert exchange.status == 503
    assert ("inner-host" in exchange.body.decode()) == debug
    assert "debug" not in str(app.openapi())


@pytest.mark.parametrize("debug", [False, True])
async def test_a_lost_lease_is_explained_to_its_developer(locks, debug):
    """With ``FastAPI(debug=True)``, a 503 says why the lease was lost; else it does not."""

    async def lost():
        raise LeaseLost("inner:x", fence=1, reason="max_hold")

    app = depending(locks, lost)
    app.debug = debug
    exchange = Exchange()
    await exchange.served_by(app)
    assert (exchange.status, exchange.problem["code"]) == (503, "lease_lost")
    assert ("longer than max_hold" in exchange.body.decode()) == debug


WRONG = pytest.mark.parametrize("keys", [(), (None,), (7,), ([],), ("a", None), (b"a",)], ids=repr)


class TestWrongKeys:
    """What is no key is an error of the application, and no 400 that blames its client."""

    @WRONG
    async def test_acquired_behind_rules(self, locks, keys):
        """It says what was given, and what to give."""

        async def app(scope, receive, send):
            await request_locks(scope).acquire(*keys)

        layer = LockMiddleware(app, locks, [Rule("/items", key="x")])
        with pytest.raises(
            ConfigurationError, match=r"acquire\(.*\) has no key, or one that is not a string"
        ):
            await Exchange().served_by(layer)

    @pytest.mark.parametrize("key", [None, 7, ["a", None], [7]])
    def test_of_a_rule(self, key):
        """A rule has templates and functions, and the error says so."""
        with pytest.raises(ConfigurationError, match=r"template such as .*, a function that"):
            Rule("/items", key=key)
