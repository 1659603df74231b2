"""``LockMiddleware`` around an application of Starlette, which commits when its response is made."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.contrib.contract.driver import OverAsgi, some
from tests.contrib.contract.promises import FRESH, ROLLED_BACK, STALE
from weblock.contrib.asgi import LockMiddleware, request_locks

NO_DATABASE = (
    "The middleware knows no database: the application guards its own sessions"
    " ([`guard(session, lease)`](guard.md#sqlalchemy))"
)
RULES: dict[str, Any] = {
    "/items/{item_id:int}": "item:{item_id}",
    "/threads/{item_id:int}": "item:{item_id}",
    "/again/{item_id:int}": "item:{item_id}",
    "/streams/{item_id:int}": "item:{item_id}",
    "/names/{name}": "name:{name}",
    "/some/{item_id:int}": some,
    "/pairs/{a:int}/{b:int}": ["item:{a}", "item:{b}"],
}


class Driver(OverAsgi):
    """An application that commits after its response."""

    name = "ASGI"
    folder = "asgi"
    exempt: ClassVar = dict.fromkeys((ROLLED_BACK, STALE, FRESH), NO_DATABASE)

    def application(self) -> Any:
        serve = {"/streams/{item_id:int}": self._stream, "/again/{item_id:int}": self._again}
        serve["/some/{item_id:int}"] = self._some
        routes = [Route(path, serve.get(path, self._serve), methods=["POST"]) for path in RULES]
        app = Starlette(routes=routes)

        async def committing(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            if scope.get("handled"):
                await asyncio.to_thread(self.site.commit)

        rules = [{"path": path, "methods": ["POST"], "key": key} for path, key in RULES.items()]
        return LockMiddleware(committing, self.locks, rules)

    async def _serve(self, request: Request) -> Response:
        values = request.path_params
        keys = [f"item:{value}" for name, value in values.items() if name != "name"]
        lease = await request_locks(request.scope).acquire(*keys) if keys else None
        await asyncio.to_thread(self.site.handle, lease)
        request.scope["handled"] = True
        return PlainTextResponse("done")

    async def _some(self, _request: Request) -> Response:
        self.site.handle(None)
        return PlainTextResponse("done")

    async def _again(self, request: Request) -> Response:
        lease = await request_locks().acquire(f"item:{request.path_params['item_id']}", wait=0)
        return PlainTextResponse(str(lease.held))

    async def _stream(self, _request: Request) -> Response:
        return StreamingResponse(self.site.parts())
