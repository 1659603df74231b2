"""The outer layer: it runs the application, then releases, and only then answers.

The application commits its work before it returns, whatever the order of its parts; so a lock that
is released after that is released after the commit. And since the answer is held back until then,
a slow client cannot keep the lock, and a commit that fails cannot have been reported as done.

The way of a request is a line: ``Inbox`` (what the client sends), ``AsyncRequestLocks`` (what is acquired),
the application, the release, ``Outbox`` (what the client is sent).

``LockMiddleware`` runs in a layer of its own, and acquires what its rules say.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Unpack
from weakref import getweakrefcount

from ..._adapting import begin_recovery, rest
from ..._options import Duration, LocksOptions
from ..._platform.logs import logger
from ..._platform.threads import beside_loop
from ..._runtime.runtimes import part_of
from ...aio import AsyncLocks
from ...errors import LeaseLost, LockTimeout, StrangePath
from ..kit import (
    BODY_WAIT,
    SENT_TOO_EARLY,
    BodyDigest,
    ClientGone,
    Execution,
    Match,
    Problem,
    Rewrite,
    RuleMiddleware,
    Rules,
    answers,
    innermost,
    opened,
    problem_of,
    seconds_or_none,
    to_its_end,
    watch_sessions,
)
from ..kit.idempotency import Answer
from .client import Inbox, Outbox
from .protocol import App, Message, ProblemResponse, Receive, Scope, Send, close_with
from .request import SCOPE_KEY, AsyncRequestLocks

Respond = Callable[[BaseException], App | None]
"""Returns the application that responds to an error; ``None`` if the error is not weblock's."""


class RequestLayer:
    """ASGI middleware that owns the leases of each request.

    A complete response waits for the application to return, since work that has not been committed
    must not be reported as done. ``hold_back`` limits that to so many seconds: after that it is sent,
    and what follows it, background tasks say, still runs inside the lock.

    A request that locks waits for its body for ``body_wait`` seconds, for each 64 KiB: see ``kit.bodies``.

    With ``of_rules``, it acquires for the rules of a middleware, and an application inside may have locks
    of its own. With ``owns_locks``, the locks free their connections when the last server that has
    started the application shuts it down; they open again when they are used again. ``before_start``
    is called when the application has started, or before its first request: what it raises is why
    the application does not start. ``answer`` gives the response to an error of weblock, instead of
    its problem, where the application has not given one.
    """

    def __init__(
        self,
        app: App,
        locks: AsyncLocks,
        *,
        hold_back: Duration | None = None,
        body_wait: Duration | None = BODY_WAIT,
        owns_locks: bool = False,
        of_rules: bool = False,
        before_start: Callable[[], None] | None = None,
        answer: Respond | None = None,
    ) -> None:
        self._app = app
        self.locks = locks
        self.of_rules = of_rules
        self.hold_back = seconds_or_none("hold_back", hold_back)
        self.body_wait = seconds_or_none("body_wait", body_wait)
        self.answer = answer or answers(ProblemResponse)
        self._owns_locks = owns_locks
        self._lifespans: Final[set[object]] = set()
        """One for each server that has started the application and not yet shut it down."""
        self._before_start = before_start
        watch_sessions()

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, app: App | None = None
    ) -> None:
        """Let ``app`` serve a request or websocket, and release what it has acquired; pass anything else on.

        ``app`` is the application that the layer was made for, unless another one is given.
        """
        app = app or self._app
        if scope["type"] not in ("http", "websocket"):
            lives = scope["type"] == "lifespan"
            await (self._live if lives else app)(scope, receive, send)
            return
        if self._before_start:
            self._start()
        outer = scope.get(SCOPE_KEY)
        if outer is not None:
            if outer.over:
                outer = innermost(AsyncRequestLocks, outer.book)
            if outer and outer.locks is self.locks:
                scope[SCOPE_KEY] = outer
                await app(scope, receive, send)  # A layer farther out, on the same locks, releases.
                return
        loop = asyncio.get_running_loop()
        by_anyio = _scope_of_anyio(loop, outer)
        if by_anyio:
            app = partial(_in_scope, by_anyio, app)
        inbox = Inbox(receive, scope, self.body_wait)
        outbox = Outbox(send, inbox, loop, self.hold_back)
        request = AsyncRequestLocks(self.locks, scope, inbox, outbox, within=outer)
        request.of_rules = self.of_rules
        scope[SCOPE_KEY] = request
        ended: asyncio.Future[None] = asyncio.Future(loop=loop)
        try:
            # In a task of its own, also where nothing is locked: nobody knows that beforehand, and
            # what cancels ours must not cancel locked work.
            work = _work(app, scope, request, inbox, outbox, ended=ended)
            instead = await to_its_end(work, ended, may_end=request.leave, scope=by_anyio)
            if instead:
                await self._answer_instead(instead, scope, receive, request, outbox)
            if outbox.leases is not None:
                await outbox.finish()
        except asyncio.CancelledError:
            await outbox.abort()
            raise
        except Exception as error:  # noqa: BLE001 - it is raised again, unless it is answered
            await self._answer_error(error, scope, receive, outbox)
        finally:
            inbox.close()
            outbox.end()

    async def _answer_instead(
        self,
        instead: LeaseLost | Problem,
        scope: Scope,
        receive: Receive,
        request: AsyncRequestLocks,
        outbox: Outbox,
    ) -> None:
        """Answer the loss of a lease, or a client that has left: what is around expects a response."""
        if isinstance(instead, Problem):
            outbox.discard()
            if scope["type"] == "http" and not outbox.sent:
                await ProblemResponse(instead)(scope, receive, outbox.send)
        elif outbox.sent:
            logger.error(SENT_TOO_EARLY, instead.message)
            await _close_websocket(instead, scope, outbox)
        elif outbox.promises or request.interrupted:
            await self._answer_problem(instead, scope, receive, outbox)

    async def _answer_error(
        self, error: BaseException, scope: Scope, receive: Receive, outbox: Outbox
    ) -> None:
        """Answer an error that left the application, whose own response may be untrue."""
        if isinstance(error, RuntimeError) and error.__cause__:
            # So Starlette wraps an error that an application inside the application has answered.
            error = error.__cause__ if problem_of(error.__cause__) else error
        try:
            if problem_of(error) and not outbox.sent:
                await self._answer_problem(error, scope, receive, outbox)
                return
            if problem_of(error) and await _close_websocket(error, scope, outbox):
                return
            if not outbox.promises:
                await outbox.finish()
            raise error
        finally:
            await outbox.close()

    async def _answer_problem(
        self, error: BaseException, scope: Scope, receive: Receive, outbox: Outbox
    ) -> None:
        outbox.discard()
        if answer := self.answer(error):
            await answer(scope, receive, outbox.send)

    def _start(self) -> None:
        if self._before_start:
            self._before_start()
            self._before_start = None
            watch_sessions()  # The application may have made classes of sessions until now.

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        lifespan, fault, recovering = object(), None, None
        self._lifespans.add(lifespan)

        async def send_after_us(message: Message) -> None:
            nonlocal fault, recovering
            kind = message["type"]
            if kind == "lifespan.startup.complete":  # It may have added routes until now.
                try:
                    self._start()
                except Exception as error:  # The application says then that it did not start.
                    fault = {"message": str(error)}
                    raise
                # Not before: nothing connects in a server's parent. An engine that is down delays no start.
                recovering = asyncio.ensure_future(begin_recovery(self.locks))
            elif kind == "lifespan.startup.failed":
                message = {**message, **(fault or {})}
            elif kind.startswith("lifespan.shutdown."):
                # A server may cancel us when it has had this, so we wait for everything before.
                self._lifespans.discard(lifespan)
                await ended(recovering)
                if self._owns_locks:
                    await beside_loop(partial(rest, self.locks, unless=self._lifespans))
            await send(message)

        # An application that returns or raises here knows no lifespan, and serves requests all the
        # same; or it has failed to start. Either way nobody tells when the locks are needed no more.
        try:
            await self._app(scope, receive, send_after_us)
        finally:
            self._lifespans.discard(lifespan)
            await ended(recovering)


async def ended(task: asyncio.Future[None] | None) -> None:
    """Cancel a task and wait for its end."""
    if task and not task.done():
        task.cancel()
        await asyncio.wait({task})


def _is_of_a_client_that_left(error: BaseException) -> bool:
    """Return whether it is ``ClientGone``, or what Starlette's middleware adds without a response."""
    missing = isinstance(error, RuntimeError) and str(error) == "No response returned."
    return missing or isinstance(error, ClientGone)


_PLAIN: Final = 1 if sys.version_info < (3, 14) else 0
"""The weak references to a task that only asyncio knows: it was in the set of all tasks."""


def _scope_of_anyio(loop: asyncio.AbstractEventLoop, outer: object) -> Any:
    """Return a cancel scope for the work if anyio may cancel what waits for it, as a middleware around us.

    To enter one takes as long as all else that a request without a lock needs. anyio finds the scope of a
    task by a weak reference to the task, so one that only asyncio refers to is in no scope. An eager task is
    not in the set of all tasks before it waits; ours is one, when there is an ``outer`` layer.
    """
    anyio = sys.modules.get("anyio")
    is_alone = anyio is None or getweakrefcount(asyncio.current_task(loop)) <= _PLAIN
    if anyio is None or (is_alone and outer is None and loop.get_task_factory() is None):
        return None
    return anyio.CancelScope()


async def _in_scope(
    by_anyio: AbstractContextManager[object], app: App, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run the application in a cancel scope of anyio, so that shields inside of it count."""
    ended_well = False
    try:
        with by_anyio:
            await app(scope, receive, send)
            ended_well = True
    except RuntimeError as error:
        if not ended_well:
            raise
        # As by a ``break`` out of an async generator that yields inside ``anyio.fail_after``.
        logger.warning(
            "a request left a cancel scope of anyio open [weblock.request_failed]", exc_info=error
        )


async def _work(
    app: App,
    scope: Scope,
    request: AsyncRequestLocks,
    inbox: Inbox,
    outbox: Outbox,
    *,
    ended: asyncio.Future[None],
) -> LeaseLost | Problem | None:
    """Run the application, and release when it has ended, however it ended.

    Return the loss of a lease, or the problem of a client that left while its request waited.
    """
    loss = gone = None
    part_of.set(request.book.flow)
    try:
        await app(scope, inbox.receive, outbox.send)
        if request.at_end:
            await outbox.keep_answer()
    except BaseException as error:
        # A task group around an application that ends without a response adds an error.
        if isinstance(error, BaseExceptionGroup) and error.subgroup(ClientGone):
            _, failed = error.split(_is_of_a_client_that_left)
            if failed:
                logger.warning(
                    "a request failed after its client had left [weblock.request_failed]",
                    exc_info=failed,
                )
            error = ClientGone()
        # Starlette wraps an error that an application inside the application has answered.
        known = error.__cause__ if isinstance(error, RuntimeError) else error
        if isinstance(error, ClientGone):
            gone = problem_of(error)
        elif not request.interrupted:
            raise
        elif not isinstance(known, asyncio.CancelledError | LeaseLost):
            logger.warning(
                "a request failed after its lease was lost [weblock.request_failed]",
                exc_info=error,
            )
    finally:
        request.over = True
        if request.at_end and (outbox.keeping or outbox.sent):
            await asyncio.wait({asyncio.ensure_future(outbox.keep_answer())})
        if request.leases:
            loss = await request.release()
        if not ended.done():
            ended.set_result(None)
    return gone or loss


async def _close_websocket(error: BaseException, scope: Scope, outbox: Outbox) -> bool:
    """Close a websocket that was accepted; return whether the request is one."""
    problem = problem_of(error)
    is_open = scope["type"] == "websocket" and not outbox.closed
    if is_open and problem:
        await outbox.send(close_with(problem))
    return is_open


class LockMiddleware(RuleMiddleware[App]):
    """Locks requests by rules: each holds the key of the first rule that matches it.

    ``app`` runs only while the request holds its lease, which is released when ``app`` has
    returned. Meanwhile the response is held back. Requests that no rule matches reach ``app``
    untouched.

    Errors are answered with problem details: 409 for a lock that is not free in time, 400 for a key or a path that
    cannot be read, 408 for a body that does not arrive, and 503 for an engine that is down and a lost lease.

    Args:
        app: The application.
        locks: An ``AsyncLocks``, or an engine's URL and the options of ``LocksOptions``; ``file://`` by
            default. Locks that are created here free their connections when the application shuts down,
            and open again when they are used again.
        rules: ``Rule`` objects or mappings, in a list or by their names; see ``RuleSet``.
        hold_back: For how many seconds, at most, a complete response waits for ``app`` to return;
            without limit by default.
        body_wait: For how many seconds (5), at most, a request that locks waits for the end of its body,
            or for each 64 KiB of it. ``None`` sets no limit, and reads nothing before the lock is acquired.
        rewrite: ``rewrite(problem, error)`` returns the problem with another status, body or
            headers.
        root_path: Rules match the path below it: the one that ``app`` has of its own, as in
            ``FastAPI(root_path="/api")``, or else the server's.

    Raises:
        ConfigurationError: A rule or an option cannot work.
    """

    def __init__(
        self,
        app: App,
        locks: AsyncLocks | str | Sequence[str] = "file://",
        rules: Rules = (),
        *,
        root_path: str | None = None,
        hold_back: Duration | None = None,
        body_wait: Duration | None = BODY_WAIT,
        rewrite: Rewrite | None = None,
        **options: Unpack[LocksOptions],
    ) -> None:
        locks, owned = opened(AsyncLocks, locks, options)
        own = getattr(app, "root_path", None) if root_path is None else root_path
        super().__init__(app, locks, rules, own or "")
        answer = answers(ProblemResponse, rewrite)
        self._layer = RequestLayer(
            app,
            locks,
            hold_back=hold_back,
            body_wait=body_wait,
            owns_locks=owned,
            of_rules=True,
            answer=answer,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or websocket; pass anything else on."""
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self._layer(scope, receive, send)
            return
        method = scope["method"] if kind == "http" else "WEBSOCKET"
        root_path = self.root_path or scope.get("root_path", "")
        found: Match | StrangePath | None
        try:
            found = self.rules.find(method, scope["path"], root_path=root_path)
        except StrangePath as error:
            found = error
        if found is None:
            await self.app(scope, receive, send)
        else:
            inside = partial(self._inside, found)
            await self._layer(scope, receive, send, inside)

    async def _inside(
        self, found: Match | StrangePath, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if isinstance(found, StrangePath):
            raise found  # The layer answers it.
        keys = found.keys(
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=partial(_header, scope),
            scope=scope,
        )
        of_rules: AsyncRequestLocks = scope[SCOPE_KEY]  # The layer has put it there.
        if spec := found.rule.once:
            assert self.texts
            await of_rules.read_ahead()
            body, receive = await _whole(receive, spec.refuse_body)
            digest = BodyDigest(",".join(_header(scope, "content-type")))
            digest.add(body)
            asked = spec.asked_for(
                scope,
                method=scope["method"],
                path=scope["path"],
                sent=_header(scope, spec.header.lower()),
                parts=[scope.get("query_string", b""), digest.digest()],
            )
            execution = Execution(self.texts, spec, asked, of_rules)
            lease = busy = None
            try:
                lease = await of_rules.hold(spec.keys_of(asked), spec.options)
            except LockTimeout as error:
                busy = error
            if answer := await execution.begin(lease, busy):
                await send_answer(send, answer.replayed)
                return
            send = partial(note, execution, send)
        if keys:
            await of_rules.hold(keys, found.rule.lock.options)
        await self.app(scope, receive, send)


async def _whole(receive: Receive, refuse: Callable[[int], None]) -> tuple[bytes, Receive]:
    """Return the body of a request, and a ``receive`` that returns it again, and then what the server sends.

    Raises ``ClientGone``, and what ``refuse`` raises for its size.
    """
    body, goes_on = bytearray(), True
    while goes_on:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        body += message.get("body", b"")
        refuse(len(body))
        goes_on = message.get("more_body", False)
    ahead = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def receive_again() -> Message:
        return ahead.pop() if ahead else await receive()

    return bytes(body), receive_again


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a kept answer."""
    headers = [
        (name.encode("latin-1"), text.encode("latin-1")) for name, text in list(answer.headers)
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def note(execution: Execution, send: Send, message: Message) -> None:
    """Send a message of the application, and note what belongs to its answer."""
    if message["type"] == "http.response.start":
        headers = message.get("headers", ())
        pairs = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        execution.start(message["status"], pairs)
    elif message["type"] == "http.response.body":
        execution.add(message.get("body", b""))
        if not message.get("more_body", False):
            execution.complete()
    elif message["type"] in ("http.response.pathsend", "http.response.zerocopysend"):
        execution.add(None)
    await send(message)


def _header(scope: Scope, wanted: str) -> list[str]:
    name = wanted.encode()
    return [
        value.decode("latin-1")
        for given, value in scope.get("headers", ())
        if given.lower() == name
    ]
