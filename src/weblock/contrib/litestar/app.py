"""``LockedLitestar``: an application whose locks are released when its work is committed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from litestar import Litestar, Response
from litestar.exceptions import HTTPException, LitestarException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.utils.path import normalize_path

from ..._options import Duration
from ...aio import AsyncLocks
from ...errors import (
    BodyTimeout,
    ConfigurationError,
    EngineUnavailable,
    InvalidKey,
    LeaseLost,
    LockTimeout,
    WeblockError,
)
from ..asgi import ProblemResponse, RequestLayer
from ..kit import (
    BODY_WAIT,
    Asked,
    Locked,
    Problem,
    Rewrite,
    answers,
    lacking,
    opened,
    problem_of,
    refuse_engine,
)
from .locks import locks_of

ANSWERED: Final = (LockTimeout, EngineUnavailable, LeaseLost, InvalidKey, BodyTimeout)


class LockedLitestar(Litestar):
    """A ``Litestar`` in which ``lock`` works; it takes the arguments of ``Litestar``, and these.

    The lock is released when the application has returned: after ``before_send`` and
    ``after_response``, the cleanup of dependencies and background tasks. A complete response waits for
    that. Errors of weblock are answered with problem details; handlers in ``exception_handlers`` go
    before that.

    Args:
        locks: An ``AsyncLocks``, or an engine's URL; ``file://`` by default. Locks that are created here free
            their connections when the application shuts down.
        hold_back: For how many seconds, at most, a complete response waits for the application to return.
        body_wait: For how many seconds (5), at most, a request that locks waits for the end of its body,
            or for each 64 KiB of it. ``None`` sets no limit, and reads nothing before the lock is acquired.
        rewrite: ``rewrite(problem, error)`` returns the problem with another status, body or headers.

    Raises:
        ConfigurationError: An option cannot work; when the application starts, a key that a route can
            never fill in.
    """

    def __init__(
        self,
        *args: Any,
        locks: AsyncLocks | str | Sequence[str] = "file://",
        hold_back: Duration | None = None,
        body_wait: Duration | None = BODY_WAIT,
        rewrite: Rewrite | None = None,
        **given: Any,
    ) -> None:
        refuse_engine(given)
        self.locks, owned = opened(AsyncLocks, locks, {})
        answer = answers(_response, rewrite)
        handlers = dict(given.pop("exception_handlers", None) or {})
        classes = (each for each in handlers if isinstance(each, type))
        own = tuple(each for each in classes if issubclass(each, WeblockError))
        for error in ANSWERED:
            if not issubclass(error, own):
                handlers[error] = lambda _request, raised: answer(raised)
        super().__init__(*args, exception_handlers=handlers, **given)
        self._layer = RequestLayer(
            self._serve,
            self.locks,
            hold_back=hold_back,
            body_wait=body_wait,
            owns_locks=owned,
            before_start=self._check,
            answer=answers(ProblemResponse, rewrite),
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request, and release what it has acquired."""
        await self._layer(scope, receive, send)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        wrapped = None
        try:
            await super().__call__(scope, receive, send)
        except LitestarException as error:
            wrapped = error.__cause__  # It was raised after the response had begun.
            while isinstance(wrapped, BaseExceptionGroup) and len(wrapped.exceptions) == 1:
                wrapped = wrapped.exceptions[0]  # In the task group of a stream.
            if not problem_of(wrapped):
                raise
        if wrapped:
            raise wrapped

    def _check(self) -> None:
        for found in locked_in(self, None):
            if isinstance(found, ConfigurationError):
                raise found


def _response(problem: Problem) -> Response[bytes]:
    return Response(
        problem.body,
        status_code=problem.status,
        media_type=problem.media_type,
        headers=problem.uncached,
    )


def locked_in(app: object, asked: Asked | None) -> Iterator[Locked | ConfigurationError]:
    """List the handlers that lock, and their errors; of a request, the one that serves it: see ``kit.application``."""
    if not isinstance(app, Litestar):
        return
    own = app.locks if isinstance(app, LockedLitestar) else None
    for what, handler, names in _handlers(app, asked):
        locks = locks_of(handler)
        if locks and own is None:
            yield ConfigurationError(
                f"{what} locks, but the application is not a LockedLitestar", code="installation"
            )
        if asked and not locks:
            yield Locked(what)
        for each in locks:
            yield Locked(what, each.keys, each.options, own)
            for template in each.templates:
                for source in template.sources.values():
                    if source.kind == "path" and source.name not in names:
                        yield lacking(f"{what}: {each!r}", "path parameter", source.name, names)


def _handlers(
    app: Litestar, asked: Asked | None
) -> Iterator[tuple[str, BaseRouteHandler, Collection[str]]]:
    """Yield handlers, each with what it serves and the names of its path parameters."""
    if asked:
        method: Any = None if asked.method == "WEBSOCKET" else asked.method
        path = normalize_path(asked.path)
        try:
            found = app.asgi_router.handle_routing(path=path, method=method)
        except HTTPException:  # Nothing serves it.
            return
        _, handler, _, values, template = found
        yield f"{asked.method} {template}", handler, values
        return
    for route in app.routes:
        handlers = route.route_handlers if isinstance(route, HTTPRoute) else [route.route_handler]
        for handler in handlers:
            methods = (
                handler.http_methods if isinstance(handler, HTTPRouteHandler) else ["WEBSOCKET"]
            )
            what = f"{' '.join(sorted(methods))} {route.path_format}"
            yield what, handler, route.path_parameters
