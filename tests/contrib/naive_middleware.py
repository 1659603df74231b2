"""The middlewares that everybody writes first, each with the mistakes of its kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from tests.support.waiting import PATIENCE
from weblock import AsyncLocks

PATTERN = re.compile("/items")


class BaseHTTPLock(BaseHTTPMiddleware):
    """It releases when the response begins, not when the work is done."""

    def __init__(self, app: Any, locks: AsyncLocks) -> None:
        super().__init__(app)
        self._locks = locks

    async def dispatch(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if not PATTERN.match(request.url.path):
            return await call_next(request)
        async with self._locks.hold("items", wait=PATIENCE):
            return await call_next(request)


class PlainLock:
    """It holds until the client has drained the response, and lets a handler be cancelled."""

    def __init__(self, app: Any, locks: AsyncLocks) -> None:
        self.app = app
        self.locks = locks

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not PATTERN.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        async with self.locks.hold("items", wait=PATIENCE):
            await self.app(scope, receive, send)


class WatchingLock(PlainLock):
    """It notices that the client has gone, but swallows what it reads meanwhile."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        waiting = asyncio.ensure_future(self.locks.acquire("items", wait=PATIENCE))
        while not waiting.done():
            reading = asyncio.ensure_future(receive())
            await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
            elif reading.result()["type"] == "http.disconnect":
                waiting.cancel()
                return
        lease = await waiting
        try:
            await self.app(scope, receive, send)
        finally:
            await lease.release()
