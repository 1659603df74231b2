"""``LockMiddleware`` around applications of several frameworks, message by message."""

import asyncio
import contextlib
import dataclasses
import re

import pytest
from fastapi import Depends, FastAPI
from litestar import Litestar, post
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from tests.servers import Server
from tests.support.aio import PATIENCE, eventually, until_waited_for
from tests.support.events import Heard
from weblock import AsyncLocks, ConfigurationError, LockTimeout
from weblock._engines import engine_for
from weblock.contrib.asgi import LockMiddleware, Rule, RuleSet, request_locks
from weblock.contrib.fastapi import install, lock
from weblock.events import FailedOpen

from .naive_middleware import BaseHTTPLock, PlainLock, WatchingLock
from .wire import Exchange

START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"done"}

ITEMS = [Rule("/items", key="items")]


async def answer(scope, receive, send):
    """The smallest application."""
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
    async def test_a_problem_may_be_told_in_other_words(self, locks):
        """``rewrite`` changes status, headers and body, and knows the error that it comes of."""

        def rewrite(problem, error):
            assert isinstance(error, LockTimeout)
            more = {"type": "https://shop.example/busy", "key": error.key}
            headers = {**problem.headers, "X-Busy": "yes"}
            return dataclasses.replace(problem, status=423, headers=headers, more=more)

        rules = [Rule("/items", key="items", wait=0)]
        layer = LockMiddleware(answer, locks, rules, rewrite=rewrite)
        async with locks.hold("items"):
            exchange = Exchange()
            await exchange.served_by(layer)
        assert (exchange.status, exchange.headers["x-busy"]) == (423, "yes")
        assert exchange.problem["type"] == "https://shop.example/busy"
        assert exchange.problem["key"] == "items"
        assert int(exchange.headers["retry-after"]) >= 1

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

    async def test_waiters_are_bounded(self, locks):
        """Who comes when so many wait already is told at once."""
        rules = [Rule("/items", key="items", wait=None, max_waiters=2)]
        layer = LockMiddleware(answer, locks, rules)
        holder = await locks.acquire("items")
        waiting = [Exchange().served_by(layer) for _ in range(2)]
        await until_waited_for(locks, "items", by=2)
        exchange = Exchange()
        await exchange.served_by(layer)
        assert exchange.status == 409
        await holder.release()
        await asyncio.gather(*waiting)

    @pytest.mark.parametrize(
        ("path", "query"),
        [
            ("/items/" + 600 * "x", b"q=1"),
            ("/items/7", b""),
            ("/items/7", b"q="),
            ("/items/7", b"q=1&q=2"),
        ],
        ids=["long", "missing", "empty", "twice"],
    )
    async def test_a_key_that_cannot_be_filled_in_is_the_clients_error(self, locks, path, query):
        """400, and the handler does not run: the server is not to blame."""
        rules = [Rule("/items/{id}", key="item:{id}:{query.q}")]
        exchange = Exchange(path="/")
        exchange.scope |= {"path": path, "query_string": query}
        app = Steered()
        await exchange.served_by(LockMiddleware(app, locks, rules))
        assert exchange.status == 400
        assert exchange.problem["code"] == "invalid_key"
        assert app.began == 0

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

    async def test_the_application_can_have_the_lease(self, locks):
        """The handler asks for the key that it holds, and is given the lease with its fence."""
        fences = []

        async def app(scope, receive, send):
            fences.append((await request_locks(scope).acquire("items")).fence)

        await Exchange().served_by(LockMiddleware(app, locks, ITEMS))
        assert fences[0] > 0

    async def test_rules_are_plain_data_too(self, locks):
        """What a configuration file has is taken as it is; what is wrong with it is said."""
        layer = LockMiddleware(answer, locks, {"items": {"path": "/items", "key": "x", "wait": 0}})
        async with locks.hold("x"):
            exchange = Exchange()
            await exchange.served_by(layer)
        assert exchange.status == 409
        with pytest.raises(ConfigurationError, match=r"^rules\.items has 'keys'"):
            LockMiddleware(answer, locks, {"items": {"path": "/items", "keys": "x"}})


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


class TestClientsThatGo:
    @pytest.fixture
    def app(self):
        """An application whose handler ends when the test lets it."""
        return Steered()

    async def test_naive_middleware_has_its_handler_cancelled(self, locks, app):
        """With ``async with hold``: the work is cut short, wherever it is."""
        served = Exchange().served_by(PlainLock(app, locks))
        await eventually(lambda: app.received)
        served.cancel()
        await asyncio.wait({served})
        assert app.cancelled == 1

    async def test_a_body_arrives_unharmed_that_came_while_the_request_waited(self, locks, app):
        """Every part of it, once, in order, and no ``receive`` of the server's is cancelled."""
        app.goes_on.set()
        exchange, sent = self._exchange_in_parts()
        await self._serve(exchange, locks, LockMiddleware(app, locks, ITEMS))
        assert b"".join(message["body"] for message in app.received) == sent
        assert exchange.receives_cancelled == 0

    async def test_naive_middleware_loses_parts_of_a_body(self, locks, app):
        """Who reads to see whether the client is there, and hands nothing on, breaks uploads."""
        app.goes_on.set()
        exchange, sent = self._exchange_in_parts()
        await self._serve(exchange, locks, WatchingLock(app, locks))
        assert b"".join(message["body"] for message in app.received) != sent

    def _exchange_in_parts(self):
        exchange = Exchange(body=None)
        parts = [bytes([number]) * 1000 for number in range(20)]
        for part in parts[:10]:
            exchange.says({"type": "http.request", "body": part, "more_body": True})
        return exchange, b"".join(parts)

    async def _serve(self, exchange, locks, middleware):
        """The first half of the body comes while the key is held, the other when it is free."""
        async with locks.hold("items"):
            served = exchange.served_by(middleware)
            await eventually(exchange.incoming.empty)
        for number in range(10, 20):
            part = bytes([number]) * 1000
            exchange.says({"type": "http.request", "body": part, "more_body": number < 19})
        await served


class TestOrder:
    """When the lock is released: after the work, and before the client has read of it."""

    async def test_base_http_middleware_releases_before_the_commit(self, locks, shop):
        """The naive one ends when the response begins."""

        async def slow(scope, receive, send):
            await send(START)
            await eventually(lambda: "release" in shop.events)
            await send(BODY)
            shop.events.append("commit")

        exchange = Exchange(events=shop.events)
        await exchange.served_by(BaseHTTPLock(slow, locks))
        assert shop.events.index("release") < shop.events.index("commit")

    async def test_a_plain_middleware_waits_for_a_slow_client(self, locks, shop):
        """The naive one keeps the key until the client has read; ours does not."""
        for middleware, free in ((PlainLock, False), (LockMiddleware, True)):
            exchange = Exchange(events=shop.events)
            exchange.reading.clear()
            rules = () if middleware is PlainLock else (ITEMS,)
            served = exchange.served_by(middleware(answer, locks, *rules))
            await eventually(lambda exchange=exchange: exchange.begun)
            for _ in range(20):
                await asyncio.sleep(0)
            lease = await locks.try_acquire("items")
            assert (lease is not None) is free
            if lease:
                await lease.release()
            exchange.reading.set()
            await served

    async def test_streams_and_background_tasks_run_inside_the_lock(self, locks):
        """A stream is sent as it is made, and the key is free when the last of it is done."""
        seen = []

        async def held():
            seen.append(await locks.inspect("items") is not None)

        async def stream():
            for _ in range(3):
                await held()
                yield b"x" * 600_000

        async def endpoint(request):
            return StreamingResponse(stream(), background=BackgroundTask(held))

        app = Starlette(routes=[Route("/items", endpoint, methods=["POST"])])
        exchange = Exchange()
        await exchange.served_by(LockMiddleware(app, locks, ITEMS))
        assert len(exchange.body) == 1_800_000
        assert seen == [True] * 4
        assert await locks.inspect("items") is None


def hello(request):
    """An endpoint of Starlette's."""
    return PlainTextResponse("hello")


@post("/items")
async def create() -> str:
    """An endpoint of Litestar's."""
    return "hello"


def starlette(locks):
    """The middleware inside."""
    return Starlette(
        routes=[Route("/items", hello, methods=["POST"])],
        middleware=[Middleware(LockMiddleware, locks=locks, rules=ITEMS)],
    )


def fastapi(locks, root_path=""):
    """The middleware inside."""
    app = FastAPI()
    app.root_path = root_path
    app.post("/items")(lambda: "hello")
    app.add_middleware(LockMiddleware, locks=locks, rules=ITEMS)
    return app


def fastapi_inside(locks, root_path=""):
    """The middleware outside of the whole application."""
    app = FastAPI()
    app.root_path = root_path
    app.post("/items")(lambda: "hello")
    return LockMiddleware(app, locks, ITEMS)


def litestar(locks):
    """The middleware inside, behind the router."""
    return Litestar(
        [create],
        middleware=[DefineMiddleware(LockMiddleware, locks=locks, rules=ITEMS)],
        logging_config=None,  # By default, it configures the logging of the whole process.
    )


def litestar_inside(locks):
    """The middleware outside of the whole application."""
    return LockMiddleware(Litestar([create], logging_config=None), locks, ITEMS)


def mounted(locks):
    """An application with its middleware inside another."""
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


async def test_one_lease_for_the_rule_and_the_dependency(locks):
    """A rule and a dependency that name one key, on one ``AsyncLocks``, share the lease."""
    app = FastAPI()
    app.post("/items", dependencies=[Depends(lock("items"))])(lambda: "hello")
    install(app, locks)
    exchange = Exchange()
    await exchange.served_by(LockMiddleware(app, locks, ITEMS))
    assert exchange.status == 200


async def test_hostile_urls_leave_nothing_behind(locks):
    """A stranger's keys are gone with the stranger's requests."""
    rules = RuleSet([Rule(re.compile("/(?P<all>.*)", re.DOTALL), key="{all}")])
    layer = LockMiddleware(answer, locks, rules)
    paths = [f"/{number}{'{*}:%' * (number % 30)}" for number in range(300)]
    exchanges = [Exchange(path=path) for path in paths]
    await asyncio.gather(*(each.served_by(layer) for each in exchanges))
    assert {each.status for each in exchanges} == {200}
    assert await locks.list() == []
