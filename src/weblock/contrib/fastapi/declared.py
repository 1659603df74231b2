"""What endpoints and their dependencies declare, and the values they are given of a request.

FastAPI's own code converts each value here, so that a key has the value the endpoint sees.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from fastapi.datastructures import Headers
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.requests import HTTPConnection
from pydantic import AliasChoices, AliasPath, BaseModel, Json

from ...errors import ConfigurationError
from ...keys import KeyTemplate, Source
from ..asgi.protocol import Scope
from ..kit.values import sent_value
from .endpoint import interruptible


class MakesKeys:
    """A dependency that makes keys: the work of a request uses nothing that is declared below it."""


class Declared(NamedTuple):
    """A value that an endpoint or one of its dependencies declares."""

    kind: str
    """``path``, ``query`` or ``header``."""
    place: object
    """The endpoint or the dependency."""
    parameter: Any
    """FastAPI's field of the parameter: the value itself, or the model that has it."""
    name: str
    """The name in the code."""
    names: Sequence[str]
    """The names that requests may send it under; those of headers in lower case."""
    info: Any = None
    """Pydantic's field of the value; ``None`` for what a model allows besides its fields."""
    model: type[BaseModel] | None = None
    """The parameter model that has the value as an attribute, if one does."""
    is_collection: bool = False
    """Whether the request has a list or the like, which has no text of its own."""
    is_plain: bool = False
    """Whether it is one text under one name, as most are."""

    def is_named(self, source: Source) -> bool:
        """Return whether the value is what a template names."""
        if self.kind == "header":
            wanted = source.name.replace("_", "-")
            return any(name.replace("_", "-") == wanted for name in self.names)
        return source.name in self.names

    def value(self, connection: HTTPConnection) -> object:
        """Return the value as the endpoint sees it; ``None`` if the request has none.

        Raises what FastAPI raises for the endpoint if it does not convert, and ``InvalidKey`` for a
        value that was sent twice.
        """
        received = self._received(connection)
        values, errors = request_params_to_args([self.parameter], received)
        if errors:
            raise _refusal(errors, connection)
        value: object = values[self.parameter.name]
        if self.model is None or value is None:
            return value
        if self.name in self.model.model_fields:
            return getattr(value, self.name)
        return (getattr(value, "model_extra", None) or {}).get(self.name)

    def plain_value(self, connection: HTTPConnection) -> object:
        """Return the same as ``value``, of one that is plain, in a quarter of the time."""
        kind, (name,) = self.kind, self.names
        if kind == "path":
            text = connection.scope["path_params"].get(name)
        else:
            text = sent_under(Source(kind, name), connection)
        if text is None:
            return self.value(connection)
        converted, errors = self.parameter.validate(text, {}, loc=(kind, name))
        if errors:  # FastAPI's own code reports them as it does for the endpoint.
            return self.value(connection)
        value: object = converted
        return value

    def _received(self, connection: HTTPConnection) -> Any:
        if self.kind == "path":
            return connection.path_params
        sources = [Source(self.kind, name) for name in self.names]
        # Also of a query, whose values FastAPI reads by itself: this refuses what was sent twice.
        sent = {each.name: sent_under(each, connection) for each in sources}
        if self.kind == "query":
            return connection.query_params
        if sent.get("host") is None:
            return connection.headers
        # Its name alone is the host: see ``sent_value``.
        rest = [(name, value) for name, value in connection.headers.raw if name != b"host"]
        return Headers(raw=[*rest, (b"host", str(sent["host"]).encode("latin-1"))])


def _refusal(errors: Sequence[Any], connection: HTTPConnection) -> Exception:
    """Return the error that FastAPI raises for the endpoint of a request, or of a websocket."""
    if connection.scope["type"] == "websocket":
        return WebSocketRequestValidationError(errors)
    return RequestValidationError(errors)


def sent_under(source: Source, connection: HTTPConnection) -> str | None:
    """Return what a request has sent under one name. Raises as ``sent_value``."""
    query = connection.scope["query_string"].decode("latin-1")
    return sent_value(source, query=query, headers=connection.headers.getlist)


def declared_of(dependant: Any, source: Source, template: KeyTemplate) -> Declared | None:
    """Return what an endpoint or its dependencies declare under the name that a template has.

    Raises ``ConfigurationError`` if several of them declare it, and one thing could have two keys.
    """
    found = _all_declared(dependant, source)
    _refuse_two_declarations(found, source, template)
    # They are equal, unless the type in the key makes them so: then not the text of the request.
    return min(found, key=_is_text, default=None)


def _all_declared(dependant: Any, source: Source) -> list[Declared]:
    """Return every declaration of a name; those of key functions count if there is no other."""
    for of_keys in (False, True):
        values = declared_values(dependant, source.kind, of_keys=of_keys)
        found = [each for each in values if each.is_named(source)]
        if found := found or list(_extras(dependant, source, of_keys=of_keys)):
            return found
    return []


def declared_values(dependant: Any, kind: str, *, of_keys: bool = True) -> Iterator[Declared]:
    """Return the values of a kind that an endpoint and its dependencies declare.

    The fields of a parameter model are such values, and the model itself is none.
    """
    for place, parameter in parameters_of(dependant, kind, of_keys=of_keys):
        info, model = parameter.field_info, model_of(parameter)
        if model is None:
            names, several = _names(info, parameter.alias, kind), _is_collection(info)
            plain = len(names) == 1 and not several
            name = parameter.name
            yield Declared(kind, place, parameter, name, names, info, None, several, plain)
        else:
            yield from _values_of_model(kind, place, parameter, model)


def parameters_of(
    dependant: Any, kind: str, *, of_keys: bool = True
) -> Iterator[tuple[object, Any]]:
    """Return FastAPI's fields of a kind, each with the endpoint or the dependency that has it."""
    for parameter in getattr(dependant, f"{kind}_params"):
        yield dependant.call, parameter
    for each in dependant.dependencies:
        if of_keys or not isinstance(each.call, MakesKeys):
            yield from parameters_of(each, kind, of_keys=of_keys)


def model_of(parameter: Any) -> type[BaseModel] | None:
    """Return the model whose fields FastAPI reads as parameters: ``Annotated[Model, Query()]``."""
    info = parameter.field_info
    if any(type(each) is Json for each in info.metadata):  # One parameter, whose text is JSON.
        return None
    kinds = [each for each in _members(info.annotation) if each is not type(None)]
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel):
        return kinds[0]
    return None


def _values_of_model(
    kind: str, place: object, parameter: Any, model: type[BaseModel]
) -> Iterator[Declared]:
    dashes = getattr(parameter.field_info, "convert_underscores", True)
    config = model.model_config
    by_name = config.get("validate_by_name", config.get("populate_by_name", False))
    for name, info in model.model_fields.items():
        own = name
        if kind == "header" and getattr(info, "convert_underscores", dashes):
            own = name.replace("_", "-")
        names = [own] if config.get("validate_by_alias") is False else _names(info, own, kind)
        names = [own if each == name else each for each in names]
        if by_name and own not in names:
            names = [*names, own]
        several = _is_collection(info)
        yield Declared(kind, place, parameter, name, names, info, model, several)


def _extras(dependant: Any, source: Source, *, of_keys: bool) -> Iterator[Declared]:
    """Return what models declare of values that are none of their fields, if they allow them."""
    kind, name = source.kind, source.name
    if kind == "header":
        name = name.replace("_", "-")
    for place, parameter in parameters_of(dependant, kind, of_keys=of_keys):
        model = model_of(parameter)
        if model and model.model_config.get("extra") == "allow":
            # FastAPI may make a list of it, if the request repeats it; that is no key in any case.
            yield Declared(kind, place, parameter, name, [name], None, model)


def _names(info: Any, name: str, kind: str) -> list[str]:
    """Return the names that requests send a field under; ``name`` is what it has without an alias."""
    alias = info.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias or info.alias or name]
    names = map(_first, choices)
    return [each.lower() for each in names] if kind == "header" else list(names)


def _first(alias: str | AliasPath) -> str:
    return str(alias.path[0]) if isinstance(alias, AliasPath) else alias


def _members(annotation: Any) -> Iterator[Any]:
    """Return the types of a union, or the one type that there is."""
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _members(each)
    else:
        yield annotation


def _is_collection(info: Any) -> bool:
    alias = info.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    if any(isinstance(each, AliasPath) for each in choices):  # It is a part of a list.
        return True
    kinds = [get_origin(each) or each for each in _members(info.annotation)]
    return any(
        isinstance(kind, type)
        and issubclass(kind, Sequence | AbstractSet | Mapping)
        and not issubclass(kind, str | bytes | bytearray)
        for kind in kinds
    )


_MADE_OF_TEXT: Final = {"int": int, "uuid": UUID}
"""The types that converters of a template make of a text."""


def _refuse_two_declarations(
    found: Sequence[Declared], source: Source, template: KeyTemplate
) -> None:
    """Raise ``ConfigurationError`` where a name is declared in two ways.

    A key is made of one of them, and the work may use the other: with the text of an audit, ``7`` and
    ``07`` are two keys, but one shop to an endpoint that declares an ``int``. Whether two declarations
    convert alike is for Pydantic to know, so they have to be equal. Where the key has a type, a text
    without constraints counts as that type, for the key makes it of the text.
    """
    pairs = zip(template.names, template.converters, strict=True)
    used = {name: converter for name, converter in pairs if template.sources[name] == source}
    types = {_MADE_OF_TEXT.get(converter, str) for converter in used.values()}
    other = _unequal(found, types.pop() if len(types) == 1 else str)
    if other is None:
        return
    two, name = (found[0], other), next(iter(used))
    typed = (c for c, kind in _MADE_OF_TEXT.items() if _unequal(two, kind) is None)
    remedy = "".join(f" write {{{name}:{converter}}} in the key," for converter in typed)
    raise ConfigurationError(
        f"lock({template.text!r}) cannot tell which {{{name}}} the work uses:"
        f" {_described(found[0])}, and {_described(other)}, so that one thing could have two keys."
        f" Declare it with the same type, constraints, default and alias in both,{remedy} or give"
        " lock() a key function that declares it as the work does"
    )


def _unequal(found: Sequence[Declared], text: type) -> Declared | None:
    """Return the first declaration that is not equal to the first of all; ``text`` is what a text becomes."""

    def facts(declared: Declared) -> tuple[object, ...]:
        info = declared.parameter.field_info
        kind = text if _is_text(declared) else info.annotation
        # The order of a union counts, which its equality ignores; and so does ``True`` for ``1``.
        conversion = kind, get_args(kind), info.metadata, declared.model and declared.name
        default = info.default, type(info.default), info.default_factory, info.validate_default
        return (declared.names, *conversion, *default)

    return next((each for each in found if facts(each) != facts(found[0])), None)


def _is_text(declared: Declared) -> bool:
    """Return whether the value is the text of the request itself."""
    info = declared.parameter.field_info
    return info.annotation is str and not info.metadata


def _described(declared: Declared) -> str:
    """Return where a value is declared, and how."""
    place = getattr(declared.place, "__qualname__", declared.place)
    if declared.model:
        return f"{place} declares {declared.name} by {declared.model.__qualname__}"
    info = declared.info
    default = inspect.Parameter.empty if info.is_required() else info.get_default()
    kind = inspect.Parameter.KEYWORD_ONLY
    annotation = info.rebuild_annotation()
    text = inspect.Parameter(declared.name, kind, default=default, annotation=annotation)
    sent = "" if list(declared.names) == [declared.name] else f", sent as {declared.names[0]!r}"
    return f"{place} declares {text}{sent}"


class Declaration(NamedTuple):
    """How a request has a value that a template needs."""

    name: str
    source: Source
    declared: Declared | None
    """What the endpoint or one of its dependencies declares, if one does."""


class Known(dict[str, list[Declaration]]):
    """What is known of a route that locks: by the text of a template, how it declares the values."""

    def __init__(self, route: Any) -> None:
        self._dependant: Any = getattr(route, "dependant", None)
        if self._dependant:
            self._dependant.call = interruptible(self._dependant.call)

    def __missing__(self, text: str) -> list[Declaration]:
        """Find the declarations. Raises ``ConfigurationError`` for a value that is declared in two ways."""
        template, dependant = KeyTemplate.parse(text), self._dependant
        self[text] = [
            Declaration(name, source, dependant and declared_of(dependant, source, template))
            for name, source in template.sources.items()
        ]
        return self[text]


_of_routes: Final[dict[int, tuple[weakref.ref[Any], Known]]] = {}
"""By the ``id`` of a route, which has no hash, while it lives."""


def known_of(scope: Scope) -> Known:
    """Return what is known of the route that serves a request."""
    route = scope.get("route")
    # Since FastAPI 0.137 ``route`` is the one of the router, without the prefix and the dependencies
    # of ``include_router``: its parameters may be declared otherwise, or not at all.
    included = scope.get("fastapi", {}).get("effective_route_context")
    if included is not None and getattr(included, "original_route", None) is route:
        route = included
    number = id(route)
    known = _of_routes.get(number)
    if known is None or known[0]() is not route:
        if route is None:
            return Known(route)
        gone = functools.partial(_of_routes.pop, number)
        known = _of_routes[number] = weakref.ref(route, gone), Known(route)
    return known[1]


def values_for(
    template: KeyTemplate, connection: HTTPConnection, known: Known
) -> Mapping[str, object]:
    """The values of the request for ``template``, converted to their declared types.

    ``/items/7`` and ``/items/07`` are one item to an endpoint that declares an ``int``; so they
    must be one key too. So it is with query parameters and headers, and a declared default stands
    for one that is missing.

    Raises what FastAPI raises for the endpoint where a value does not convert,
    ``InvalidKey`` for one that was sent twice, and ``ConfigurationError`` for a path parameter that
    the path has not, and for a value that is declared in two ways.
    """
    if not template.names:
        return {}
    path, values = connection.scope["path_params"], {}
    for name, source, declared in known[template.text]:
        if source.kind == "path" and source.name not in path:
            refuse_unknown_path_parameters(template, path)
        if declared:
            value = (declared.plain_value if declared.is_plain else declared.value)(connection)
        elif source.kind == "path":
            value = path[source.name]
        else:
            value = sent_under(source, connection)
        if value is not None:
            values[name] = value
    return values


def refuse_unknown_path_parameters(template: KeyTemplate, known: Mapping[str, object]) -> None:
    """Raise ``ConfigurationError`` where the template names a path parameter that is not known."""
    for source in template.in_request().values():
        if source.kind == "path" and source.name not in known:
            there = ", ".join(map(repr, known)) or "none"
            raise ConfigurationError(
                f"lock({template.text!r}) needs the path parameter {source.name!r}, but the path"
                f" has {there}; {{query.{source.name}}} would be a query parameter, and"
                f" {{header.{source.name}}} a header"
            )
