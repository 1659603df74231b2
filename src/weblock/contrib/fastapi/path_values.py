"""The values of path parameters, as the endpoint will see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError

if TYPE_CHECKING:
    from fastapi.requests import HTTPConnection


def path_values(connection: HTTPConnection, names: Iterable[str]) -> Mapping[str, object]:
    """Those path parameters of ``names`` that the path has, converted to their declared types.

    ``/items/7`` and ``/items/07`` are one item to an endpoint that declares an ``int``; so they
    must be one key too. Raises ``RequestValidationError``, as the endpoint would, for a value that
    does not convert.
    """
    given = connection.path_params
    fields = _fields(getattr(connection.scope.get("route"), "dependant", None))
    values: dict[str, object] = {}
    for name in names:
        if name in given:
            field = next((each for each in fields if each.alias == name), None)
            values[name] = _converted(field, given[name]) if field else given[name]
    return values


def _fields(dependant: Any) -> list[Any]:
    return list(_walk(dependant)) if dependant else []


def _walk(dependant: Any) -> Iterator[Any]:
    """The fields of the endpoint itself first, then those of what it depends on."""
    yield from dependant.path_params
    for each in dependant.dependencies:
        yield from _walk(each)


def _converted(field: Any, value: object) -> object:
    converted, errors = field.validate(value, {}, loc=("path", field.alias))
    if errors:
        raise RequestValidationError(errors if isinstance(errors, list) else [errors])
    return converted
