"""A rule's middleware and an application with locks of its own, around one request."""

from __future__ import annotations

from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from tests.support.http import client_of
from tests.support.waiting import eventually
from weblock import AsyncLease, AsyncLocks, LeaseLost, Locks
from weblock.contrib import asgi, wsgi
from weblock.contrib.fastapi import install, lock
from weblock.contrib.flask import WebLock
from weblock.contrib.wsgi.request import request_locks

RULES = {"asgi": asgi.Rule("/orders", key="x"), "wsgi": wsgi.Rule("/orders", key="x")}


def _keys_of(url: str, namespace: str) -> list[str]:
    with Locks.from_url(url, namespace=namespace) as locks:
        return [info.key for info in locks.list()]


@pytest.mark.parametrize("rule_is_outside", [True, False])
async def test_a_request_never_waits_for_the_key_of_its_own_rule(
    url: str, rule_is_outside: bool
) -> None:
    """An endpoint that locks the key of the rule for its path is served, whichever is outside."""
    app = FastAPI()

    @app.post("/orders")
    async def order(lease: Annotated[AsyncLease, Depends(lock("x", wait=1))]) -> list[str]:
        return list(lease.keys)

    if rule_is_outside:
        install(app, url)
    app.add_middleware(asgi.LockMiddleware, locks=url, rules=[RULES["asgi"]])
    if not rule_is_outside:
        install(app, url)
    async with client_of(app) as client:
        answer = await client.post("/orders")
    assert (answer.status_code, answer.json()) == (200, ["x"])


async def test_an_endpoint_locks_by_the_locks_of_its_application(url: str) -> None:
    """What ``install`` was given holds for each ``Depends(lock(...))``, also behind a rule on other locks."""
    app = FastAPI()

    @app.post("/orders", dependencies=[Depends(lock("stock"))])
    async def order() -> dict[str, list[str]]:
        return {namespace: _keys_of(url, namespace) for namespace in ("shop", "rules")}

    app.add_middleware(
        asgi.LockMiddleware,
        locks=AsyncLocks.from_url(url, namespace="rules"),
        rules=[RULES["asgi"]],
    )
    install(app, url, namespace="shop")
    async with client_of(app) as client:
        answer = await client.post("/orders")
    assert answer.json() == {"shop": ["stock"], "rules": ["x"]}
    assert (_keys_of(url, "shop"), _keys_of(url, "rules")) == ([], [])


@pytest.mark.parametrize("rule_is_outside", [True, False])
def test_a_view_never_waits_for_the_key_of_its_own_rule(url: str, rule_is_outside: bool) -> None:
    """The same for a view of Flask."""
    app, web = Flask(__name__), WebLock(locks=url)

    @app.post("/orders")
    @web.lock("x", wait=1)
    def order() -> list[str]:
        return ["served"]

    if rule_is_outside:
        web.init_app(app)
    app.wsgi_app = wsgi.LockMiddleware(app.wsgi_app, url, [RULES["wsgi"]])  # type: ignore[method-assign]
    if not rule_is_outside:
        web.init_app(app)
    answer = app.test_client().post("/orders")
    assert (answer.status_code, answer.json) == (200, ["served"])


def test_a_view_locks_by_the_locks_of_its_application(url: str) -> None:
    """The same for the locks that ``WebLock`` was given."""
    app = Flask(__name__)
    app.wsgi_app = wsgi.LockMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, url, [RULES["wsgi"]], namespace="rules"
    )
    web = WebLock(app, url, namespace="shop")

    @app.post("/orders")
    @web.lock("stock")
    def order() -> dict[str, list[str]]:
        return {namespace: _keys_of(url, namespace) for namespace in ("shop", "rules")}

    answer = app.test_client().post("/orders")
    assert answer.json == {"shop": ["stock"], "rules": ["x"]}


def test_what_a_rule_holds_is_checked_with_what_the_application_holds(url: str) -> None:
    """A commit is refused when the lease of the rule around the application was lost."""
    lost: list[LeaseLost] = []

    def application(environ, start_response):  # type: ignore[no-untyped-def]
        mine = request_locks(environ)
        assert mine.holds_any
        mine.check()
        with Locks.from_url(url) as others:
            others.force_release("x")
        (of_rule,) = mine.within.leases
        eventually(lambda: not of_rule.held)
        with pytest.raises(LeaseLost) as refused:
            mine.check()
        lost.append(refused.value)
        start_response("204 No Content", [])
        return []

    inner = wsgi.RequestLayer(application, Locks.from_url(url))
    app = wsgi.LockMiddleware(inner, url, [RULES["wsgi"]])
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/orders", "wsgi.input": None}
    list(app(environ, lambda *_said: lambda _part: None))
    assert lost[0].key == "x"
