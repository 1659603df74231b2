"""``WebLock`` and Flask-SQLAlchemy, whose session commits in a teardown function."""

from __future__ import annotations

from typing import Any, ClassVar

from flask import Flask, Response, g
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text
from sqlalchemy.pool import NullPool

from tests.contrib.contract.driver import ROUTES, OverWsgi, in_angles
from tests.contrib.contract.promises import THREADS
from weblock.contrib.flask import WebLock, lease_of

from .fastapi import Row
from .wsgi import OWN_THREAD


class Driver(OverWsgi):
    """An application that commits in a teardown function."""

    name = "Flask"
    folder = "flask"
    exempt: ClassVar = {THREADS: OWN_THREAD}

    def application(self) -> Any:
        app = Flask("contract")
        app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{self.site.database}"
        app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"poolclass": NullPool}
        app.config["PROPAGATE_EXCEPTIONS"] = False
        db = SQLAlchemy(app)
        web = self._web = WebLock(app, self.locks)

        @app.teardown_request
        def commit(error: object) -> None:
            if "handled" in g and error is None:
                self.site.commit()
                db.session.commit()

        def handle(item_id: int = 1, **_: object) -> Response:
            self.site.handle(lease_of() if item_id else None)
            g.handled = True
            return Response(self.site.parts() if self.site.parts else "done")

        for route, keys in ROUTES.items():
            app.post(in_angles(route), endpoint=route)(web.lock(*keys)(handle))
        self._add_database(app, web, db)
        return app

    def acquire(self, key: str) -> Any:
        return self._web.acquire(key, wait=0)

    def _add_database(self, app: Flask, web: WebLock, db: SQLAlchemy) -> None:
        @app.post("/orders/<int:item_id>")
        @web.lock("item:{item_id}", guard="database", renew=False)
        def order(item_id: int) -> str:
            db.session.execute(text("SELECT count(*) FROM orders"))
            self.site.handle(lease_of())
            db.session.execute(text("INSERT INTO orders DEFAULT VALUES"))
            g.handled = True
            return "done"

        @app.post("/rows/<int:item_id>")
        def row(item_id: int) -> str:
            found = db.session.get_one(Row, item_id)
            web.acquire(f"item:{item_id}")
            return str(found.number)
