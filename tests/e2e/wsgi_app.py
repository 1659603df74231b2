"""A Flask application that any WSGI server runs: ``tests.e2e.wsgi_app:app``, in $WEBLOCK_TEST_FOLDER.

Tests steer it (``steering``).
"""

from __future__ import annotations

import os

from flask import Flask, Response, g, request
from flask_sqlalchemy import SQLAlchemy

from tests.support.waiting import PATIENCE
from weblock.contrib.flask import WebLock
from weblock.contrib.wsgi import LockMiddleware, Rule

from . import steering

BODY_WAIT = 0.5
ENGINE = os.environ.get("WEBLOCK_TEST_ENGINE", "file://")

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ.get(
    "WEBLOCK_TEST_DATABASE", f"sqlite:///{steering.FOLDER}/shop.sqlite3"
)
db = SQLAlchemy()


class Item(db.Model):  # type: ignore[name-defined,misc]
    """An item of a shop, of which there may be one."""

    id = db.Column(db.Integer, primary_key=True)
    shop = db.Column(db.String(80))


db.init_app(app)
locks = WebLock(app, ENGINE, wait=PATIENCE, body_wait=BODY_WAIT)
with app.app_context(), locks.locks.hold("create_all"):
    db.create_all()


def create(shop: str, name: str = "") -> tuple[str, int]:
    """Make an item, unless there is one; the commit comes later, when the test says so."""
    if db.session.query(Item).filter_by(shop=shop).count():
        return "full", 422
    db.session.add(Item(shop=shop))
    g.commits = name
    return "made", 201


@app.teardown_request
def commit(_error: BaseException | None) -> None:
    name = g.pop("commits", None)
    if name:
        steering.note(f"{name}-commits")
        steering.until_it_goes_on(name)
    if name is not None:
        db.session.commit()


for rule, endpoint in (("/locked/<shop>", "locked"), ("/locked/<shop>/<name>", "steered_commit")):
    app.add_url_rule(rule, endpoint, locks.lock("{shop}")(create), methods=["POST"])


@app.post("/steered/<key>/<name>")
@locks.lock("{key}")
def steered(key: str, name: str) -> str:
    return steering.steered(name)


@app.post("/large/<key>")
@locks.lock("{key}")
def large(key: str) -> Response:
    return Response(b"x" * int(request.args["size"]))


@app.post("/upload/<key>")
@locks.lock("{key}")
def upload(key: str) -> str:
    return str(len(request.get_data()))


@app.post("/ruled/<key>")
def ruled(key: str) -> str:
    return "done"


app.wsgi_app = LockMiddleware(  # type: ignore[method-assign]
    app.wsgi_app,
    locks=ENGINE,
    rules=[Rule("/ruled/{key}", key="{key}")],
    wait=PATIENCE,
    body_wait=BODY_WAIT,
)
