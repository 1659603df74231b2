"""What a key template is filled in from, of a request of any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import parse_qsl

from ..errors import InvalidKey
from ..keys import KeyTemplate

Headers = Callable[[str], Sequence[str]]
"""From the name of a header, in lower case, to its values: several, if it was sent several times."""


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
            if (value := path.get(source.name)) is not None:
                values[name] = value
            continue
        found = headers(source.name) if source.kind == "header" else _of_query(source.name, query)
        if len(found) > 1:
            raise InvalidKey(
                f"key template {template.text!r} wants one {source.kind} value of"
                f" {source.name!r}, and the request has {len(found)}"
            )
        if found:
            values[name] = found[0]
    return values


def _of_query(name: str, query: str) -> Sequence[str]:
    return [value for each, value in parse_qsl(query, keep_blank_values=True) if each == name]
