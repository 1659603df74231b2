"""What a key template is filled in from, of a request of any framework."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from ..._face import warn_of_templates
from ...errors import ConfigurationError, InvalidKey
from ...keys import CheckedKey, KeyTemplate, Source, check_key

_HOST: Final = Source("header", "host")

KeyFunction = Callable[..., Any]
"""A function of an application that returns a key, or several."""

Headers = Callable[[str], Sequence[str]]
"""Returns the values of a header by its lower-case name: several, if sent several times."""


def request_values(
    template: KeyTemplate, *, path: Mapping[str, object], query: str, headers: Headers
) -> dict[str, object]:
    """The values that the request has for ``template``; what it lacks is left out.

    ``path`` has the path parameters, ``query`` is the query string as it was sent. Raises
    ``InvalidKey`` for a query parameter or a header that was sent twice: which of them counts
    would be each reader's own choice, and the lock has to be the handler's.
    """
    values: dict[str, object] = {}
    for name, source in template.sources.items():
        if source.kind == "path":
            value = path.get(source.name)
        else:
            value = sent_value(source, query=query, headers=headers)
        if value is not None:
            values[name] = value
    return values


def sent_value(source: Source, *, query: str, headers: Headers) -> str | None:
    """The query parameter or the header; ``None`` if it was not sent. Raises as ``request_values``.

    The header ``Host`` is the host's name alone: see ``_host_name``.
    """
    if source.kind == "header":
        found = headers(source.name)
    else:
        pairs = parse_qsl(query, keep_blank_values=True)
        found = [value for name, value in pairs if name == source.name]
    if len(found) > 1:
        raise InvalidKey(
            f"a lock needs one {source.kind} value of {source.name!r}, and the request has {len(found)}"
        )
    if not found:
        return None
    return _host_name(found[0]) if source == _HOST else found[0]


def _host_name(header: str) -> str:
    """Return the name in a ``Host`` header: in lower case, without the port and a dot at the end.

    Routers that choose by host, Starlette's and Django's, mind none of these; and a client may write
    the default port, or leave it out.
    """
    name, bracket, _ = header.strip().lower().partition("]")
    return name + bracket if bracket else name.partition(":")[0].removesuffix(".")


def wanted_by(
    function: Callable[..., object], values: Mapping[str, object]
) -> Mapping[str, object]:
    """Return those of the values that a key function names as parameters; all, if it takes any."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return values
    return {name: values[name] for name in parameters if name in values}


def keys_made_by(function: Callable[..., object], made: object) -> list[CheckedKey]:
    """Return the keys that the application's key function has made from a request.

    Raises ``ConfigurationError`` if it returned nothing, or something other than strings, and
    ``InvalidKey`` for a string that cannot be locked.
    """
    given = [made] if isinstance(made, str) or not isinstance(made, Iterable) else list(made)
    texts = [key for key in given if isinstance(key, str)]
    keys = [check_key(key) for key in texts]
    if not given or len(keys) < len(given):
        raise ConfigurationError(
            f"key function {getattr(function, '__qualname__', function)!s} gave {made!r:.80}: a key"
            " is a string; several are a list of strings"
        )
    warn_of_templates([key for key in texts if "{" in key])
    return keys
