"""The way of a WSGI request is no longer than that of an ASGI request, for the same rules and the same view."""

import sys

import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from tests.support.way import Way
from weblock import AsyncLocks, Locks
from weblock.contrib import asgi, fastapi, wsgi
from weblock.contrib.flask import WebLock

from .gateway import environ_of, plain
from .wire import Exchange

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="coverage or a debugger follows each call"
)

PATHS = pytest.mark.parametrize("path", ["/items/7", "/other/7"], ids=["locked", "unlocked"])


async def calls_by_asgi(app, path):
    """The calls of a request when all that is done once has been done."""
    for _ in range(3):
        way, exchange = Way(), Exchange(path=path)
        with way.noted():
            await app(exchange.scope, exchange.receive, exchange.send)
        assert exchange.status == 200
    return way.calls


def calls_by_wsgi(app, path):
    """The same by WSGI, until the server has closed the response."""
    statuses = []
    for _ in range(3):
        way, environ = Way(), environ_of(path)
        with way.noted():
            body = app(environ, lambda status, *more: statuses.append(status))
            list(body)
            getattr(body, "close", list)()
    assert statuses == ["200 OK"] * 3
    return way.calls


@PATHS
async def test_by_rules(url, path):
    """``LockMiddleware``, where a rule matches and where none does."""

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    rules = [asgi.Rule("/items/{item_id}", key="item:{item_id}")]
    async with AsyncLocks.from_url(url) as locks:
        by_asgi = await calls_by_asgi(asgi.LockMiddleware(answer, locks, rules), path)
    with Locks.from_url(url) as locks:
        by_wsgi = calls_by_wsgi(wsgi.LockMiddleware(plain, locks, rules), path)
    assert by_wsgi <= by_asgi


@PATHS
async def test_by_decorators(url, path):
    """Flask beside FastAPI."""
    there = FastAPI()
    locks = fastapi.install(there, url)

    async def change(item_id: str) -> str:
        return item_id

    there.post("/items/{item_id}", dependencies=[Depends(fastapi.lock("item:{item_id}"))])(change)
    there.post("/other/{item_id}")(change)
    by_asgi = await calls_by_asgi(there, path)
    await locks.close()

    here = Flask(__name__)
    web = WebLock(here, url)

    def view(item_id):
        return item_id

    here.post("/items/<item_id>")(web.lock("item:{item_id}")(view))
    here.post("/other/<item_id>", endpoint="other")(view)
    by_wsgi = calls_by_wsgi(here, path)
    with here.app_context():
        web.locks.close()
    assert by_wsgi <= by_asgi
