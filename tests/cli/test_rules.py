"""``weblock rules``: what a request would lock, without sending it."""

from __future__ import annotations

from pathlib import Path

import pytest

SHOP = """
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from starlette.endpoints import HTTPEndpoint
from starlette.routing import Route
from weblock.contrib import wsgi
from weblock.contrib.asgi import LockMiddleware, Rule
from weblock.contrib.fastapi import install, lock

rules = [
    Rule("/shops/{shop}/items/preview", exempt=True),
    Rule("/shops/{shop}/items/{item:int}", methods=["POST"], key="item:{shop}:{item}", wait=1),
    Rule("/carts", key="cart:{header.x-cart}"),
]

async def plain(scope, receive, send): ...

wrapped = LockMiddleware(plain, "memory://", rules)

served = wsgi.LockMiddleware(lambda environ, start_response: [], "memory://", rules)

class Flask:
    wsgi_app = wsgi.RequestLayer(served, served._layer._locks)

flask = Flask()

app = FastAPI()
app.add_middleware(LockMiddleware, locks="memory://", rules=rules)

routed = FastAPI()
install(routed, "memory://")

@routed.post("/orders/{order}", dependencies=[Depends(lock("order:{order:int}"))])
def order(order: int): ...

locked = [Depends(lock("item"))]

@routed.post("/files/{p:path}", dependencies=[Depends(lock("file:{p:str}"))])
def file(p: str): ...

@routed.post("/numbers/{number:int}", dependencies=locked)
def number(number: int): ...

@routed.post("/items/{name}")
def item(name: str): ...

@routed.post("/items/new", dependencies=locked)
def new_item(): ...

@routed.websocket("/live", dependencies=locked)
async def live(socket: WebSocket): ...

router = APIRouter()

@router.post("/lines/{line:int}")
def line(line: int): ...

@router.post("/lines", dependencies=locked)
def lines(): ...

routed.include_router(router, prefix="/carts/{cart}")

inner = FastAPI(root_path="")
inner.include_router(router, prefix="/shops")
routed.mount("/sub/{tenant}", inner)

@routed.post("/sub/a/anything", dependencies=locked)
def behind_the_mount(): ...

class Endpoint(HTTPEndpoint):
    async def post(self, request): ...

routed.router.routes.append(Route("/classes/{name}", Endpoint))

both = FastAPI()
both.add_middleware(LockMiddleware, locks="memory://", rules=rules)

@both.post("/shops/{shop}/items/{item}", dependencies=[Depends(lock("stock:{item:int}"))])
def stock(shop: str, item: int): ...

@both.get("/carts", dependencies=locked)
def carts(): ...

around = LockMiddleware(routed, "memory://", rules)
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application in a folder of its own."""
    (tmp_path / "cli_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "app", [f"cli_shop:{name}" for name in ("app", "wrapped", "served", "flask")]
)
def test_the_rule_that_matches_is_named(run, told, app: str) -> None:
    """The rule, its key as it is filled in, and its options are told."""
    done = run("rules", app, "post", "/shops/a%20b/items/07?page=2")
    assert done.exit_code == 0, done.output
    (matching,) = [line for line in done.stdout.splitlines() if line.endswith("  matches")]
    assert "Rule('/shops/{shop}/items/{item:int}', methods=['POST'])" in matching
    assert done.stdout.endswith("locks 'item:a%20b:7'\n")
    assert told("rules", app, "POST", "/shops/a/items/7")["keys"] == ["item:a:7"]


def test_headers_make_keys(run, told) -> None:
    """A key of a header is filled in with --header, and else it is said why it cannot be."""
    command = ("rules", "cli_shop:app", "GET", "/carts")
    assert told(*command, "--header", "X-Cart: 7")["keys"] == ["cart:7"]
    done = run(*command)
    assert "is refused with 400:" in done.stdout


@pytest.mark.parametrize(
    ("url", "said"),
    [("/shops/a/items/x", "locks nothing"), ("/shops/a/items/preview", "matches: exempt")],
)
def test_what_locks_nothing_exits_with_1(run, url: str, said: str) -> None:
    """A request that no rule matches, or that one exempts, is told apart, and the exit code is 1."""
    done = run("rules", "cli_shop:app", "POST", url)
    assert done.exit_code == 1
    assert said in done.stderr


def test_dependencies_are_found(run, told) -> None:
    """Where no rule matches, a FastAPI route that depends on a lock is named."""
    done = run("rules", "cli_shop:routed", "POST", "/orders/7")
    assert "the route POST /orders/{order}, which locks 'order:{order:int}'" in done.stdout
    done = run("rules", "cli_shop:routed", "GET", "/orders/7")
    assert done.exit_code == 1
    assert done.stderr == "weblock: nothing locks GET /orders/7: cli_shop:routed has no rules\n"


@pytest.mark.parametrize(
    ("request_", "route"),
    [
        ("POST /files/a/b", "POST /files/{p}"),
        ("POST /numbers/7", "POST /numbers/{number}"),
        ("WEBSOCKET /live", "websocket /live"),
        ("POST /carts/7/lines", "POST /carts/{cart}/lines"),
        ("POST /sub/a/shops/lines", "POST /sub/{tenant}/shops/lines"),
    ],
)
@pytest.mark.parametrize("app", ["routed", "around"])
def test_the_route_is_chosen_as_fastapi_chooses_it(
    run, told, app: str, request_: str, route: str
) -> None:
    """Converters of the path, included routers, mounts, websockets and middleware all count."""
    method, path = request_.split()
    done = run("rules", f"cli_shop:{app}", method, path)
    assert done.exit_code == 0, done.output
    assert f"{request_} is served by the route {route}, which locks " in done.stdout
    facts = told("rules", f"cli_shop:{app}", method, path)
    assert (facts["route"], len(facts["templates"])) == (route, 1)


@pytest.mark.parametrize(
    "path", ["/numbers/abc", "/sub/a/anything", "/carts/7/nothing", "/no/such/path"]
)
def test_what_no_route_serves_locks_nothing(run, path: str) -> None:
    """A part of the path that its converter rejects is another path; a mount has all that is below it."""
    done = run("rules", "cli_shop:routed", "POST", path)
    assert done.exit_code == 1
    assert done.stderr == f"weblock: nothing locks POST {path}: cli_shop:routed has no rules\n"


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/items/new", "POST /items/{name}"),
        ("/carts/7/lines/3", "POST /carts/{cart}/lines/{line}"),
        ("/classes/a", "any method /classes/{name}"),
    ],
)
def test_a_route_that_locks_nothing_is_named(run, told, path: str, route: str) -> None:
    """An unlocked route that comes before a locked one serves the request, and is named."""
    done = run("rules", "cli_shop:routed", "POST", path)
    assert done.exit_code == 1
    assert f"POST {path} is served by the route {route}, which locks nothing\n" in done.stderr
    facts = told("rules", "cli_shop:routed", "POST", path)
    assert (facts["route"], facts["templates"], facts["keys"]) == (route, [], [])


def test_a_rule_and_a_dependency_are_both_named(run, told) -> None:
    """A request that both a rule and its route lock holds both keys, and both are said."""
    command = ("rules", "cli_shop:both", "POST", "/shops/a/items/7")
    done = run(*command)
    assert "  locks 'item:a:7'\nPOST /shops/a/items/7 is served by the route" in done.stdout
    assert done.stdout.endswith("which locks 'stock:{item:int}'\n")
    facts = told(*command)
    assert (facts["keys"], facts["templates"]) == (["item:a:7"], ["stock:{item:int}"])


def test_a_request_that_a_rule_refuses_reaches_no_route(run) -> None:
    """Where a rule answers with 400, what the route would lock is not said."""
    done = run("rules", "cli_shop:both", "GET", "/carts")
    assert "is refused with 400:" in done.stdout
    assert "the route" not in done.stdout


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("cli_shop", "names no application"),
        ("no_such_shop:app", "cannot be imported"),
        ("cli_shop:application", "cannot be imported"),
    ],
)
def test_an_application_that_is_not_there_is_refused(run, app: str, said: str) -> None:
    """What cannot be imported exits with 2 and one sentence."""
    done = run("rules", app, "GET", "/")
    assert done.exit_code == 2
    assert said in done.stderr
