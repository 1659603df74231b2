"""What a key template is filled in from: the values that the endpoint will see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError

from ...errors import ConfigurationError
from ...keys import KeyTemplate, Source
from ..request_values import request_values

if TYPE_CHECKING:
    from fastapi.requests import HTTPConnection


def values_for(template: KeyTemplate, connection: HTTPConnection) -> Mapping[str, object]:
    """The values of the request for ``template``, converted to their declared types.

    ``/items/7`` and ``/items/07`` are one item to an endpoint that declares an ``int``; so they
    must be one key too. So it is with query parameters and headers, and a declared default stands
    for one that is missing.

    Raises ``RequestValidationError``, as the endpoint would, for a value that does not convert,
    ``InvalidKey`` for one that was sent twice, and ``ConfigurationError`` for a path parameter that
    the path has not.
    """
    sources = template.in_request()
    path = connection.path_params
    refuse_unknown_path_parameters(template, path)
    values = request_values(
        template,
        path=path,
        query=connection.scope["query_string"].decode("latin-1"),
        headers=connection.headers.getlist,
    )
    dependant = getattr(connection.scope.get("route"), "dependant", None)
    for name, source in sources.items():
        if field := _field_of(source, dependant):
            _convert(name, source, field, values)
    return values


def refuse_unknown_path_parameters(template: KeyTemplate, known: Mapping[str, object]) -> None:
    """Raises ``ConfigurationError`` where the template names a path parameter that is not known."""
    for source in template.in_request().values():
        if source.kind == "path" and source.name not in known:
            there = ", ".join(map(repr, known)) or "none"
            raise ConfigurationError(
                f"lock({template.text!r}) wants the path parameter {source.name!r}, but the path"
                f" has {there}; {{query.{source.name}}} would be a query parameter, and"
                f" {{header.{source.name}}} a header"
            )


def _field_of(source: Source, dependant: Any) -> Any | None:
    """The declaration of the value in the endpoint itself, or else in what it depends on."""
    fields = declared_fields(dependant, f"{source.kind}_params") if dependant else ()
    return next((field for field in fields if _is_named(field, source)), None)


def declared_fields(dependant: Any, kind: str) -> Iterator[Any]:
    """The parameters of a kind, ``path_params`` say, of an endpoint and of all that it depends on."""
    yield from getattr(dependant, kind)
    for each in dependant.dependencies:
        yield from declared_fields(each, kind)


def _is_named(field: Any, source: Source) -> bool:
    if source.kind == "header":
        return str(field.alias).lower().replace("_", "-") == source.name.replace("_", "-")
    return bool(field.alias == source.name)


def _convert(name: str, source: Source, field: Any, values: dict[str, object]) -> None:
    loc = (source.kind, field.alias)
    if name not in values:
        if field.field_info.is_required():
            missing = {"type": "missing", "loc": loc, "msg": "Field required", "input": None}
            raise RequestValidationError([missing])
        if (default := field.get_default()) is not None:
            values[name] = default
        return
    converted, errors = field.validate(values[name], {}, loc=loc)
    if errors:
        raise RequestValidationError(errors if isinstance(errors, list) else [errors])
    values[name] = converted
