"""``LockMiddleware`` around an application of Flask, which commits when its response is made."""

from __future__ import annotations

from typing import Any, ClassVar

from flask import Flask, Response, g

from tests.contrib.contract.driver import ROUTES, RULES, OverWsgi, in_angles
from tests.contrib.contract.promises import FRESH, ROLLED_BACK, STALE, THREADS
from weblock.contrib.wsgi import LockMiddleware, request_locks

from .asgi import NO_DATABASE

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
        app.config["PROPAGATE_EXCEPTIONS"] = False
        for route in ROUTES:
            app.post(in_angles(route), endpoint=route)(self._serve)

        @app.teardown_request
        def commit(_error: object) -> None:
            if "handled" in g:
                self.site.commit()

        return LockMiddleware(app, self.locks, RULES)

    def _serve(self, **_: object) -> Response:
        self.site.handle(next(iter(request_locks().leases), None))
        g.handled = True
        return Response(self.site.parts() if self.site.parts else "done")
