"""The application in Flask: at most three items, with the lock and without.

``scripts/demo --framework flask`` shows it in several workers. It runs by itself, too:
``flask --app demo.flask run``, or with ``gunicorn demo.flask:app --workers 4``.
``DEMO_LOCK=off`` takes the lock away, and nothing else.
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, request

from demo.shop import WORK, LimitReached, add_item, open_shop
from weblock.contrib.flask import WebLock

LOCKED = os.environ.get("DEMO_LOCK", "on") == "on"

open_shop()
app = Flask(__name__)
locks = WebLock(
    app,
    os.environ.get("DEMO_ENGINE", "file://"),
    namespace=os.environ.get("DEMO_NAMESPACE", "demo"),
    ttl=float(os.environ.get("DEMO_TTL", "10")),
)


def create_item() -> tuple[dict[str, Any], int]:
    """Count the items, work, and add one, unless there are three already."""
    try:
        return add_item(float(request.args.get("work", WORK))), 201
    except LimitReached as error:
        return {"detail": str(error)}, 422


view = locks.lock("create_item")(create_item) if LOCKED else create_item
app.add_url_rule("/items", view_func=view, methods=["POST"])
