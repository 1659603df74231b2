"""``Depends(idempotent(caller=current_user, session=get_session))``: a request is executed once.

The response is complete when it leaves the route, inside of all middleware: so the innermost middleware
(``replaying``) keeps it back until its answer is stored and the work committed. It also sends stored answers. All
other middleware sees an ordinary response, each time.
"""

import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Unpack

import anyio
from fastapi import BackgroundTasks, Header, Request, params

from ..._runtime.runtimes import drive
from ...errors import ConfigurationError, LockTimeout, WeblockError
from ...keys import signature_of
from ..asgi import request_locks
from ..asgi.layer import note, send_answer
from ..asgi.protocol import App, Message, Receive, Scope, Send
from ..asgi.request import SCOPE_KEY
from ..kit import BodyDigest, ClientGone, Execution, shown
from ..kit.idempotency import IdempotencyOptions, IdempotencySpec, Replay, body_consumed
from .declared import needed_by, needing

if TYPE_CHECKING:
    from ..sqlalchemy.idempotency import OneTransaction

_EXCHANGE: Final = "weblock.exchange"
"""Where a scope has its ``_Exchange``."""

_KEY: Final = Header(
    alias=IdempotencySpec.header,
    description=(
        "Required. A new random string, such as a UUID, for each operation, and the same string when the"
        " request is sent again: the operation is then executed once."
    ),
)


def idempotent(
    *,
    caller: Callable[..., Any] | str,
    session: Callable[..., Any] | None = None,
    store: Literal["database", "engine"] = "database",
    **options: Unpack[IdempotencyOptions],
) -> "IdempotentDependency":
    """Return a dependency that gives the session of another, and executes each request once.

    A request that is sent again with the same ``Idempotency-Key`` gets the stored answer to the first one,
    marked ``Idempotency-Replayed: true``. The answer is stored in the session's database, in the transaction of
    the work: weblock commits both when the response is complete, and what the application commits before is a
    savepoint. An exception that leaves the endpoint, and a response with 409, 429 or from 500 on, roll
    everything back.

    Args:
        caller: A dependency that returns the id of the user: a string, an int or a UUID. Keys of different
            users are different. ``"anonymous"`` if all clients share their keys, and may read the answers of
            one another.
        session: The dependency that gives an SQLAlchemy ``Session`` or ``AsyncSession``.
        store: ``"engine"`` stores the answer in the engine of the locks, for work in another kind of database:
            without a session. It is stored when the work was committed, so that **a request is executed again
            if its worker dies in between**. A response of more than ``max_body`` bytes (64 KiB) is sent, and not stored.
        **options: ``wait``, ``keep``, ``max_answers`` and ``max_body``: see
            ``IdempotencyOptions``.

    Raises:
        ConfigurationError: An option cannot work.
        TypeError: ``session`` is no dependency.
    """
    functions: dict[str, object] = {"caller": caller}
    if session or store == "database":
        functions["session"] = session
    for name, function in functions.items():
        if isinstance(function, params.Depends) or not (callable(function) or name == "caller"):
            raise TypeError(
                f"idempotent({name}=...) takes the function of a dependency, not called and without Depends,"
                f" and was given {shown(function)}: write idempotent(caller=current_user, session=get_session)"
            )
    if session and store == "engine":
        raise ConfigurationError(
            'idempotent(store="engine") stores no answer in a database: leave session= out, and give'
            " Depends(get_session) to the endpoint"
        )
    more: dict[str, Any] = {**options, "store": store, "session": session}
    return IdempotentDependency.written(caller, **more)


@dataclass(frozen=True, repr=False)
class IdempotentDependency(IdempotencySpec):
    """A description of what is executed once, which ``idempotent`` returns.

    As a dependency it gives the session. ``replaying`` commits.
    """

    session: Callable[..., Any] | None = None
    """The dependency that gives the session; without one, the engine stores the answers."""

    @property
    def __signature__(self) -> inspect.Signature:
        """What FastAPI solves before it calls this, in this order: a session is opened last."""
        needed = {"caller": self.caller} if callable(self.caller) else {}
        if self.session:
            needed["session"] = self.session
        return needing(needed, signature_of(self.__call__))

    async def __call__(
        self,
        *,
        request: Request,
        background: BackgroundTasks,
        key: Annotated[str | None, _KEY] = None,  # noqa: ARG002 - for OpenAPI: see ``asked``
        **needed: Any,
    ) -> AsyncIterator[Any]:
        """Give the session of a request that is to be executed. Raises ``Replay`` if one was before."""
        if overrides := getattr(request.scope.get("app"), "dependency_overrides", None):
            from .installation import locking_routes

            of_routes = [
                once for found in locking_routes(request.app.routes) for once in found.once
            ]
            for other in overrides:  # FastAPI ignores one of no route.
                if isinstance(other, IdempotentDependency) and other not in of_routes:
                    raise ConfigurationError(
                        "dependency_overrides has an idempotent() that no route has: repeat the arguments"
                        f" of the one of {request.method} {request.scope['path']:.100}, or use the same"
                        " object in both places"
                    )
        session = needed.get("session")
        exchange: _Exchange | None = request.scope.get(_EXCHANGE)
        if exchange is None or exchange.once or exchange.execution:
            why = "it is used twice in a route" if exchange else "weblock was not installed before"
            raise ConfigurationError(
                f"idempotent() cannot serve {request.method} {request.scope['path']:.100}: {why}. Call"
                " install(app), and add its routes before the application starts",
                code="idempotency",
            )
        asked = self.asked(
            caller=needed.get("caller"),
            method=request.method,
            path=request.scope["path"],
            sent=request.headers.getlist(self.header),
            parts=[request.scope["query_string"], await exchange.digest_of_body(request.scope)],
        )
        held, innermost = request_locks(request.scope), request.scope[SCOPE_KEY]
        innermost.hold_back(lambda: background.tasks)
        fresh: AbstractAsyncContextManager[None] = nullcontext()
        if self.session:
            from ..sqlalchemy.idempotency import OneTransaction, session_of
            from ..sqlalchemy.sessions import rows_read_again, run_with

            target = session_of(session)
            # Before it begins: whatever ends the request from then on, rolls it back.
            once = exchange.once = OneTransaction(target, self, asked, held, held.locks)
            exchange.run = lambda work, *given: run_with(lambda _session: work(*given), target)
            fresh = rows_read_again(target)
        else:
            execution = exchange.execution = Execution(
                self.texts(held.locks), self, asked, held, keeps_errors=True
            )
        try:
            async with fresh:
                lease = busy = None
                try:
                    lease = await held.hold(self.keys_of(asked), self.options)
                except LockTimeout as error:
                    busy = error
                if self.session:
                    found = await exchange.run(lambda: drive(once.begin(lease, busy)))
                else:
                    found = await execution.begin(lease, busy)
                if found:
                    exchange.replay = Replay(found)
                    raise exchange.replay
            yield session
        except BaseException:
            await exchange.roll_back()
            raise


def replaying(app: App) -> App:
    """Return the innermost middleware of an application that has an idempotent route."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        scope[_EXCHANGE] = exchange = _Exchange(scope, receive, send)
        try:
            await app(scope, partial(exchange.receive, scope), exchange.send)
        except Exception as error:
            if exchange.replay is None:
                # So Starlette wraps an error that is raised when the response is complete.
                known = error.__cause__ if isinstance(error, RuntimeError) else None
                if isinstance(known, WeblockError):
                    raise known from None
                raise
        finally:
            if exchange.once:  # The application may have ended without a response.
                await exchange.roll_back()
        if exchange.replay is not None:
            await send_answer(send, exchange.replay.answer)

    return serve


def _is_other(scope: Scope) -> bool:
    """Return whether it is known by now that the route of a request is not idempotent.

    Middleware of what is mounted may read the body before it is known which route serves the request.
    """
    # Since FastAPI 0.137, another object has what ``include_router`` adds to the route.
    places: list[Any] = [scope.get("route")]
    places.append(scope.get("fastapi", {}).get("effective_route_context"))
    found = [each.dependant for each in places if hasattr(each, "dependant")]
    needed = [each.call for dependant in found for each in needed_by(dependant)]
    return bool(found) and not any(isinstance(each, IdempotentDependency) for each in needed)


class _Exchange:
    """The messages of one request, of which the response is sent when its work was committed."""

    once: "OneTransaction | None" = None
    """The work of an idempotent request whose answer its database stores."""
    execution: Execution | None = None
    """An idempotent request whose answer the engine keeps, when the application has ended."""
    run: Callable[..., Any]
    """Runs what uses the session, where the session may be used."""
    replay: Replay | None = None
    """Why the application ends: its response, or that of a mounted application to the error, is dropped."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = dict(scope["headers"])
        # Middleware may have made the body shorter, but not empty.
        self._has_body = fields.get(b"content-length", b"0") != b"0"
        self._body: BodyDigest | None = BodyDigest(
            fields.get(b"content-type", b"").decode("latin-1")
        )
        """``None`` once it is known that the request is not idempotent."""
        self._is_whole = False
        self._ahead: deque[Message] = deque()
        """The messages that were read before the application has asked for them."""
        self._receive = receive
        self._send = send
        self._start: Message = {}

    async def digest_of_body(self, scope: Scope) -> bytes:
        """Return a digest of the body, of which the application may have received any part.

        Raises ``ClientGone``, and ``ConfigurationError`` if middleware has taken the body away.
        """
        while not self._is_whole:
            message = await self._receive_next(scope)
            if message["type"] != "http.request":
                raise ClientGone
            self._ahead.append(message)
        if self._body is None or (self._has_body and not self._body.size):
            raise body_consumed("`await request.body()` instead of request.stream() in middleware")
        return self._body.digest()

    async def receive(self, scope: Scope) -> Message:
        """Return the next message; the application's ``receive``."""
        return self._ahead.popleft() if self._ahead else await self._receive_next(scope)

    async def _receive_next(self, scope: Scope) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            if self._body and _is_other(scope):
                self._body = None
            if self._body:
                self._body.add(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Keep a message back until the response is complete; the application's ``send``."""
        kind = message["type"]
        if self.replay is not None:
            return
        if self.execution:
            await note(self.execution, self._send, message)
            return
        if self.once and self.once.is_joined:
            if kind == "http.response.start":
                self._start = message
                return
            # Others than these announce something, and are no part of the response.
            if kind in (
                "http.response.body",
                "http.response.pathsend",
                "http.response.zerocopysend",
            ):
                streams = kind != "http.response.body" or message.get("more_body", False)
                headers = [
                    (name.decode("latin-1"), value.decode("latin-1"))
                    for name, value in self._start.get("headers", ())
                ]
                body = None if streams else message.get("body", b"")
                try:
                    await self.run(self.once.note, self._start["status"], headers, body)
                except Replay as replay:
                    self.replay = replay
                    raise
                await self._send(self._start)
        await self._send(message)

    async def roll_back(self) -> None:
        """Undo what was not committed, and store no answer."""
        # What follows is not noted. What has been sent is reported when the response ends.
        self.execution = None
        if self.once and self.once.is_joined:
            with anyio.CancelScope(shield=True):
                await self.run(self.once.roll_back)
