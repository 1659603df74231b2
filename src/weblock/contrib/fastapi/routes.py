"""Which routes lock, and what, as far as it is known before a request comes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, routing

from ...errors import ConfigurationError
from ...keys import KeyTemplate
from ..asgi.protocol import Scope
from .dependency import Lock
from .values import refuse_unknown_path_parameters


@dataclass(frozen=True)
class LockingRoute:
    """A route that locks, where it is mounted, and what its path has parameters for."""

    route: Any
    prefix: str
    parameters: dict[str, object]
    locks: Sequence[Lock]

    def __str__(self) -> str:
        methods = ", ".join(sorted(getattr(self.route, "methods", None) or ["websocket"]))
        return f"{methods} {self.prefix}{self.route.path_format}"


def check_keys(routes: Sequence[Any]) -> None:
    """Raises ``ConfigurationError`` for a key that a route can never fill in, naming both."""
    for found in locking_routes(routes):
        for template in _templates(found.locks):
            try:
                refuse_unknown_path_parameters(template, found.parameters)
            except ConfigurationError as error:
                raise ConfigurationError(f"{found}: {error}") from None


class LockingPaths:
    """Which requests may lock, told by their paths: at times one that does not, but hardly ever less.

    Known are the routes of FastAPI; whatever else is there may lock.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._pattern: re.Pattern[str] | None = None

    def find(self) -> None:
        """Looks at the routes that there are now."""
        known = "|".join(_patterns(self._app.routes)) or "(?!)"
        # A router takes a newline at the end for none, as "$" does.
        self._pattern = re.compile(f"(?:{known})\n?", re.DOTALL)

    def may_lock(self, scope: Scope) -> bool:
        """Whether a request may lock."""
        if self._pattern is None or self._app.dependency_overrides:
            return True
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return self._pattern.fullmatch(path) is not None


def _patterns(routes: Sequence[Any], within: Sequence[Any] = (), prefix: str = "") -> Iterator[str]:
    if any(routes is each for each in within):
        return
    for route in each_route(routes):
        path = prefix + (getattr(route, "path", None) or "")
        dependant = getattr(route, "dependant", None)
        if dependant:
            if any(isinstance(each.call, Lock) for each in _flat(dependant)):
                yield _pattern(path)
        elif inner := getattr(route, "routes", None):
            yield from _patterns(inner, [*within, routes], path)
        elif not _is_of_fastapi(route):
            yield _pattern(path) + "(/.*)?"


def _pattern(path: str) -> str:
    """Of a path with parameters: those that may have a slash match anything."""
    parts = re.split(r"(\{[^{}]*\})", path)
    return "".join(
        re.escape(part) if part[:1] != "{" else ".*" if part.endswith(":path}") else "[^/]*"
        for part in parts
    )


def _is_of_fastapi(route: Any) -> bool:
    """Whether it is one of its own pages: the schema, and those that show it."""
    return getattr(getattr(route, "endpoint", None), "__module__", "") == "fastapi.applications"


def locking_routes(
    routes: Sequence[Any], within: Sequence[Any] = (), prefix: str = "", known: Iterable[str] = ()
) -> Iterator[LockingRoute]:
    """Those that lock, of these routes and of the applications that are mounted among them."""
    if any(routes is each for each in within):  # An application may be mounted in itself.
        return
    for route in each_route(routes):
        parameters = {**dict.fromkeys(known), **getattr(route, "param_convertors", {})}
        if dependant := getattr(route, "dependant", None):
            locks = [each.call for each in _flat(dependant) if isinstance(each.call, Lock)]
            if locks:
                yield LockingRoute(route, prefix, parameters, locks)
        elif inner := getattr(route, "routes", None):
            path = prefix + (getattr(route, "path", None) or "")
            yield from locking_routes(inner, [*within, routes], path, parameters)


def each_route(routes: Iterable[Any]) -> Iterator[Any]:
    """Every route of a list, also of routers that it includes, but not of what it mounts."""
    # FastAPI 0.137 made a tree of them, and a function that walks it.
    walk = getattr(routing, "iter_route_contexts", None)
    return walk(routes) if walk else iter(routes)


def _flat(dependant: Any) -> Iterator[Any]:
    for each in dependant.dependencies:
        yield each
        yield from _flat(each)


def _templates(locks: Iterable[Lock]) -> Iterator[KeyTemplate]:
    for each in locks:
        yield from (key for key in each.keys if isinstance(key, KeyTemplate))
