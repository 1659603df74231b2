"""``LockMiddleware`` around an application, message by message."""

import asyncio
import contextlib

import pytest
from fastapi import FastAPI

from tests.servers import Server
from tests.support.aio import PATIENCE, eventually
from tests.support.events import Heard
from weblock import AsyncLocks, ConfigurationError
from weblock._engines import engine_for
from weblock.contrib.asgi import LockMiddleware, Rule, request_locks
from weblock.events import FailedOpen

from .wire import Exchange

START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"done"}

ITEMS = [Rule("/items", key="items")]


async def answer(scope, receive, send):
    await send(START)
    await send(BODY)


class Steered:
    """An application whose handler ends when the test lets it."""

    def __init__(self):
        self.began = 0
        self.running = 0
        self.most_at_once = 0
        self.ended = 0
        self.cancelled = 0
        self.received = []
        self.goes_on = asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.began += 1
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            while True:
                self.received.append(message := await receive())
                if not message.get("more_body"):
                    break
            await self.goes_on.wait()
            await answer(scope, receive, send)
            self.ended += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


class TestARule:
    async def test_one_may_run_without_a_lease_while_the_engine_is_down(self):
        """A rule with ``on_unavailable="open"``, and no other."""
        app = Steered()
        app.goes_on.set()
        with Server() as server:
            heard, url = Heard(), server.url(recovery="off", timeout=PATIENCE)
            async with AsyncLocks.from_url(url, wait=0, observers=[heard.observer]) as locks:
                rules = [
                    Rule("/open", key="x", on_unavailable="open"),
                    Rule("/closed", key="x"),
                ]
                layer = LockMiddleware(app, locks, rules)
                statuses = []
                for path in ("/open", "/closed"):
                    await (exchange := Exchange(path=path)).served_by(layer)
                    statuses.append(exchange.status)
                server.kill()
                for path in ("/open", "/closed"):
                    await (exchange := Exchange(path=path)).served_by(layer)
                    statuses.append(exchange.status)
                assert statuses == [200, 200, 200, 503]
                assert len(heard.of(FailedOpen)) == 1

    @pytest.mark.parametrize("kind", ["http", "websocket"])
    @pytest.mark.parametrize("path", ["/items/7.0", "/items/+7", "//items/7", "/items/7\n"])
    async def test_a_path_that_can_be_read_in_two_ways_is_refused(self, locks, path, kind):
        """400 before the application runs, also where another rule, or no rule, is for the other reading."""
        rules = [
            Rule("/items/{id:int}", key="item:{id}", methods=["POST", "WEBSOCKET"]),
            Rule("/items/{name}", exempt=True, methods=["POST", "WEBSOCKET"]),
        ]
        for each in (rules[:1], rules):
            exchange, app = Exchange(path=path), Steered()
            exchange.scope["type"] = kind
            exchange.scope["extensions"] = {"websocket.http.response": {}}
            await exchange.served_by(LockMiddleware(app, locks, each))
            assert app.began == 0
            assert exchange.sent if kind == "websocket" else exchange.status == 400
            if kind == "http":
                assert exchange.problem["code"] == "strange_path"


class TestWhatPassesThrough:
    @pytest.mark.parametrize("kind", ["http", "websocket", "something"])
    async def test_what_no_rule_is_about_is_untouched(self, locks, kind):
        """It reaches the application with its own scope, ``receive`` and ``send``."""
        exchange = Exchange(path="/other" if kind == "http" else "/items", kind=kind)
        seen = []

        async def app(*given):
            seen.extend(given)

        rules = [*ITEMS, Rule("/other", exempt=True), Rule("/{p:path}", key="all")]
        before = dict(exchange.scope)
        await exchange.served_by(LockMiddleware(app, locks, rules))
        assert seen[0] is exchange.scope
        assert seen[0] == before
        assert seen[1:] == [exchange.receive, exchange.send]

    async def test_websockets_where_a_rule_says_so(self, locks):
        """A websocket holds its key as long as it is open; one that finds it busy is refused."""
        app = Steered()
        rules = [Rule("/items", key="items", methods=["WEBSOCKET"], wait=0)]
        layer = LockMiddleware(app, locks, rules)
        first, second = Exchange(kind="websocket"), Exchange(kind="websocket")
        first.says({"type": "websocket.connect"})
        served = first.served_by(layer)
        await eventually(lambda: app.received)
        await second.served_by(layer)
        assert second.sent == [{"type": "websocket.close", "code": 1013, "reason": "lock_timeout"}]
        app.goes_on.set()
        await served
        assert await locks.try_acquire("items")

    def test_a_middleware_without_rules_is_refused(self, locks):
        """It would lock nothing, and nobody would notice."""
        with pytest.raises(ConfigurationError, match="would lock nothing: add rules"):
            LockMiddleware(answer, locks)

    async def test_options_beside_ready_locks_are_refused(self, locks):
        """They would have no effect, so the error says where they belong."""
        with pytest.raises(TypeError, match="ttl"):
            LockMiddleware(answer, locks, ITEMS, ttl=5)

    @pytest.mark.parametrize("ends", ["returns", "raises"])
    async def test_an_application_that_knows_no_lifespan_is_served(self, url, ends):
        """Django's, or a plain function: servers go on without lifespan, and requests are locked."""

        async def app(scope, receive, send):
            if scope["type"] == "lifespan":
                if ends == "raises":
                    raise ValueError("this application handles only HTTP")
                return
            await answer(scope, receive, send)

        layer = LockMiddleware(app, url, ITEMS)
        lifespan = Exchange(kind="lifespan")
        with contextlib.suppress(ValueError):
            await lifespan.served_by(layer)
        assert lifespan.sent == []
        exchange = Exchange()
        await exchange.served_by(layer)
        assert exchange.status == 200

    async def test_locks_of_a_url_serve_each_life_of_the_application(self, url):
        """They let the engine go at its shutdown, and open it again for a request that comes after."""

        async def app(scope, receive, send):
            if scope["type"] == "lifespan":
                await send({"type": "lifespan.startup.complete"})
                await send({"type": "lifespan.shutdown.complete"})
                return
            await answer(scope, receive, send)

        layer = LockMiddleware(app, url, ITEMS)
        engines = []
        for _ in range(2):
            exchange = Exchange()
            await exchange.served_by(layer)
            assert exchange.status == 200
            engines.append(engine_for(url))
            await Exchange(kind="lifespan").served_by(layer)
        assert engines[0] is not engines[1]

    async def test_options_of_the_locks(self, url):
        """With a URL, options are those of the locks; a rule's own go before them."""
        ttls = []

        async def app(scope, receive, send):
            key = scope["path"].strip("/")
            ttls.append((await request_locks(scope).acquire(key)).remaining())

        rules = [Rule("/short", key="short", ttl=20), Rule("/long", key="long")]
        layer = LockMiddleware(app, url, rules, ttl=60)
        for path in ("/short", "/long"):
            await Exchange(path=path).served_by(layer)
        assert ttls[0] <= 20 < ttls[1] <= 60


@pytest.mark.parametrize("whose", ["server", "application"])
async def test_rules_match_below_the_root_path(locks, whose):
    """It is the server's, or the one that the application has of its own."""
    app = FastAPI()
    app.root_path = "/api" if whose == "application" else ""
    app.post("/items")(lambda: "done")
    exchange = Exchange(path="/api/items")
    exchange.scope["root_path"] = "/api" if whose == "server" else ""
    layer = LockMiddleware(app, locks, [Rule("/items", key="items", wait=0)])
    async with locks.hold("items"):
        await exchange.served_by(layer)
    assert exchange.status == 409
