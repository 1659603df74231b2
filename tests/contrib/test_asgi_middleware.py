"""``LockMiddleware`` around applications of several frameworks, message by message."""

import asyncio
import contextlib
import re

import pytest
from fastapi import FastAPI
from litestar import Litestar, post
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from tests.servers import Server
from tests.support.aio import PATIENCE, eventually, until_waited_for
from tests.support.events import Heard
from weblock import AsyncLocks, ConfigurationError
from weblock._engines import engine_for
from weblock.contrib.asgi import LockMiddleware, Rule, RuleSet, request_locks
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

    async def test_several_keys_of_all_parts_of_a_request(self, locks):
        """Path, query and headers; all keys are held together."""
        held = []

        async def app(scope, receive, send):
            held.extend([info.key for info in await locks.list()])
            await answer(scope, receive, send)

        rules = [Rule("/items/{id}", key=["{id}", "q:{query.q}", "user:{header.X-User}"])]
        exchange = Exchange(path="/items/7")
        exchange.scope["query_string"] = b"q=a%3Ab"
        exchange.scope["headers"] += [(b"X-User", b"m\xe9")]
        await exchange.served_by(LockMiddleware(app, locks, rules))
        assert held == ["7", "q:a%3Ab", "user:mé"]
        assert await locks.list() == []


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
        with pytest.raises(ConfigurationError, match="would lock nothing: say what to lock"):
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


def hello(request):
    return PlainTextResponse("hello")


@post("/items")
async def create() -> str:
    return "hello"


def starlette(locks):
    return Starlette(
        routes=[Route("/items", hello, methods=["POST"])],
        middleware=[Middleware(LockMiddleware, locks=locks, rules=ITEMS)],
    )


def fastapi(locks, root_path=""):
    app = FastAPI()
    app.root_path = root_path
    app.post("/items")(lambda: "hello")
    app.add_middleware(LockMiddleware, locks=locks, rules=ITEMS)
    return app


def fastapi_inside(locks, root_path=""):
    app = FastAPI()
    app.root_path = root_path
    app.post("/items")(lambda: "hello")
    return LockMiddleware(app, locks, ITEMS)


def litestar(locks):
    return Litestar(
        [create],
        middleware=[DefineMiddleware(LockMiddleware, locks=locks, rules=ITEMS)],
        logging_config=None,  # By default, it configures the logging of the whole process.
    )


def litestar_inside(locks):
    return LockMiddleware(Litestar([create], logging_config=None), locks, ITEMS)


def mounted(locks):
    return Starlette(routes=[Mount("/api", app=starlette(locks))])


APPLICATIONS = {
    "starlette": starlette,
    "fastapi": fastapi,
    "fastapi_inside": fastapi_inside,
    "fastapi_with_root_path": lambda locks: fastapi(locks, root_path="/api"),
    "fastapi_with_root_path_inside": lambda locks: fastapi_inside(locks, root_path="/api"),
    "litestar": litestar,
    "litestar_inside": litestar_inside,
    "mounted": mounted,
}
PATHS = [
    "/items",
    "/items\n",
    "/items/",
    "//items",
    "/items//",
    "/api/items",
    "/api/items\n",
    "/api//items",
    "/Items",
    "/items%0A",
    "/./items",
    "/items?",
    "/items;x",
]


@pytest.mark.parametrize("name", APPLICATIONS)
@pytest.mark.parametrize("root_path", ["", "/api"])
async def test_no_framework_can_be_asked_past_the_lock(locks, name, root_path):
    """Whatever path reaches the endpoint while the key is free is refused while it is held."""
    app = APPLICATIONS[name](locks)
    reached = 0
    for path in PATHS:
        free, busy = (Exchange(path="/") for _ in range(2))
        for exchange in (free, busy):
            exchange.scope |= {"path": path, "raw_path": path.encode(), "root_path": root_path}
            exchange.scope["state"] = {}
        await free.served_by(app)
        if free.status // 100 != 2:
            continue
        reached += 1
        assert "server-timing" in free.headers, path
        async with locks.hold("items"):
            served = busy.served_by(app)
            waited = asyncio.ensure_future(until_waited_for(locks, "items"))
            await asyncio.wait({served, waited}, return_when=asyncio.FIRST_COMPLETED)
            assert waited.done(), f"{path!r} was served while the key was held"
            await waited
        await served
        assert busy.status == free.status
    assert reached > 0 or (name == "mounted" and root_path)


async def test_hostile_urls_leave_nothing_behind(locks):
    """A stranger's keys are gone with the stranger's requests."""
    rules = RuleSet([Rule(re.compile("/(?P<all>.*)", re.DOTALL), key="{all}")])
    layer = LockMiddleware(answer, locks, rules)
    paths = [f"/{number}{'{*}:%' * (number % 30)}" for number in range(300)]
    exchanges = [Exchange(path=path) for path in paths]
    await asyncio.gather(*(each.served_by(layer) for each in exchanges))
    assert {each.status for each in exchanges} == {200}
    assert await locks.list() == []
