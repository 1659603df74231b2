"""``install``: prepares an application for locks, once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import MutableMapping, Sequence
from typing import Any, Unpack

from fastapi import FastAPI
from fastapi.requests import HTTPConnection, Request
from starlette.middleware import Middleware

from ..._options import Duration, LocksOptions
from ...aio import AsyncLocks
from ...errors import ConfigurationError, WeblockError
from ..asgi import ProblemResponse, RequestLayer
from ..asgi.protocol import App, Receive, Scope, Send
from ..kit import BODY_WAIT, Problem, Rewrite, checked, opened, problem_of, seconds_or_none, shown
from .idempotency import replaying
from .openapi import document, document_mounted
from .routes import check_keys, locking_routes


def install(
    app: FastAPI,
    locks: AsyncLocks | str | Sequence[str] = "file://",
    *,
    hold_back: Duration | None = None,
    body_wait: Duration | None = BODY_WAIT,
    rewrite: Rewrite | None = None,
    **options: Unpack[LocksOptions],
) -> AsyncLocks:
    """Make ``Depends(lock(...))`` work in ``app``, and return its locks.

    ``locks`` is an ``AsyncLocks``, or an engine's URL, with ``options``; without it, ``file://``.
    Locks made here free their connections when the application shuts down, and open again when
    they are used again.

    Call it once, after ``add_middleware`` of your own that commits work: the layer that it adds
    releases when everything inside it has returned. A complete response waits for that, too, so that
    nothing is reported as done before it is committed; ``BackgroundTasks`` run after the response.
    ``hold_back`` limits the waiting to so many seconds, for middleware and background tasks that
    nobody announced. A commit that takes longer, and fails, has then been reported as done.

    ``body_wait`` limits the seconds (5) for which a request that locks waits for the end of its body, or for
    each 64 KiB of it; then it is answered with 408. ``None`` sets no limit, and reads nothing before the
    lock is acquired.

    Errors of weblock are answered with problem details; ``rewrite(problem, error)`` returns them
    with another status, body or headers, and ``@app.exception_handler`` for ``WeblockError``,
    ``LockTimeout`` and so on goes before that. OpenAPI documents what it returns for an example of
    each error.

    Raises ``ConfigurationError`` for options that cannot work, and if ``app`` has its layer already;
    when the application starts, for a key that a route can never fill in.
    """
    if not isinstance(app, FastAPI):
        raise TypeError(
            f"install(app) needs the FastAPI application, and was given {shown(app)}: call it once,"
            " with the application; its routers and mounted applications are served by the same layer"
        )
    if app.middleware_stack is not None:
        raise ConfigurationError(
            "install(app) was called too late, because the application has already started: call it where the"
            " application is created, not in its lifespan",
            code="installation",
        )
    layers: list[object] = [middleware.cls for middleware in app.user_middleware]
    if RequestLayer in layers:
        raise ConfigurationError(
            "weblock is already installed in this application: install it once", code="installation"
        )
    # Starlette makes the layer later; what cannot work is refused now.
    seconds_or_none("hold_back", hold_back)
    seconds_or_none("body_wait", body_wait)
    locks, owned = opened(AsyncLocks, locks, options)
    answers = _Answers(app, rewrite)
    document(app, answers.problem_of)
    app.add_middleware(
        RequestLayer,
        locks=locks,
        hold_back=hold_back,
        body_wait=body_wait,
        owns_locks=owned,
        before_start=functools.partial(_before_start, app, answers, locks),
        answer=answers.of,
    )
    # The innermost middleware: what it keeps back is not compressed, and has no cookies of a session.
    app.user_middleware.append(Middleware(replaying, of=app, used_by=_executes_once))
    return locks


def _executes_once(app: FastAPI) -> bool:
    return any(found.once for found in locking_routes(app.routes))


def _before_start(app: FastAPI, answers: _Answers, locks: AsyncLocks) -> None:
    check_keys(app.routes)
    for once in (each for found in locking_routes(app.routes) for each in found.once):
        if once.session is None:
            once.texts(locks)
    document(app, answers.problem_of)  # It may have been given another ``openapi`` since then.
    document_mounted(app.routes, answers.problem_of)


class _Answers:
    """The responses to errors of weblock: from the application's handlers, or problems."""

    def __init__(self, app: FastAPI, rewrite: Rewrite | None) -> None:
        handlers: MutableMapping[Any, Any] = app.exception_handlers
        self._app = app
        self._handlers = handlers
        self._rewrite = checked(rewrite)
        handlers.setdefault(WeblockError, self._handle)

    def problem_of(self, error: WeblockError) -> Problem | None:
        """Return the problem of ``error``; ``None`` if a handler of the user responds to it."""
        handled = self._handler_of(error) == self._handle
        return problem_of(error, self._rewrite) if handled else None

    def of(self, error: BaseException) -> App | None:
        """Return the response to an error that left the application, as it would answer itself.

        This covers an error of a mounted application, and a loss that no handler in the application
        was there to see.
        """
        handler = self._handler_of(error)
        if handler is None:
            return None

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response: Any
            if scope["type"] == "websocket":
                response = self._response(error)
            else:
                response = handler(Request(scope, receive), error)
                response = await response if inspect.isawaitable(response) else response
            await response(scope, receive, send)

        return answer

    def _handler_of(self, error: BaseException) -> Any:
        """Return the handler of its class, or of its nearest base class of ours."""
        ours = (each for each in type(error).__mro__ if issubclass(each, WeblockError))
        return next((self._handlers[each] for each in ours if each in self._handlers), None)

    async def _handle(self, connection: HTTPConnection, error: WeblockError) -> ProblemResponse:
        """Respond inside the application's middleware, which adds CORS headers and logs."""
        response = self._response(error)
        # A mistake in the program is nothing to a client. The layer knows of a websocket whether it
        # was accepted.
        if response is None or connection.scope["type"] == "websocket":
            raise error
        return response

    def _response(self, error: BaseException) -> ProblemResponse | None:
        problem = problem_of(error, self._rewrite, debug=self._app.debug)
        return ProblemResponse(problem) if problem else None
