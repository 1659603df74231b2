"""Which routes lock, and what, as far as it is known before a request comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, routing
from fastapi.security.base import SecurityBase
from starlette.convertors import StringConvertor
from starlette.routing import Match, WebSocketRoute

from ..._platform.logs import logger
from ...errors import ConfigurationError
from ...keys import signature_of
from ..asgi import RequestLayer
from ..kit import Asked, Locked, name_of
from ..kit.guarding import DATABASE_GUARD, LEASE_GUARD
from ..kit.idempotency import refuse_safe
from .declared import wanted_of
from .dependency import LockDependency
from .guarding import guarding
from .idempotency import IdempotentDependency

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
    def is_websocket(self) -> bool:
        """Whether it serves a websocket."""
        # What FastAPI has of a route that is included is no route itself.
        return isinstance(getattr(self.route, "original_route", self.route), WebSocketRoute)

    def __str__(self) -> str:
        if self.is_websocket:
            methods = "websocket"
        else:  # Starlette leaves the methods to a class that is an endpoint.
            methods = ", ".join(sorted(self.route.methods or ["any method"]))
        return f"{methods} {self.prefix}{self.route.path_format}"


def check_keys(routes: Sequence[Any]) -> None:
    """Raise ``ConfigurationError`` for a lock that can never work on its route, naming both.

    Warns of a key that is made of a part of the path as the URL spells it, and of a lock for which strangers
    can wait, because the route authenticates after it.
    """
    for found in locking_routes(routes):
        for lock in found.locks:
            if _order_of(lock, found.route.dependant).startswith(EARLY):
                logger.warning(
                    "%s: %r is acquired before authentication, so anonymous requests can wait for it and"
                    " fill its queue: put the authentication before the lock, in the decorator's"
                    " dependencies or the parameters [weblock.before_authentication]",
                    *(found, lock),
                )
        for fault in (*_faults_of_once(found), *_faults(found)):
            if fault.code != "url_spelling":
                raise fault
            logger.warning("%s", fault)


def _faults_of_once(found: LockingRoute) -> Iterator[ConfigurationError]:
    if found.once and found.is_websocket:
        text = "is idempotent(), but a websocket has no response that could be stored: use it for HTTP requests"
        yield ConfigurationError(f"{found} {text}")
    elif found.once:
        try:
            refuse_safe(found.route.methods or (), str(found))
        except ConfigurationError as error:
            yield error


def _faults(found: LockingRoute) -> Iterator[ConfigurationError]:
    """Return what is wrong with the locks of a route. A lock with the code ``url_spelling`` can work."""
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
        for name, source, declared in (each for each in wanted if each.source.kind == "path"):
            sent, says_its_type = source.name, declared or converters[name]
            if sent not in path:
                text = (
                    f"{lock} needs the path parameter {sent!r}, but the path has"
                    f" {', '.join(map(repr, path)) or 'none'}; {{query.{sent}}} would be a query"
                    f" parameter, and {{header.{sent}}} a header"
                )
                yield ConfigurationError(text, code="missing_value")
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
    locks = next((each.kwargs["locks"] for each in layers if each.cls is RequestLayer), None)
    routes = locking_routes(app.routes)
    if asked:
        served = _serving(app.routes, asked, {"root_path": app.root_path})
        routes = iter([served] if served else [])
    for found in routes:
        if (found.locks or found.once) and not locks:
            yield ConfigurationError(
                f"{found} locks, but weblock is not installed: call install(app)",
                code="installation",
            )
        if not (found.locks or found.once):
            yield Locked(str(found))
        for once in found.once:
            yield Locked(str(found), once.keys, once.said, locks, LEASE_GUARD)
        for lock in found.locks:
            dependant = found.route.dependant
            sessions = (each for each in _solved(dependant) if each.call in guarding)
            guarded = {below.call for each in sessions for below in each.dependencies}
            guard = DATABASE_GUARD if lock in guarded else LEASE_GUARD
            order = _order_of(lock, dependant)
            yield Locked(str(found), lock.keys, lock.said, locks, guard, order)
        yield from _faults_of_once(found)
        yield from _faults(found)


def _serving(
    routes: Sequence[Any],
    asked: Asked,
    scope: Mapping[str, Any],
    prefix: str = "",
    known: Iterable[str] = (),
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
            inner = getattr(route, "routes", None)
            # What is mounted answers the request, even if only with 404.
            if inner:
                known = _locking(route, prefix, known).parameters
                return _serving(inner, asked, {**here, **more}, prefix + _path_of(route), known)
            return _locking(route, prefix, known)
    return None


def _order_of(lock: LockDependency, dependant: Any) -> str:
    """Return which dependencies FastAPI solves before a lock, and whether authentication is one."""
    calls = list(dict.fromkeys(each.call for each in _solved(dependant)))
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


def _solved(dependant: Any) -> Iterator[Any]:
    """Return what a route depends on, in the order in which FastAPI solves it."""
    for each in dependant.dependencies:
        yield from _solved(each)
        yield each


def locking_routes(
    routes: Sequence[Any], within: Sequence[Any] = (), prefix: str = "", known: Iterable[str] = ()
) -> Iterator[LockingRoute]:
    """Return the routes that lock, of these and of the applications that are mounted among them."""
    if any(routes is each for each in within):  # An application may be mounted in itself.
        return
    for route in each_route(routes):
        here = _locking(route, prefix, known)
        if here.locks or here.once:
            yield here
        elif inner := getattr(route, "routes", None):
            path = prefix + _path_of(route)
            yield from locking_routes(inner, [*within, routes], path, here.parameters)


def is_of_a_route(lock: object, routes: Sequence[Any]) -> bool:
    """Return whether one of these routes has a lock that is equal to this one."""
    return any(lock in found.locks for found in locking_routes(routes))


def _path_of(route: Any) -> str:
    """Return the path of a route, which one that is chosen by its host does not have."""
    return getattr(route, "path", None) or ""


def _locking(route: Any, prefix: str, known: Iterable[str] = ()) -> LockingRoute:
    """Return a route with its locks, which may be none."""
    parameters = {**dict.fromkeys(known), **getattr(route, "param_convertors", {})}
    dependant = getattr(route, "dependant", None)
    needed = [each.call for each in _solved(dependant)] if dependant else []
    locks = [each for each in needed if isinstance(each, LockDependency)]
    once = [each for each in needed if isinstance(each, IdempotentDependency)]
    return LockingRoute(route, prefix, parameters, locks, once)


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
