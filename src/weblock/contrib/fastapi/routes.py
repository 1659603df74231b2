"""Which routes lock, and what, as far as it is known before a request comes.

The application checks their keys when it starts, and its OpenAPI schema tells of the problems that
they may answer.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, routing
from starlette.convertors import StringConvertor
from starlette.routing import Match, WebSocketRoute

from ..._platform.logs import logger
from ...errors import (
    ConfigurationError,
    EngineRecovering,
    EngineUnavailable,
    InvalidKey,
    LeaseLost,
    LockTimeout,
    WeblockError,
)
from ...keys import KeyTemplate, Source
from ..kit.problems import Problem
from .declared import declared_of, declared_values, refuse_unknown_path_parameters
from .dependency import LockDependency


@dataclass(frozen=True)
class LockingRoute:
    """A route and its locks, the path it is mounted at, and the names of its path parameters."""

    route: Any
    prefix: str
    parameters: dict[str, object]
    locks: Sequence[LockDependency]

    def __str__(self) -> str:
        # What FastAPI has of a route that is included is no route itself.
        route = getattr(self.route, "original_route", self.route)
        if isinstance(route, WebSocketRoute):
            methods = "websocket"
        else:  # Starlette leaves the methods to a class that is an endpoint.
            methods = ", ".join(sorted(self.route.methods or ["any method"]))
        return f"{methods} {self.prefix}{self.route.path_format}"


def check_keys(routes: Sequence[Any]) -> None:
    """Raise ``ConfigurationError`` for a key that a route can never fill in, naming both.

    Warns of a key that is made of a part of the path as the URL spells it.
    """
    for found in _served(routes):
        for template in _templates(found.locks):
            try:
                refuse_unknown_path_parameters(template, found.parameters)
                _refuse_declarations(template, found.route.dependant)
            except ConfigurationError as error:
                raise ConfigurationError(f"{found}: {error}") from None
            _warn_of_spellings(template, found)


def _refuse_declarations(template: KeyTemplate, dependant: Any) -> None:
    """Raise for a value that is declared in a way that no key can be made of."""
    for name, source in template.in_request().items():
        declared = declared_of(dependant, source, template)
        if declared is None:
            _refuse_name_without_alias(template, source, dependant)
        elif declared.is_collection:
            raise ConfigurationError(
                f"lock({template.text!r}) needs one value, but the endpoint declares"
                f" {{{source.kind}.{source.name}}} as several: write a key function, which returns"
                " one key or several, and give it to lock() instead of the template"
            )
        elif declared.info and declared.info.default_factory:
            raise ConfigurationError(
                f"lock({template.text!r}) cannot use the default_factory of {{{name}}}: it is called"
                " once for the key and again for the endpoint, which may get another value. Give it"
                " a default, or call the factory in a dependency that the endpoint and a key"
                " function share, and give that function to lock()"
            )


def _refuse_name_without_alias(template: KeyTemplate, source: Source, dependant: Any) -> None:
    """Raise for a name that only the endpoint has, where requests send an alias."""
    if source.kind == "path":
        return
    for each in declared_values(dependant, source.kind):
        if each.name.lower() == source.name.lower():
            raise ConfigurationError(
                f"lock({template.text!r}) needs {{{source.kind}.{source.name}}}, which"
                f" requests send under its alias: write {{{source.kind}.{each.names[0]}}}"
            )


def _warn_of_spellings(template: KeyTemplate, found: LockingRoute) -> None:
    sources = template.in_request()
    dependant = found.route.dependant
    for name, converter in zip(template.names, template.converters, strict=True):
        source = sources[name]
        is_text = isinstance(found.parameters.get(source.name), StringConvertor | None)
        if (
            source.kind == "path"
            and is_text
            and not converter
            and not declared_of(dependant, source, template)
        ):
            logger.warning(
                "%s: lock(%r) is made of %r as the URL spells it: '7' and '07' would be two locks."
                " Declare the parameter with its type in the endpoint, or write {%s:int},"
                " {%s:uuid} or {%s:lower} in the key; {%s:str} says that each spelling is another"
                " thing",
                *(found, template.text, source.name, *[name] * 4),
            )


def locking_routes(routes: Sequence[Any]) -> Iterator[LockingRoute]:
    """Return the routes that lock, of these and of the applications that are mounted among them."""
    return (found for found in _served(routes) if found.locks)


def _served(
    routes: Sequence[Any], within: Sequence[Any] = (), prefix: str = "", known: Iterable[str] = ()
) -> Iterator[LockingRoute]:
    """Return all routes, whether they lock or not, but for those that only have others within."""
    if any(routes is each for each in within):  # An application may be mounted in itself.
        return
    for route in each_route(routes):
        here = _locking(route, prefix, known)
        inner = None if here.locks else getattr(route, "routes", None)
        if inner:
            path = prefix + (getattr(route, "path", None) or "")
            yield from _served(inner, [*within, routes], path, here.parameters)
        else:
            yield here


def serving_route(
    app: Any, method: str, path: str, headers: Mapping[str, str]
) -> LockingRoute | None:
    """Return the route that serves a request, whether it locks or not; ``None`` if none does.

    ``path`` is decoded, and ``method`` is ``WEBSOCKET`` for a websocket.
    """
    kind = {"type": "websocket"} if method == "WEBSOCKET" else {"type": "http", "method": method}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {**kind, "path": path, "root_path": "", "path_params": {}, "headers": raw}
    prefix, app = "", _with_routes(app)
    while app is not None:
        scope["root_path"] = getattr(app, "root_path", "") or scope["root_path"]
        route, more = _first_match(app.routes, scope)
        if route is None or getattr(route, "endpoint", None) is not None:
            return route and _locking(route, prefix)
        # What is mounted here answers the request, even if only with 404.
        scope |= more
        prefix += getattr(route, "path", None) or ""
        app = _with_routes(getattr(route, "app", None))
    return None


def _with_routes(app: Any) -> Any:
    """Return the application that has routes, inside of middleware; ``None`` if there is none."""
    seen: list[object] = []
    while app is not None and all(app is not each for each in seen):
        if hasattr(app, "routes"):
            return app
        seen.append(app)
        app = getattr(app, "app", None)
    return None


def _first_match(routes: Sequence[Any], scope: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the first route that takes a request, as Starlette chooses it, and its part of the scope."""
    for route in each_route(routes):
        if hasattr(route, "matches"):  # Not every framework's routes are Starlette's.
            match, more = route.matches(scope)
            if match is Match.FULL:
                return route, more
    return None, {}


def _locking(route: Any, prefix: str, known: Iterable[str] = ()) -> LockingRoute:
    """Return a route with its locks, which may be none."""
    parameters = {**dict.fromkeys(known), **getattr(route, "param_convertors", {})}
    needed = _flat(dependant) if (dependant := getattr(route, "dependant", None)) else ()
    locks = [each.call for each in needed if isinstance(each.call, LockDependency)]
    return LockingRoute(route, prefix, parameters, locks)


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


def _flat(dependant: Any) -> Iterator[Any]:
    for each in dependant.dependencies:
        yield each
        yield from _flat(each)


def _templates(locks: Iterable[LockDependency]) -> Iterator[KeyTemplate]:
    for each in locks:
        yield from (key for key in each.keys if isinstance(key, KeyTemplate))


# What OpenAPI says of them.

ProblemOf = Callable[[WeblockError], Problem | None]
"""Returns the problem of an error; ``None`` if the application responds by itself."""

SCHEMA: Final = "LockProblem"

_BUSY: Final = LockTimeout("key", wait=5.0, retry_after=1.0)
_DOWN: Final = EngineUnavailable("engine", "it is down")
_RECOVERING: Final = EngineRecovering("engine", "it was started just now", retry_after=10.0)
_LOST: Final = LeaseLost("key", fence=0, reason="expired")
_NO_KEY: Final = InvalidKey("key")

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


def document(app: FastAPI, problem_of: ProblemOf) -> None:
    """Add the problem responses to the OpenAPI schema, at just the operations that lock."""
    generate = app.openapi

    @functools.wraps(generate)
    def openapi() -> dict[str, Any]:
        schema = generate()
        for found in locking_routes(app.routes):
            if not found.prefix:  # What is mounted has a schema of its own.
                _describe(schema, found, problem_of)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def document_mounted(routes: Iterable[Any], problem_of: ProblemOf) -> None:
    """Add the problem responses to the schemas of mounted applications."""
    for route in each_route(routes):
        inner = getattr(route, "app", None)
        if isinstance(inner, FastAPI) and inner.routes is not routes:
            document(inner, problem_of)
            document_mounted(inner.routes, problem_of)


def _describe(schema: dict[str, Any], found: LockingRoute, problem_of: ProblemOf) -> None:
    errors: list[WeblockError] = [_BUSY, _DOWN, _RECOVERING, _LOST]
    if any(
        not isinstance(key, KeyTemplate) or key.names for each in found.locks for key in each.keys
    ):
        errors.append(_NO_KEY)
    problems = [problem for error in errors if (problem := problem_of(error))]
    operations = schema.get("paths", {}).get(found.route.path_format, {})
    for method in getattr(found.route, "methods", None) or ():
        if operation := operations.get(method.lower()):
            _add(operation.setdefault("responses", {}), problems)
            schema.setdefault("components", {}).setdefault("schemas", {})[SCHEMA] = _SCHEMA


def _add(responses: dict[str, Any], problems: Iterable[Problem]) -> None:
    by_status: dict[str, list[Problem]] = {}
    for problem in problems:
        by_status.setdefault(str(int(problem.status)), []).append(problem)
    for status, alike in by_status.items():
        response = responses.setdefault(status, {})
        response.setdefault("description", "; ".join(each.title for each in alike))
        content = {
            "schema": {"$ref": f"#/components/schemas/{SCHEMA}"},
            "examples": {
                each.code: {"summary": each.title, "value": json.loads(each.body)} for each in alike
            },
        }
        response.setdefault("content", {}).setdefault(alike[0].media_type, content)
        for name in {name for each in alike for name in each.headers}:
            header = {"schema": {"type": "string"}}
            response.setdefault("headers", {}).setdefault(name, header)
