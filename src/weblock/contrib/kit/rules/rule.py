"""One rule: the requests that it is about, and what they lock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Unpack

from ...._options import HoldOptions, Options
from ....errors import ConfigurationError
from ....keys import KeyTemplate
from ..values import Headers, request_values
from .paths import Path, path_of

WEBSOCKET: Final = "WEBSOCKET"
"""The name for websockets among the methods of a rule."""

METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"}
    | {"COPY", "LOCK", "MKCOL", "MOVE", "PROPFIND", "PROPPATCH", "PURGE", "REPORT", "SEARCH"}
    | {"UNLOCK", WEBSOCKET}
)
"""The methods that a rule may name."""


class Rule:
    """Requests to ``path`` hold ``key`` while they are served.

    ``path`` is in Starlette's syntax, ``/shops/{shop}/items/{item_id:int}``, or a compiled regular
    expression, which has to match the whole path. ``key`` is a template, or several, of path
    parameters, ``{query.x}`` and ``{header.x}``. ``methods`` are all but ``WEBSOCKET`` unless they
    are named; ``GET`` includes ``HEAD``. ``exempt=True``, instead of a key, lets requests through
    that later rules would lock. ``options`` are those of ``HoldOptions``, in seconds.

    Raises ``ConfigurationError`` for what cannot work.
    """

    __slots__ = ("exempt", "keys", "methods", "options", "parameters", "path")

    path: Path
    keys: tuple[KeyTemplate, ...]
    methods: frozenset[str] | None
    exempt: bool
    options: HoldOptions
    parameters: frozenset[str]
    """The path's parameters that the keys are made of."""

    def __init__(
        self,
        path: str | re.Pattern[str],
        *,
        key: str | Sequence[str] = (),
        methods: Iterable[str] | None = None,
        exempt: bool = False,
        **options: Unpack[HoldOptions],
    ) -> None:
        self.path = path_of(path)
        self.keys = _keys(key)
        self.methods = None if methods is None else methods_of(methods)
        self.exempt = _flag(exempt)
        self.options = options
        self._check()
        self.parameters = frozenset(self._parameters())

    def _check(self) -> None:
        if self.exempt and (self.keys or self.options):
            raise ConfigurationError(
                f"{self!r} is exempt and locks nothing: give it no key or option"
            )
        if not self.exempt and not self.keys:
            raise ConfigurationError(f"{self!r} has no key: name what it locks, or exempt=True")
        Options().of_call(self.options)
        for template in self.keys:
            for source in template.in_request().values():
                if source.kind == "path" and source.name not in self.path.names:
                    raise ConfigurationError(
                        f"key {template.text!r} needs the path parameter {source.name!r}, but"
                        f" {self.path.text} has {', '.join(sorted(self.path.names)) or 'none'}"
                    )

    def _parameters(self) -> Iterator[str]:
        for template in self.keys:
            for source in template.in_request().values():
                if source.kind == "path":
                    yield source.name

    def takes(self, method: str) -> bool:
        """Return whether it matches requests of this method, given in capitals."""
        return method != WEBSOCKET if self.methods is None else method in self.methods

    def hides(self, other: Rule) -> bool:
        """Return whether it certainly matches all requests that ``other`` matches."""
        if self.methods is None:
            methods = other.methods is None or WEBSOCKET not in other.methods
        else:
            methods = other.methods is not None and other.methods <= self.methods
        return methods and self.path.covers(other.path)

    def __repr__(self) -> str:
        methods = "" if self.methods is None else f", methods={sorted(self.methods)}"
        return f"Rule({self.path.text!r}{methods})"


@dataclass(slots=True)
class Match:
    """A request that a rule is about, with the path's parameters as they stand there.

    ``tidied`` are the parameters in the path as other routers may read it, where those are others: an
    endpoint may be given either, so the keys of both are held. Each request makes a match, and to make a
    frozen one would take three times as long.
    """

    rule: Rule
    parameters: Mapping[str, str | None]
    tidied: Mapping[str, str | None] | None = None

    def keys(self, *, query: str, headers: Headers) -> list[str]:
        """Return what the request locks. Raises ``InvalidKey`` if a value is missing."""
        found: list[str] = []
        for parameters in (
            (self.parameters,) if self.tidied is None else (self.parameters, self.tidied)
        ):
            path = self._path(parameters)
            for template in self.rule.keys:
                values = request_values(template, path=path, query=query, headers=headers)
                found.append(template.fill(values))
        return found

    def _path(self, parameters: Mapping[str, str | None]) -> Mapping[str, object]:
        """Return the values of the parameters that the keys are made of."""
        found, convert = {}, self.rule.path.convert
        for name in self.rule.parameters:
            value = parameters.get(name)
            if value is not None:
                found[name] = convert(name, value)
        return found


def _keys(given: object) -> tuple[KeyTemplate, ...]:
    texts = given if isinstance(given, list | tuple) else [given]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(
            f"key={given!r:.80} must be a template such as 'shop:{{shop}}', or a list of them. A key"
            " that only a function can make is acquired in the application:"
            " await request_locks(scope).acquire(key)"
        )
    return tuple(map(KeyTemplate.parse, texts))


def methods_of(given: Iterable[str]) -> frozenset[str]:
    """Return the methods of a rule. Raises ``ConfigurationError`` for an unknown method."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"methods={given!r:.80} must be a list, such as [{'POST'!r}]")
    methods = frozenset(map(_method, given))
    if not methods:
        raise ConfigurationError(
            "methods is empty, so nothing would be locked: leave it out for all methods"
        )
    return methods | {"HEAD"} if "GET" in methods else methods


def _method(given: object) -> str:
    method = given.upper() if isinstance(given, str) else given
    if method not in METHODS:
        raise ConfigurationError(
            f"method {given!r:.80} is unknown; there is {', '.join(sorted(METHODS))}, and a rule"
            " without methods is for all but WEBSOCKET"
        )
    return str(method)


def _flag(exempt: object) -> bool:
    if not isinstance(exempt, bool):
        raise ConfigurationError(f"exempt={exempt!r:.80} must be True or False")
    return exempt
