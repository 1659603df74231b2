"""Which routes lock, and what, as far as it is known before a request comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import routing
from starlette.convertors import StringConvertor
from starlette.routing import compile_path

from ..._platform.logs import logger
from ...errors import ConfigurationError
from ...keys import KeyTemplate
from .dependency import Lock
from .values import declared_fields, refuse_unknown_path_parameters


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
    """Raises ``ConfigurationError`` for a key that a route can never fill in, naming both.

    Warns of a key that is made of a part of the path as the URL spells it.
    """
    for found in locking_routes(routes):
        for template in _templates(found.locks):
            try:
                refuse_unknown_path_parameters(template, found.parameters)
            except ConfigurationError as error:
                raise ConfigurationError(f"{found}: {error}") from None
            _warn_of_spellings(template, found)


def _warn_of_spellings(template: KeyTemplate, found: LockingRoute) -> None:
    sources = template.in_request()
    declared = {field.alias for field in declared_fields(found.route.dependant, "path_params")}
    for name, converter in zip(template.names, template.converters, strict=True):
        source = sources[name]
        is_text = isinstance(found.parameters.get(source.name), StringConvertor | None)
        if source.kind == "path" and is_text and not converter and source.name not in declared:
            logger.warning(
                "%s: lock(%r) is made of %r as the URL spells it: '7' and '07' would be two locks."
                " Declare the parameter with its type in the endpoint, or write {%s:int},"
                " {%s:uuid} or {%s:lower} in the key; {%s:str} says that each spelling is another"
                " thing",
                *(found, template.text, source.name, *[name] * 4),
            )


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


def locking_route(routes: Sequence[Any], method: str, path: str) -> LockingRoute | None:
    """Return the first route that locks, of those that take a request; ``path`` is decoded."""
    for found in locking_routes(routes):
        methods = getattr(found.route, "methods", None) or {"WEBSOCKET"}
        pattern, _, _ = compile_path(f"{found.prefix}{found.route.path_format}")
        if method in methods and pattern.match(path):
            return found
    return None


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
