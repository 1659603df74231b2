"""``LockMiddleware`` around an application of Starlette, which commits after its response is made."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.contrib.contract.driver import ROUTES, RULES, OverAsgi
from tests.contrib.contract.promises import FRESH, ROLLED_BACK, STALE
from weblock.contrib.asgi import LockMiddleware, request_locks

NO_DATABASE = (
    "The middleware knows no database: the application guards its own sessions"
    " ([`guard(session, lease)`](guard.md#sqlalchemy))"
)


class Driver(OverAsgi):
    """An application that commits after its response."""

    name = "ASGI"
    folder = "asgi"
    exempt: ClassVar = dict.fromkeys((ROLLED_BACK, STALE, FRESH), NO_DATABASE)

    def application(self) -> Any:
        app = Starlette(routes=[Route(path, self._serve, methods=["POST"]) for path in ROUTES])

        async def committing(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            if scope.get("handled"):
                await asyncio.to_thread(self.site.commit)

        return LockMiddleware(committing, self.locks, RULES)

    async def _serve(self, request: Request) -> Response:
        lease = next(iter(request_locks(request.scope).leases), None)
        await asyncio.to_thread(self.site.handle, lease)
        request.scope["handled"] = True
        parts = self.site.parts
        return StreamingResponse(parts()) if parts else PlainTextResponse("done")
