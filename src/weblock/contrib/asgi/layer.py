"""The outer layer: it runs the application, then releases, and only then answers.

The application commits its work before it returns, whatever the order of its parts; so a lock that
is released after that is released after the commit. And since the answer is held back until then,
a slow client cannot keep the lock, and a commit that fails cannot have been reported as done.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ...aio import AsyncLocks
from ...errors import LeaseLost
from .inbox import Inbox
from .outbox import Outbox
from .problems import Problem, problem_of
from .protocol import App, Receive, Scope, Send
from .request import SCOPE_KEY, ClientGone, RequestLocks

logger = logging.getLogger("weblock")

HOLD_BACK: Final = 1.0
"""Seconds that an answer is held back, at most, while the application has not returned."""


class RequestLayer:
    """ASGI middleware that owns the leases of each request.

    ``hold_back`` is how many seconds a response waits for the application to return (1): after
    that it is sent, and what follows it, background tasks say, still runs inside the lock.
    ``close_locks`` has the locks closed when the application shuts down.
    """

    def __init__(
        self,
        app: App,
        locks: AsyncLocks,
        *,
        hold_back: float = HOLD_BACK,
        close_locks: bool = False,
    ) -> None:
        self._app = app
        self._locks = locks
        self._hold_back = hold_back
        self._close_locks = close_locks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or passes on what is none."""
        if scope["type"] in ("http", "websocket"):
            await _Exchange(self._locks, self._hold_back, scope, receive, send).run(self._app)
            return
        await self._app(scope, receive, send)
        if scope["type"] == "lifespan" and self._close_locks:
            await self._locks.close()


class _Exchange:
    """One request and its response."""

    def __init__(
        self, locks: AsyncLocks, hold_back: float, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._scope = scope
        self._send = send
        self._inbox = Inbox(receive)
        self._outbox = Outbox(send, self._work_goes_on)
        self._request = RequestLocks(locks, scope, self._inbox, self._outbox, hold_back)

    def _work_goes_on(self) -> bool:
        return self._request.background()

    async def run(self, app: App) -> None:
        scope = {**self._scope, SCOPE_KEY: self._request}
        work = asyncio.ensure_future(app(scope, self._inbox.receive, self._outbox.send))
        try:
            await self._to_its_end(work)
        finally:
            loss = await self._request.release()
            self._inbox.tell_disconnect()
            await self._outbox.close()
        try:
            await self._answer(work, loss)
        finally:
            self._inbox.close()

    async def _to_its_end(self, work: asyncio.Future[None]) -> None:
        """Waits for the application.

        Work inside a lock is not cancelled, whoever wants it to be. That somebody did is said when
        it has ended.
        """
        cancelled = False
        while not work.done():
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError:
                cancelled = True
                if not self._request.any_held:
                    work.cancel()
        if cancelled:
            if not work.cancelled() and (error := work.exception()):
                logger.error("a request that was cancelled failed", exc_info=error)
            raise asyncio.CancelledError

    async def _answer(self, work: asyncio.Future[None], loss: LeaseLost | None) -> None:
        error = work.exception()
        if error is None and loss is None:
            await self._outbox.let_go()
        elif error is None and loss is not None:
            await self._answer_loss(loss)
        elif error is not None:
            await self._answer_error(error)

    async def _answer_loss(self, loss: LeaseLost) -> None:
        if self._outbox.sent:
            logger.error("a response was sent before it was known that the %s", loss)
            await self._outbox.let_go()
            return
        await self._answer_problem(problem_of(loss))

    async def _answer_error(self, error: BaseException) -> None:
        """An error that got out of the application: what it had answered before may be untrue."""
        if isinstance(error, ClientGone):
            return
        if self._outbox.sent or self._scope["type"] != "http":
            raise error
        problem = problem_of(error)
        if problem:
            await self._answer_problem(problem)
            return
        if (self._outbox.held_status or 0) >= 500:
            await self._outbox.let_go()
        raise error

    async def _answer_problem(self, problem: Problem | None) -> None:
        assert problem is not None
        self._outbox.discard()
        body = problem.body
        headers = {**problem.headers, "Content-Type": problem.media_type}
        await self._outbox.send(
            {
                "type": "http.response.start",
                "status": problem.status,
                "headers": [
                    *((name.lower().encode(), value.encode()) for name, value in headers.items()),
                    (b"content-length", str(len(body)).encode()),
                ],
            }
        )
        await self._outbox.send({"type": "http.response.body", "body": body})
