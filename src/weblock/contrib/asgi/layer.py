"""The outer layer: it runs the application, then releases, and only then answers.

The application commits its work before it returns, whatever the order of its parts; so a lock that
is released after that is released after the commit. And since the answer is held back until then,
a slow client cannot keep the lock, and a commit that fails cannot have been reported as done.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from ..._options import Duration
from ..._platform.logs import logger
from ...aio import AsyncLocks
from ...errors import LeaseLost
from .inbox import Inbox
from .outbox import Outbox
from .policy import Policy, policy_of
from .problems import problem_of
from .protocol import App, Message, Receive, Scope, Send
from .request import SCOPE_KEY, RequestLocks
from .waiting import ClientGone


class RequestLayer:
    """ASGI middleware that owns the leases of each request.

    A complete response waits for the application to return, since work that has not been committed
    must not be reported as done. ``hold_back`` limits that to so many seconds: after that it is sent,
    and what follows it, background tasks say, still runs inside the lock.

    With ``owns_locks``, the locks free their connections when the application shuts down; they open
    again when they are used again. ``before_start`` is called before the first request is
    served: what it raises is why the application does not start. ``answer`` gives the response to an
    error of weblock, instead of its problem, where the application has not given one.
    """

    def __init__(
        self,
        app: App,
        locks: AsyncLocks,
        *,
        hold_back: Duration | None = None,
        owns_locks: bool = False,
        before_start: Callable[[], None] | None = None,
        answer: Callable[[BaseException], App | None] = problem_of,
    ) -> None:
        self._app = app
        self._locks = locks
        self._policy = policy_of(hold_back)
        self._owns_locks = owns_locks
        self._before_start = before_start
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or passes on what is none."""
        if self._before_start:
            await self._start(self._before_start, scope, receive, send)
        if scope["type"] in ("http", "websocket"):
            await self.serve(self._app, scope, receive, send)
        elif scope["type"] == "lifespan" and self._owns_locks:
            await self._live(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def serve(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Has ``app`` serve one request or websocket, and releases what it has acquired."""
        if self._is_inside_another(scope):
            await app(scope, receive, send)
        else:
            exchange = _Exchange(self._locks, self._policy, scope, receive, send)
            await exchange.run(app, self._answer)

    def _is_inside_another(self, scope: Scope) -> bool:
        """Whether a layer on the same locks, farther out, has this request already."""
        outer = scope.get(SCOPE_KEY)
        return isinstance(outer, RequestLocks) and outer.locks is self._locks and not outer.over

    async def _start(
        self, before_start: Callable[[], None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            before_start()
        except Exception as error:
            if scope["type"] == "lifespan":  # Else the server would take us to know no lifespan.
                await receive()
                await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        self._before_start = None

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def rest_and_send(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                await self._rest()  # A server may cancel us when it has had this.
            await send(message)

        # An application that returns or raises here knows no lifespan, and serves requests all the
        # same; or it has failed to start. Either way nobody tells when the locks are needed no more.
        await self._app(scope, receive, rest_and_send)

    async def _rest(self) -> None:
        await asyncio.to_thread(self._locks._rest)  # noqa: SLF001 - for those who own the locks


class _Exchange:
    """One request and its response."""

    __slots__ = ("_answer_to", "_ended", "_inbox", "_outbox", "_receive", "_request", "_scope")

    def __init__(
        self, locks: AsyncLocks, policy: Policy, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._ended: asyncio.Future[None] | None = None
        self._scope = scope
        self._receive = receive
        self._inbox = Inbox(receive)
        self._request = RequestLocks(locks, scope, self._inbox, policy)
        self._outbox = Outbox(send, self._request, self._inbox)

    async def run(self, app: App, answer_to: Callable[[BaseException], App | None]) -> None:
        """Serves the request, in a task of its own: what cancels ours must not cancel locked work.

        So it is for every request, since nobody can tell beforehand which one will lock.
        """
        self._answer_to = answer_to
        self._scope[SCOPE_KEY] = self._request
        try:
            await self._work_apart(app)
        except asyncio.CancelledError:
            self._outbox.abort()
            raise
        except Exception as error:  # noqa: BLE001 - it is raised again, unless it is answered
            await self._answer_error(error)
        finally:
            self._inbox.close()
            if self._outbox.busy:
                await self._outbox.close()

    async def _work_apart(self, app: App) -> None:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        work = _begun(self._work(app), loop)
        await self._to_its_end(work, self._ended)
        await self._answer(work.result())

    async def _work(self, app: App) -> LeaseLost | None:
        """Runs the application, and releases when it has ended in whatever way."""
        self._request.begin()
        loss = None
        try:
            await app(self._scope, self._inbox.receive, self._outbox.send)
        except BaseException as error:
            if not self._request.interrupted:
                raise
            if not isinstance(error, asyncio.CancelledError):
                logger.warning("a request whose lease was lost failed", exc_info=error)
        finally:
            loss = await self._request.release()
            self._inbox.tell_disconnect()
            if (
                self._ended and not self._ended.done()
            ):  # It is done where the waiting was cancelled.
                self._ended.set_result(None)
        return loss

    async def _to_its_end(
        self, work: asyncio.Task[LeaseLost | None], ended: asyncio.Future[None]
    ) -> None:
        """Waits for the application.

        Work inside a lock is not cancelled, whoever wants it to be, but it waits for no other lock.
        That somebody cancelled it is said when it has ended.
        """
        cancelled = False
        while not work.done():
            try:
                # The first is the cheaper one, but nobody tells it of work that never began.
                await (_end_of(work) if cancelled else ended)
            except asyncio.CancelledError:
                cancelled = True
                if self._request.any_held and not self._request.streams:
                    self._request.stop_waiting()
                else:
                    work.cancel()
        if cancelled:
            if not work.cancelled() and (error := work.exception()):
                logger.error("a request that was cancelled failed", exc_info=error)
            raise asyncio.CancelledError

    async def _answer(self, loss: LeaseLost | None) -> None:
        if loss:
            await self._answer_loss(loss)
        elif self._outbox.busy:
            await self._outbox.finish()

    async def _answer_loss(self, loss: LeaseLost) -> None:
        if self._outbox.sent:
            logger.error("a response was sent before it was known that the %s", loss)
            await self._close_websocket(loss)
        elif self._outbox.promises:
            await self._answer_problem(loss)
        await self._outbox.finish()

    async def _answer_error(self, error: BaseException) -> None:
        """Of an error that got out of the application: what it has answered may be untrue."""
        if isinstance(error, RuntimeError) and error.__cause__:
            # So Starlette wraps an error that an application inside the application has answered.
            error = _known(error.__cause__) or error
        if isinstance(error, ClientGone):
            return
        if _known(error) and not self._outbox.sent:
            await self._answer_problem(error)
            return
        if _known(error) and await self._close_websocket(error):
            return
        if not self._outbox.promises:
            await self._outbox.finish()
        raise error

    async def _close_websocket(self, error: BaseException) -> bool:
        """Tells the client of a websocket that was accepted; whether this is one."""
        problem = problem_of(error)
        is_open = self._scope["type"] == "websocket" and not self._outbox.closed
        if is_open and problem:
            await self._outbox.send(problem.as_close())
        return is_open

    async def _answer_problem(self, error: BaseException) -> None:
        self._outbox.discard()
        if answer := self._answer_to(error):
            await answer(self._scope, self._receive, self._outbox.send)


def _begun(
    work: Coroutine[Any, Any, LeaseLost | None], loop: asyncio.AbstractEventLoop
) -> asyncio.Task[LeaseLost | None]:
    """A task of the work. From Python 3.12 on it begins at once, which spares it a turn of the loop."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)


async def _end_of(work: asyncio.Task[LeaseLost | None]) -> None:
    await asyncio.wait({work})


def _known(error: BaseException) -> BaseException | None:
    return error if isinstance(error, ClientGone) or problem_of(error) else None
