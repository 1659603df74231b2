"""``install``: prepares an application for locks, and checks and documents its routes that lock."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

from fastapi import FastAPI, routing
from fastapi.requests import HTTPConnection, Request
from fastapi.security.base import SecurityBase
from starlette.convertors import StringConvertor
from starlette.middleware import Middleware
from starlette.routing import Match, WebSocketRoute

from ..._options import Duration, LocksOptions
from ..._platform.logs import logger
from ...aio import AsyncLocks
from ...errors import (
    AnswersUnavailable,
    ConfigurationError,
    EngineRecovering,
    EngineUnavailable,
    IdempotencyKeyInvalid,
    IdempotencyKeyReused,
    InvalidKey,
    LeaseLost,
    LockTimeout,
    TooManyAnswers,
    WeblockError,
)
from ...keys import signature_of
from ..asgi import ProblemResponse, RequestLayer
from ..asgi.protocol import App, Receive, Scope, Send
from ..kit import (
    BODY_WAIT,
    Asked,
    Locked,
    LockSpec,
    Problem,
    Rewrite,
    answers,
    lacking,
    name_of,
    opened,
    problem_of,
    seconds_or_none,
    shown,
)
from ..kit.guarding import DATABASE_GUARD, LEASE_GUARD
from ..kit.idempotency import refuse_safe
from .declared import needed_by, wanted_of
from .dependency import GUARDED_BY, LockDependency
from .idempotency import IdempotentDependency, replaying

EARLY: Final = "before authentication"


@dataclass(frozen=True)
class LockingRoute:
    """A route and its locks, the path it is mounted at, and the names of its path parameters."""

    route: Any
    prefix: str
    parameters: dict[str, object]
    locks: Sequence[LockDependency]
    once: Sequence[IdempotentDependency]
    """What makes it execute a request once: there is at most one."""

    @property
    def specs(self) -> list[LockSpec]:
        """All that it locks."""
        return [*self.once, *self.locks]

    @property
    def is_websocket(self) -> bool:
        """Whether it serves a websocket."""
        # What FastAPI has of a route that is included is no route itself.
        return isinstance(getattr(self.route, "original_route", self.route), WebSocketRoute)

    @property
    def path(self) -> str:
        """The path of what it mounts; a route that is chosen by its host has none of its own."""
        return self.prefix + (getattr(self.route, "path", None) or "")

    def __str__(self) -> str:
        if self.is_websocket:
            methods = "websocket"
        else:  # Starlette leaves the methods to a class that is an endpoint.
            methods = ", ".join(sorted(self.route.methods or ["any method"]))
        return f"{methods} {self.prefix}{self.route.path_format}"


def _faults(found: LockingRoute, locks: AsyncLocks | None) -> Iterator[ConfigurationError]:
    """Return what is wrong with the locks of a route. A lock with the code ``url_spelling`` can work."""
    for once in found.once:
        try:
            if found.is_websocket:
                text = "is idempotent(), but a websocket has no response that could be stored: use it for HTTP requests"
                yield ConfigurationError(f"{found} {text}")
            else:
                refuse_safe(found.route.methods or (), str(found))
                if locks and once.store == "engine":
                    once.texts(locks)
        except ConfigurationError as error:
            yield error
    for function in (each for lock in found.locks for each in lock.functions):
        for name, parameter in signature_of(function).parameters.items():
            if parameter.annotation is parameter.default and name not in found.parameters:
                text = (
                    f"{found}: the key function {name_of(function)} has {name!r} without a type, which"
                    " FastAPI reads from the query string. Declare what it is, as in"
                    " def key(request: Request) -> str"
                )
                yield ConfigurationError(text, code="key_function")
    for template in (each for lock in found.locks for each in lock.templates):
        lock, path = f"{found}: lock({template.text!r})", found.parameters
        try:
            wanted = wanted_of(template, found.route.dependant)
        except ConfigurationError as error:
            yield ConfigurationError(f"{found}: {error.message}", code=error.code)
            continue
        converters = dict(zip(template.names, template.converters, strict=True))
        for name, source, declared, _ in (each for each in wanted if each.source.kind == "path"):
            sent, says_its_type = source.name, declared or converters[name]
            if sent not in path:
                yield lacking(lock, "path parameter", sent, path)
            elif not says_its_type and isinstance(path[sent], StringConvertor | None):
                text = (
                    f"{lock} contains {sent!r} as the URL spells it: '7' and '07' would be two locks."
                    " Declare the parameter with its type in the endpoint, or write"
                    f" {{{name}:int}}, {{{name}:uuid}} or {{{name}:lower}} in the key; {{{name}:str}}"
                    " keeps each spelling as a separate key"
                )
                yield ConfigurationError(text, code="url_spelling")


def locked_in(app: object, asked: Asked | None) -> Iterator[Locked | ConfigurationError]:
    """List the routes that lock, and their errors; of a request, the route that serves it: see ``kit.application``."""
    if not isinstance(app, FastAPI):
        return
    layers: list[Any] = app.user_middleware
    locks: AsyncLocks | None = next(
        (each.kwargs["locks"] for each in layers if each.cls is RequestLayer), None
    )
    routes = locking_routes(app.routes)
    if asked:
        served = _serving(app.routes, asked, {"root_path": app.root_path})
        routes = iter([served] if served else [])
    for found in routes:
        if not found.specs:
            yield Locked(str(found))
        elif not locks:
            yield ConfigurationError(
                f"{found} locks, but weblock is not installed: call install(app)",
                code="installation",
            )
        for spec in found.specs:
            dependant = found.route.dependant
            guarded_by = (getattr(each.call, GUARDED_BY, ()) for each in needed_by(dependant))
            guard = DATABASE_GUARD if any(spec in each for each in guarded_by) else LEASE_GUARD
            order = _order_of(spec, dependant)
            yield Locked(str(found), spec.keys, spec.said, locks, guard, order)
        yield from _faults(found, locks)


def _serving(
    routes: Sequence[Any],
    asked: Asked,
    scope: Mapping[str, Any],
    around: LockingRoute | None = None,
) -> LockingRoute | None:
    """Return the route that serves a request, as Starlette chooses it."""
    method, path = asked
    kind = {"type": "websocket"} if method == "WEBSOCKET" else {"type": "http", "method": method}
    here = {"path": path, "path_params": {}, "headers": [], **kind, **scope}
    for route in each_route(routes):
        if not hasattr(route, "matches"):  # What is mounted may be of another framework.
            continue
        match, more = route.matches(here)
        if match is Match.FULL:
            found, inner = _locking(route, around), getattr(route, "routes", None)
            # What is mounted answers the request, even if only with 404.
            return _serving(inner, asked, {**here, **more}, found) if inner else found
    return None


def _order_of(lock: LockSpec, dependant: Any) -> str:
    """Return which dependencies FastAPI solves before a lock, and whether authentication is one."""
    calls = list(dict.fromkeys(each.call for each in needed_by(dependant)))
    at = calls.index(lock)
    before = [
        each.scheme_name if isinstance(each, SecurityBase) else name_of(each)
        for each in calls[:at]
        if not isinstance(each, LockDependency)
    ]
    secured = [isinstance(each, SecurityBase) for each in calls]
    names = ", ".join(before)
    if any(secured[:at]):
        return f"after authentication: {names}"
    told = [EARLY] if any(secured) else []
    told += [f"after {names}"] if before else []
    return ", ".join(told) or "before all other dependencies"


def locking_routes(
    routes: Sequence[Any], within: Sequence[Any] = (), around: LockingRoute | None = None
) -> Iterator[LockingRoute]:
    """Return the routes that lock, of these and of the applications that are mounted among them."""
    if any(routes is each for each in within):  # An application may be mounted in itself.
        return
    for route in each_route(routes):
        found = _locking(route, around)
        if found.specs:
            yield found
        elif inner := getattr(route, "routes", None):
            yield from locking_routes(inner, [*within, routes], found)


def _locking(route: Any, around: LockingRoute | None) -> LockingRoute:
    """Return a route with its locks, which may be none; ``around`` is what it is mounted in."""
    known = around.parameters if around else {}
    parameters = {**dict.fromkeys(known), **getattr(route, "param_convertors", {})}
    dependant = getattr(route, "dependant", None)
    needed = [each.call for each in needed_by(dependant)] if dependant else []
    locks = [each for each in needed if isinstance(each, LockDependency)]
    once = [each for each in needed if isinstance(each, IdempotentDependency)]
    return LockingRoute(route, around.path if around else "", parameters, locks, once)


def each_route(routes: Iterable[Any]) -> Iterator[Any]:
    """Return every route of a list and of the routers it includes, but not of its mounts."""
    # FastAPI 0.137 made a tree of them, and 0.137.2 a function that walks it.
    walk = getattr(routing, "iter_route_contexts", _each_included)
    return iter(walk(routes))


def _each_included(routes: Iterable[Any]) -> Iterator[Any]:
    """Return every route, and of included routers theirs, as FastAPI's function does that is missing."""
    for route in routes:
        included = getattr(route, "effective_route_contexts", None)
        for each in included() if included else [route]:
            yield getattr(each, "starlette_route", None) or each


ProblemOf = Callable[[WeblockError], Problem | None]
"""Returns the problem of an error; ``None`` if the application responds by itself."""

SCHEMA: Final = "LockProblem"

_BUSY: Final = LockTimeout("key", wait=5.0, retry_after=1.0)
_DOWN: Final = EngineUnavailable("engine", "it is down")
_RECOVERING: Final = EngineRecovering("engine", "it was started just now", retry_after=10.0)
_LOST: Final = LeaseLost("key", fence=0, reason="expired")
_NO_KEY: Final = InvalidKey("key")

_OF_ONCE: Final = (
    IdempotencyKeyInvalid("Idempotency-Key", "it is missing", missing=True),
    IdempotencyKeyReused("key"),
    TooManyAnswers(1, retry_after=60.0),
    AnswersUnavailable("it is down"),
)

_SCHEMA: Final[dict[str, Any]] = {
    "title": SCHEMA,
    "description": "Problem details, as RFC 9457 has them.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "The same as the end of the type; it is stable."},
    },
    "required": ["type", "title", "status", "detail", "code"],
}


@dataclass
class _Documented:
    """An application's function ``openapi``, and what it documents."""

    generate: Callable[[], dict[str, Any]]
    app: FastAPI
    problem_of: ProblemOf

    def __call__(self) -> dict[str, Any]:
        schema = self.generate()
        for found in locking_routes(self.app.routes):
            if not found.prefix:  # What is mounted has a schema of its own.
                _describe(schema, found, self.problem_of)
        return schema


def document(app: FastAPI, problem_of: ProblemOf) -> None:
    """Add the problem responses to the OpenAPI schema, at just the operations that lock; to mounted ones, too."""
    if not isinstance(app.openapi, _Documented):
        app.openapi = _Documented(app.openapi, app, problem_of)  # type: ignore[method-assign]
    for route in each_route(app.routes):
        inner = getattr(route, "app", None)
        if isinstance(inner, FastAPI) and inner.routes is not app.routes:
            document(inner, problem_of)


def _describe(schema: dict[str, Any], found: LockingRoute, problem_of: ProblemOf) -> None:
    errors: list[WeblockError] = [_BUSY, _DOWN, _RECOVERING, _LOST]
    if any(each.functions or any(key.names for key in each.templates) for each in found.locks):
        errors.append(_NO_KEY)
    if found.once:
        errors += _OF_ONCE
    by_status: dict[str, list[Problem]] = {}
    for problem in filter(None, map(problem_of, errors)):
        by_status.setdefault(str(int(problem.status)), []).append(problem)
    operations = schema.get("paths", {}).get(found.route.path_format, {})
    for method in getattr(found.route, "methods", None) or ():
        if (operation := operations.get(method.lower())) is None:
            continue
        schema.setdefault("components", {}).setdefault("schemas", {})[SCHEMA] = _SCHEMA
        for status, alike in by_status.items():
            response = operation.setdefault("responses", {}).setdefault(status, {})
            response.setdefault("description", "; ".join(each.title for each in alike))
            examples = {
                each.code: {"summary": each.title, "value": json.loads(each.body)} for each in alike
            }
            content = {"schema": {"$ref": f"#/components/schemas/{SCHEMA}"}, "examples": examples}
            response.setdefault("content", {}).setdefault(alike[0].media_type, content)
            for name in {name for each in alike for name in list(each.headers)}:
                header = {"schema": {"type": "string"}}
                response.setdefault("headers", {}).setdefault(name, header)


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
    own = _Answers(app, rewrite)
    # What is mounted may install locks of its own until it starts.
    app.openapi = _Documented(app.openapi, app, own.problem_of)  # type: ignore[method-assign]
    app.add_middleware(
        RequestLayer,
        locks=locks,
        hold_back=hold_back,
        body_wait=body_wait,
        owns_locks=owned,
        before_start=functools.partial(_before_start, app, own, locks),
        answer=own.of,
    )
    # The innermost middleware: what it keeps back is not compressed, and has no cookies of a session.
    app.user_middleware.append(Middleware(_innermost, of=app))
    return locks


def _innermost(app: App, *, of: FastAPI) -> App:
    return replaying(app) if any(found.once for found in locking_routes(of.routes)) else app


def _before_start(app: FastAPI, own: _Answers, locks: AsyncLocks) -> None:
    """Raise ``ConfigurationError`` for a lock that can never work on its route, naming both.

    Warns of a key that is made of a part of the path as the URL spells it, and of a lock for which strangers
    can wait, because the route authenticates after it.
    """
    for found in locking_routes(app.routes):
        for lock in found.locks:
            if _order_of(lock, found.route.dependant).startswith(EARLY):
                logger.warning(
                    "%s: %r is acquired before authentication, so anonymous requests can wait for it and"
                    " fill its queue: put the authentication before the lock, in the decorator's"
                    " dependencies or the parameters [weblock.before_authentication]",
                    *(found, lock),
                )
        for fault in _faults(found, locks):
            if fault.code != "url_spelling":
                raise fault
            logger.warning("%s", fault)
    document(app, own.problem_of)  # It may have been given another ``openapi`` since then.


class _Answers:
    """The responses to errors of weblock: from the application's handlers, or problems."""

    def __init__(self, app: FastAPI, rewrite: Rewrite | None) -> None:
        handlers: MutableMapping[Any, Any] = app.exception_handlers
        self._handlers = handlers
        self._rewrite = rewrite
        self._response = answers(ProblemResponse, rewrite, lambda: app.debug)
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
