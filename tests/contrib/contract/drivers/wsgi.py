"""``LockMiddleware`` around an application of Flask, which commits when its response is made."""

from __future__ import annotations

from typing import Any, ClassVar

from flask import Flask, Response, g

from tests.contrib.contract.driver import OverWsgi
from tests.contrib.contract.promises import FRESH, ROLLED_BACK, STALE, THREADS
from weblock.contrib.wsgi import LockMiddleware, request_locks

from .asgi import NO_DATABASE, RULES

OWN_THREAD = "The server gives each request its own thread"


class Driver(OverWsgi):
    """An application that commits in a teardown function."""

    name = "WSGI"
    folder = "wsgi"
    exempt: ClassVar = {
        **dict.fromkeys((ROLLED_BACK, STALE, FRESH), NO_DATABASE),
        THREADS: OWN_THREAD,
    }

    def application(self) -> Any:
        app = Flask("contract")
        self.add_to(app)
        rules = [{"path": path, "methods": ["POST"], "key": key} for path, key in RULES.items()]
        return LockMiddleware(app, self.locks, rules)

    def add_to(self, app: Flask) -> None:
        app.config["PROPAGATE_EXCEPTIONS"] = False
        app.add_url_rule("/items/<int:item_id>", "items", self.handle, methods=["POST"])
        app.add_url_rule("/pairs/<int:a>/<int:b>", "pairs", self.handle, methods=["POST"])
        app.add_url_rule("/names/<name>", "names", self.handle, methods=["POST"])
        app.add_url_rule("/some/<int:item_id>", "some", self.some, methods=["POST"])
        app.add_url_rule("/again/<int:item_id>", "again", self.again, methods=["POST"])
        app.add_url_rule("/streams/<int:item_id>", "streams", self.stream, methods=["POST"])

        @app.teardown_request
        def commit(_error: object) -> None:
            if "handled" in g:
                self.site.commit()

    def handle(self, **values: Any) -> str:
        keys = [f"item:{value}" for name, value in values.items() if name != "name"]
        self.site.handle(request_locks().acquire(*keys) if keys else None)
        g.handled = True
        return "done"

    def some(self, **_: object) -> str:
        self.site.handle(None)
        return "done"

    def again(self, item_id: int) -> str:
        return str(request_locks().acquire(f"item:{item_id}", wait=0).held)

    def stream(self, item_id: int) -> Response:
        return Response(self.site.parts())
