"""What endpoints and their dependencies declare, and the values they are given of a request.

FastAPI's own code converts each value here, so that a key has the value the endpoint sees.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from fastapi.datastructures import Headers
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.requests import HTTPConnection
from pydantic import AliasChoices, AliasPath, BaseModel, Json
from pydantic.types import UuidVersion

from ...errors import ConfigurationError
from ...keys import KeyTemplate, Source
from ..request_values import sent_value


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
    _refuse_different_conversions(found, source, template)
    # They differ at most in what they reject, and in whether the template still has to convert the text.
    return min(found, key=lambda each: (_is_text(each), not _is_required(each)), default=None)


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


# Which declarations of one name agree. A key is made of one of them, and the work may use another: with
# the text of an audit, ``7`` and ``07`` are two keys, and an endpoint that declares an ``int`` would work
# on the shop 7 under both. They agree if every text that all of them accept makes the same value in each.
# What only rejects texts, such as ``ge=1``, does not count: a request that it rejects does no work.

_MADE_OF_TEXT: Final = {"int": int, "uuid": UUID}
"""The types that converters of a template make of a text."""

_REJECTING: Final = frozenset(
    {"pattern", "min_length", "max_length", "ascii_only", "strict"}
    | {"allow_inf_nan", "decimal_places", "max_digits"}
)
"""Options of Pydantic that reject texts, and change no value."""


class _Conversion(NamedTuple):
    """What makes a value of a text, and of a parameter that is missing."""

    names: Sequence[str]
    kind: object
    changes: list[object]
    """Validators and the like, in their order."""
    missing: object = None


def _refuse_different_conversions(
    found: Sequence[Declared], source: Source, template: KeyTemplate
) -> None:
    pairs = zip(template.names, template.converters, strict=True)
    used = {name: converter for name, converter in pairs if template.sources[name] == source}
    texts = {_MADE_OF_TEXT.get(converter, str) for converter in used.values()}
    text = texts.pop() if len(texts) == 1 else str
    # Where one of them requires the parameter, a request without it does no work.
    required = any(map(_is_required, found))
    conversions = [_conversion(each, text, required=required) for each in found]
    other = next((n for n, each in enumerate(conversions) if each != conversions[0]), None)
    if other is not None:
        two, name = (found[0], found[other]), next(iter(used))
        remedy = _other_template(two, name, required=required)
        raise ConfigurationError(
            f"lock({template.text!r}) cannot tell which {{{name}}} the work uses:"
            f" {_described(two[0])}, and {_described(two[1])}, so that one thing could have two keys."
            f" Declare it with one type, default and alias,{remedy} or"
            " give lock() a key function that declares it as the work does"
        )


def _other_template(two: Sequence[Declared], name: str, *, required: bool) -> str:
    """Return the template that two different declarations would agree for, if there is one."""
    for converter, kind in _MADE_OF_TEXT.items():
        one, other = (_conversion(each, kind, required=required) for each in two)
        if one == other and one.kind is kind:
            return f" write {{{name}:{converter}}} in the key,"
    return ""


def _conversion(declared: Declared, text: type, *, required: bool) -> _Conversion:
    """Return how a value is made; ``text`` is what the template makes of one that stays a text."""
    info, names = declared.parameter.field_info, declared.names
    missing = info.default, info.default_factory, bool(info.validate_default)
    if declared.model:  # Its validators and its configuration may change the value in any way.
        return _Conversion(names, (declared.model, declared.name), [], missing)
    kind, changes = _kind_and_changes(info.annotation, info.metadata)
    kind = text if kind is str and not changes else kind
    return _Conversion(names, kind, changes, None if required else missing)


def _kind_and_changes(
    annotation: Any, metadata: Sequence[object] = ()
) -> tuple[object, list[object]]:
    changes = [each for each in metadata if not _only_rejects(each)]
    within = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        within = tuple(each for each in within if each is not NoneType)  # No text becomes ``None``.
        if len(within) > 1:  # Which of them it becomes may hang on what the others reject.
            return within, changes
        kind, inner = _kind_and_changes(within[0])
    elif get_origin(annotation) is Annotated:
        kind, inner = _kind_and_changes(within[0], within[1:])
    else:
        kind, inner = str if _keeps_text(annotation) else annotation, []
    return kind, [*inner, *changes]


def _keeps_text(annotation: Any) -> bool:
    """Return whether each text that is accepted stays as it is, as that of an enum does."""
    if get_origin(annotation) is Literal:
        return all(type(each) is str for each in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        bases = annotation.__mro__[: annotation.__mro__.index(Enum)]
        converts = any("_missing_" in vars(each) for each in bases)
        return not converts and all(type(each.value) is str for each in annotation)
    return annotation is str


def _only_rejects(metadata: object) -> bool:
    module = type(metadata).__module__.partition(".")[0]
    if module == "annotated_types" or isinstance(metadata, NoneType | str | UuidVersion):
        return True
    options = getattr(metadata, "__dict__", {})
    given = {name for name, value in options.items() if value is not None}
    return module == "pydantic" and bool(given) and given <= _REJECTING


def _is_text(declared: Declared) -> bool:
    """Return whether the value is the text of the request itself."""
    conversion = _conversion(declared, str, required=True)
    return conversion.kind is str and not conversion.changes


def _is_required(declared: Declared) -> bool:
    return bool(declared.parameter.field_info.is_required())


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
