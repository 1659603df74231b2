"""``Depends(idempotent(caller=current_user, session=get_session))``: a request is executed once.

The response is complete when it leaves the route, inside of all middleware: so the innermost middleware
(``replaying``) keeps it back until its answer is stored and the work committed. It also sends stored answers. All
other middleware sees an ordinary response, each time.
"""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Unpack

import anyio
from fastapi import (
    BackgroundTasks,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Request,
    params,
)
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from ..._adapting import KeptTexts
from ...aio import AsyncLocks
from ...errors import ConfigurationError, LockTimeout, WeblockError
from ..asgi import AsyncRequestLocks, request_locks
from ..asgi.layer import note, send_answer
from ..asgi.protocol import App, Message, Receive, Scope, Send
from ..asgi.request import SCOPE_KEY
from ..kit import Execution, shown
from ..kit.idempotency import (
    Asked,
    IdempotencyOptions,
    IdempotencySpec,
    Replay,
    body_consumed,
    form_parts,
)
from ..kit.once import LONGEST, for_engine

_EXCHANGE: Final = "weblock.exchange"
"""Where a scope has its ``_Exchange``."""


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
        **options: ``wait``, ``header``, ``keep``, ``max_answers`` and ``max_body``: see
            ``IdempotencyOptions``.

    Raises:
        ConfigurationError: An option cannot work.
        TypeError: ``session`` is no dependency.
    """
    stores: object = store
    if stores not in ("database", "engine") or (stores == "engine" and session):
        raise ConfigurationError(
            f'idempotent(store={stores!r:.80}) must be "database", with session=get_session, or "engine",'
            " without a session"
        )
    if store == "engine":
        options = {"max_body": LONGEST, **options}
    functions: dict[str, object] = {"caller": caller}
    if store == "database":
        functions["session"] = session
    for name, function in functions.items():
        if isinstance(function, params.Depends) or not (callable(function) or name == "caller"):
            raise TypeError(
                f"idempotent({name}=...) takes the function of a dependency, not called and without Depends,"
                f" and was given {shown(function)}: write idempotent(caller=current_user, session=get_session)"
            )
    spec = IdempotentDependency.written(caller, session=session, **options)  # type: ignore[call-arg]
    return spec if session else for_engine(spec)


@dataclass(frozen=True, repr=False)
class IdempotentDependency(IdempotencySpec):
    """A description of what is executed once, which ``idempotent`` returns.

    As a dependency it gives the session. ``replaying`` commits.
    """

    session: Callable[..., Any] | None = None
    """The dependency that gives the session; without one, the engine stores the answers."""

    def texts(self, locks: AsyncLocks) -> KeptTexts:
        """Return where the engine keeps the answers. Raises ``ConfigurationError`` if it keeps none."""
        return KeptTexts(locks, 'idempotent(store="engine")')

    @property
    def __signature__(self) -> inspect.Signature:
        """What FastAPI solves before it calls this, in this order: a session is opened last."""
        key = Annotated[str | None, Header(alias=self.header, description=_DESCRIPTION)]
        needed: dict[str, Any] = {"request": Request, "background": BackgroundTasks, "key": key}
        if callable(self.caller):
            needed["caller"] = Annotated[Any, Depends(self.caller)]
        if self.session:
            needed["session"] = Annotated[Any, Depends(self.session)]
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
            for name, kind in needed.items()
        ]
        parameters[2] = parameters[2].replace(default=None)
        return inspect.Signature(parameters)

    async def __call__(
        self,
        *,
        request: Request,
        background: BackgroundTasks,
        session: Any = None,
        caller: object = None,
        key: str | None = None,  # noqa: ARG002 - it is there for OpenAPI, and read with others of its name
    ) -> AsyncIterator[Any]:
        """Give the session of a request that is to be executed. Raises ``Replay`` if one was before."""
        exchange: _Exchange | None = request.scope.get(_EXCHANGE)
        if exchange is None or exchange.once or exchange.execution:
            why = "it is used twice in a route" if exchange else "weblock was not installed before"
            raise ConfigurationError(
                f"idempotent() cannot serve {request.method} {request.scope['path']:.100}: {why}. Call"
                " install(app), and add its routes before the application starts",
                code="idempotency",
            )
        asked = self.asked(
            caller=caller,
            method=request.method,
            path=request.scope["path"],
            sent=request.headers.getlist(self.header),
            parts=[request.scope["query_string"], *await _parts_of(request, exchange)],
        )
        locks, innermost = request_locks(request.scope), request.scope[SCOPE_KEY]
        innermost.hold_back(lambda: background.tasks)
        if self.session is None:
            async with self._kept_by_engine(exchange, request, asked):
                yield None
            return
        from ..sqlalchemy.idempotency import OneTransaction, session_of
        from ..sqlalchemy.sessions import end_reading_of, leave_as_read, read_all_again, run_with

        target = session_of(session)
        once, ended = (
            OneTransaction(target, self, asked, locks.locks),
            await end_reading_of(session),
        )

        async def run(work: Callable[..., Any], *given: object) -> Any:
            return await run_with(lambda _session: work(*given), target)

        try:
            try:
                await locks.hold(self.keys_of(asked), self.options)
                found = await run(once.begin)
            except LockTimeout as busy:
                # The other request may have been committed, and be sending its answer.
                found = await run(once.find, busy)
        except BaseException:
            leave_as_read([ended])
            raise
        if found:
            exchange.replay = Replay(found)
            raise exchange.replay
        exchange.once, exchange.run, exchange.spec, exchange.locks = once, run, self, locks
        try:
            await read_all_again([ended])
            yield session
        except BaseException:
            await exchange.close()
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await request.close()

    @asynccontextmanager
    async def _kept_by_engine(
        self, exchange: "_Exchange", request: Request, asked: Asked
    ) -> AsyncIterator[None]:
        """Have a request executed in the block, and its answer kept when the application has ended."""
        locks = request_locks(request.scope)
        execution = Execution(self.texts(locks.locks), self, asked, locks, keeps_errors=True)
        if found := await execution.begin(locks.hold):
            exchange.replay = Replay(found)
            raise exchange.replay
        exchange.execution = execution
        try:
            yield
        except BaseException:
            exchange.execution = None  # What was raised is not kept.
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await request.close()


_DESCRIPTION: Final = (
    "Required. A new random string, such as a UUID, for each operation, and the same string when the"
    " request is sent again: the operation is then executed once."
)


async def _parts_of(request: Request, exchange: "_Exchange") -> list[bytes]:
    """Return the body of a request; of a form its parts, whatever separates them.

    Raises ``ConfigurationError`` if the application has read some of it as a stream.
    """
    content_type, before = request.headers.get("content-type", ""), exchange.received
    has_body = (
        request.headers.get("content-length", "0") != "0"
    )  # Middleware may have made it shorter.
    kind = content_type.partition(";")[0].strip().lower()
    exchange.is_asking = True
    try:
        if kind != "multipart/form-data":
            with suppress(RuntimeError):  # FastAPI has parsed a form.
                body = await request.body()
                if len(body) == exchange.received and (body or not has_body):
                    return [body]
        if kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
            sent = (await request.form()).multi_items()
            fields = [(name, value) for name, value in sent if isinstance(value, str)]
            files = [
                (name, value.filename, value.content_type, value.file)
                for name, value in sent
                if isinstance(value, UploadFile)
            ]
            size = exchange.received
            if before in (0, size) and (size or not has_body):
                parts = await run_in_threadpool(form_parts, content_type, size, fields, files)
                if parts is not None:
                    return parts
    except (RuntimeError, HTTPException):
        if not before:
            raise
    finally:
        exchange.is_asking = False
    raise body_consumed("`await request.body()` instead of request.stream()")


def replaying(app: App, *, of: FastAPI, used_by: Callable[[FastAPI], bool]) -> App:
    """Return the innermost middleware of an application; the application, if it has no idempotent route."""
    if not used_by(of):
        return app

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        scope[_EXCHANGE] = exchange = _Exchange(receive, send)
        try:
            await app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if exchange.replay is None:
                # So Starlette wraps an error that is raised when the response is complete.
                known = error.__cause__ if isinstance(error, RuntimeError) else None
                if isinstance(known, WeblockError):
                    raise known from None
                raise
        finally:
            await exchange.close()
        if exchange.replay is not None:
            await send_answer(send, exchange.replay.answer)

    return serve


class _Exchange:
    """The messages of one request, of which the response is sent when its work was committed."""

    once: Any = None
    """The ``OneTransaction`` of an idempotent request."""
    execution: Execution | None = None
    """An idempotent request whose answer the engine keeps, when the application has ended."""
    run: Callable[..., Any]
    """Runs what uses the session, where the session may be used."""
    spec: IdempotencySpec
    locks: AsyncRequestLocks
    replay: Replay | None = None
    """Why the application ends: its response, or that of a mounted application to the error, is dropped."""
    received = 0
    """Bytes of the body that the application has."""
    is_asking = False
    """Whether ``_parts_of`` reads the body, and not the application."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._start: Message = {}
        self._is_whole = False

    async def receive(self) -> Message:
        """Return the next message; the application's ``receive``."""
        if (
            self._is_whole and self.is_asking
        ):  # The next one is a disconnect, for which it would wait.
            return {"type": "http.request", "body": b"", "more_body": False}
        message = await self._receive()
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
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
        if self.once is not None and not self.once.ended:
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
                await self._complete(None if streams else message.get("body", b""))
                await self._send(self._start)
        await self._send(message)

    async def _complete(self, body: bytes | None) -> None:
        headers = [_decoded(pair) for pair in self._start.get("headers", ())]
        answer = self.spec.answer_of(self._start["status"], headers, body)
        if answer is None:
            await self.run(self.once.roll_back)
            return
        self.locks.check_done()
        try:
            await self.run(self.once.commit, answer)
        except Replay as replay:
            self.replay = replay
            raise

    async def close(self) -> None:
        """Roll back what was not committed: the application has failed, or has ended without a response."""
        if self.once is not None and not self.once.ended:
            with anyio.CancelScope(shield=True):
                await self.run(self.once.roll_back)


def _decoded(pair: tuple[bytes, bytes]) -> tuple[str, str]:
    name, value = pair
    return name.decode("latin-1"), value.decode("latin-1")
