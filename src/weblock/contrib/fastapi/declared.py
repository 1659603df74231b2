"""What endpoints and their dependencies declare, and the values they are given of a request.

FastAPI's own code converts each value here, so that a key has the value the endpoint sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from fastapi.datastructures import Headers
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.requests import HTTPConnection
from pydantic import AliasChoices, AliasPath, BaseModel, Json

from ...keys import Source
from ..request_values import sent_value


class Declared(NamedTuple):
    """A value that an endpoint or one of its dependencies declares."""

    kind: str
    """``path``, ``query`` or ``header``."""
    parameter: Any
    """FastAPI's field of the parameter: the value itself, or the model that has it."""
    name: str
    """The name in the code."""
    names: Sequence[str]
    """The names that requests may send it under."""
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
            return any(name.lower().replace("_", "-") == wanted for name in self.names)
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
        parameter, kind, (name,) = self.parameter, self.kind, self.names
        if kind == "path":
            text = connection.scope["path_params"].get(name)
        else:
            text = sent_under(Source(kind, name), connection)
        if text is None:
            if parameter.field_info.is_required():
                missing = {"type": "missing", "loc": (kind, name), "msg": "Field required"}
                raise _refusal([{**missing, "input": None}], connection)
            return parameter.get_default()
        converted, errors = parameter.validate(text, {}, loc=(kind, name))
        if errors:
            raise _refusal(errors if isinstance(errors, list) else [errors], connection)
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


def declared_of(dependant: Any, source: Source) -> Declared | None:
    """Return what an endpoint or its dependencies declare under the name that a template has."""
    found = (each for each in declared_values(dependant, source.kind) if each.is_named(source))
    return next(found, None) or _extra(dependant, source)


def declared_values(dependant: Any, kind: str) -> Iterator[Declared]:
    """Return the values of a kind that an endpoint and its dependencies declare.

    The fields of a parameter model are such values, and the model itself is none.
    """
    for parameter in parameters_of(dependant, kind):
        info, model = parameter.field_info, model_of(parameter)
        if model is None:
            names, several = _names(info, parameter.alias), _is_collection(info)
            is_plain = len(names) == 1 and not several
            yield Declared(kind, parameter, parameter.name, names, None, several, is_plain)
        else:
            yield from _values_of_model(kind, parameter, model)


def parameters_of(dependant: Any, kind: str) -> Iterator[Any]:
    """Return FastAPI's fields of a kind, of an endpoint and its dependencies."""
    yield from getattr(dependant, f"{kind}_params")
    for each in dependant.dependencies:
        yield from parameters_of(each, kind)


def model_of(parameter: Any) -> type[BaseModel] | None:
    """Return the model whose fields FastAPI reads as parameters: ``Annotated[Model, Query()]``."""
    info = parameter.field_info
    if any(type(each) is Json for each in info.metadata):  # One parameter, whose text is JSON.
        return None
    kinds = [each for each in _members(info.annotation) if each is not type(None)]
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel):
        return kinds[0]
    return None


def _values_of_model(kind: str, parameter: Any, model: type[BaseModel]) -> Iterator[Declared]:
    dashes = getattr(parameter.field_info, "convert_underscores", True)
    config = model.model_config
    by_name = config.get("validate_by_name", config.get("populate_by_name", False))
    for name, info in model.model_fields.items():
        own = name
        if kind == "header" and getattr(info, "convert_underscores", dashes):
            own = name.replace("_", "-")
        names = [own] if config.get("validate_by_alias") is False else _names(info, own)
        names = [own if each == name else each for each in names]
        if by_name and own not in names:
            names = [*names, own]
        yield Declared(kind, parameter, name, names, model, _is_collection(info))


def _extra(dependant: Any, source: Source) -> Declared | None:
    """Return what a model declares of values that are none of its fields, if it allows them."""
    for parameter in parameters_of(dependant, source.kind):
        model = model_of(parameter)
        if model and model.model_config.get("extra") == "allow":
            # FastAPI may make a list of it, if the request repeats it; that is no key in any case.
            return Declared(source.kind, parameter, source.name, [source.name], model)
    return None


def _names(info: Any, name: str) -> list[str]:
    """Return the names that requests send a field under; ``name`` is what it has without an alias."""
    alias = info.validation_alias
    if isinstance(alias, AliasChoices):
        return [_first(each) for each in alias.choices]
    return [_first(alias or info.alias or name)]


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
