"""``weblock rules``: what a request would lock, without sending it."""

from __future__ import annotations

from pathlib import Path

import pytest

SHOP = """
from fastapi import Depends, FastAPI
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
