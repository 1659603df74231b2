"""The application in Flask: at most three items, with the lock and without.

``scripts/demo --framework flask`` shows it in several workers. It runs by itself, too:
``flask --app demo.flask run``, or with ``gunicorn demo.flask:app --workers 4``.
``DEMO_LOCK=off`` takes the lock away, and nothing else.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from typing import Final

from flask import Flask, request

from demo.trace import section
from weblock.contrib.flask import WebLock

BOUND: Final = 3
DATABASE = os.environ.get("DEMO_DATABASE", "items.sqlite3")
LOCKED = os.environ.get("DEMO_LOCK", "on") == "on"

app = Flask(__name__)
locks = WebLock(
    app,
    os.environ.get("DEMO_ENGINE", "file://"),
    namespace=os.environ.get("DEMO_NAMESPACE", "demo"),
    ttl=float(os.environ.get("DEMO_TTL", "10")),
)

with closing(sqlite3.connect(DATABASE, timeout=30)) as database:
    database.execute("CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY)")


def create_item() -> tuple[dict[str, object], int]:
    """Makes an item, unless there are three already."""
    with section(), closing(sqlite3.connect(DATABASE, timeout=30)) as database:
        (count,) = database.execute("SELECT count(*) FROM item").fetchone()
        if count >= BOUND:
            return {"detail": f"limit reached: {BOUND} items"}, 422
        # Some work: a payment, a call to another service.
        time.sleep(float(request.args.get("work", "0.15")))
        added = database.execute("INSERT INTO item DEFAULT VALUES RETURNING id")
        (item,) = added.fetchone()
        database.commit()
        return {"item": item}, 201


view = locks.lock("create_item")(create_item) if LOCKED else create_item
app.add_url_rule("/items", view_func=view, methods=["POST"])
