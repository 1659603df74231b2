"""The way of a WSGI request: calls, which no noise moves."""

import sys

import pytest
from flask import Flask

from tests.support.way import Way
from weblock import Locks
from weblock.contrib.flask import WebLock
from weblock.contrib.wsgi import LockMiddleware, Rule

from .gateway import environ_of, plain

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="coverage or a debugger follows each call"
)

PATHS = pytest.mark.parametrize(
    ("path", "limit"), [("/items/7", 80), ("/other/7", 20)], ids=["locked", "unlocked"]
)


def calls_of(app, path):
    """The calls of a request, until the server has closed its response, when all that is done once has been done."""
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
def test_by_rules(url, path, limit):
    """``LockMiddleware``, where a rule matches and where none does."""
    with Locks.from_url(url) as locks:
        rules = [Rule("/items/{item_id}", key="item:{item_id}")]
        assert calls_of(LockMiddleware(plain, locks, rules), path) <= limit


@PATHS
def test_by_decorators(url, path, limit):
    """Flask, on a view with a lock and on one without."""
    app = Flask(__name__)
    web = WebLock(app, url)

    def view(item_id):
        return item_id

    app.post("/items/<item_id>")(web.lock("item:{item_id}")(view))
    app.post("/other/<item_id>", endpoint="other")(view)
    calls = calls_of(app, path)
    with app.app_context():
        web.locks.close()
    assert calls <= limit
