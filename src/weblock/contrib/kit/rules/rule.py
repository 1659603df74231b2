"""One rule: the requests that it is about, and what they lock."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Unpack

from ...._options import HoldOptions
from ....errors import ConfigurationError
from ....keys import CheckedKey, in_order, signature_of
from ..idempotency import refuse_safe
from ..once import Idempotent, RuleOnce
from ..spec import Headers, KeyFunction, LockSpec, name_of, request_values, wanted_by
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
    parameters, ``{query.x}``, ``{header.x}`` and ``{cookie.x}``, or a function that returns a key, several, or ``None`` to
    lock nothing. It is called with those path parameters that it names, and with ``scope`` (ASGI) or
    ``environ`` (WSGI) if it names that; it must not block. ``methods`` are all but ``WEBSOCKET`` unless they
    are named; ``GET`` includes ``HEAD``. ``exempt=True``, instead of a key, lets requests through
    that later rules would lock. With ``idempotent``, requests that are sent again are not
    executed again: see ``Idempotent``; then ``methods`` have to be named, and a key is not needed. ``options`` are those of ``HoldOptions``, in seconds.

    Raises ``ConfigurationError`` for what cannot work.
    """

    __slots__ = ("exempt", "lock", "methods", "once", "parameters", "path")

    path: Path
    lock: LockSpec
    """What the requests lock; it has no key if they are exempt, or only idempotent."""
    once: RuleOnce | None
    """How the requests are executed once."""
    methods: frozenset[str] | None
    exempt: bool
    parameters: frozenset[str]
    """The path's parameters that the keys are made of."""

    def __init__(
        self,
        path: str | re.Pattern[str],
        *,
        key: str | KeyFunction | Sequence[str | KeyFunction] = (),
        methods: Iterable[str] | None = None,
        exempt: bool = False,
        idempotent: Idempotent | None = None,
        **options: Unpack[HoldOptions],
    ) -> None:
        self.path = path_of(path)
        self.methods = methods_of(methods)
        self.exempt = exempt
        if not isinstance(exempt, bool):
            raise ConfigurationError(f"exempt={exempt!r:.80} must be True or False")
        keys: Sequence[Any] = key if isinstance(key, list | tuple) else [key]
        if not all(isinstance(each, str) or callable(each) for each in keys):
            raise ConfigurationError(
                f"key={key!r:.80} must be a template such as 'shop:{{shop}}', a function that returns a"
                " key, or a list of them"
            )
        if exempt and (keys or options or idempotent is not None):
            raise ConfigurationError(
                f"{self!r} is exempt and locks nothing: give it no key or option"
            )
        if not (exempt or keys or (idempotent is not None and not options)):
            raise ConfigurationError(f"{self!r} has no key: name what it locks, or exempt=True")
        self.once = None
        if idempotent is not None:
            refuse_safe(["GET", "HEAD"] if self.methods is None else self.methods, repr(self))
            if WEBSOCKET in (self.methods or ()):
                raise ConfigurationError(f"{self!r} is idempotent, and a websocket has no response")
            self.once = RuleOnce.of_rule(idempotent)
        self.lock = LockSpec.of(keys, options) if keys else LockSpec((), (), None, {})
        self.parameters = frozenset(
            source.name
            for template in self.lock.templates
            for source in template.sources.values()
            if source.kind == "path"
        )
        for function in self.lock.functions:
            self.parameters |= _named_by(function, self.path)
        if missing := sorted(self.parameters - self.path.names):
            raise ConfigurationError(
                f"key {key!r} needs the path parameter {missing[0]!r}, but"
                f" {self.path.text} has {', '.join(sorted(self.path.names)) or 'none'}",
                code="missing_value",
            )

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

    def keys(self, *, query: str, headers: Headers, **request: object) -> tuple[CheckedKey, ...]:
        """Return what the request locks, in order; nothing if its key functions return ``None``.

        ``request`` is what a key function may name besides path parameters: ``scope`` or ``environ``. Raises
        ``InvalidKey`` if a value is missing.
        """
        keys: tuple[CheckedKey, ...] = ()
        for parameters in (self.parameters, self.tidied):
            if parameters is None:
                continue
            path = {}
            for name in self.rule.parameters:
                value = parameters.get(name)
                if value is not None:
                    path[name] = self.rule.path.convert(name, value)
            values_for = partial(request_values, path=path, query=query, headers=headers)
            call = partial(_call, values={**path, **request})
            keys += self.rule.lock.made_of(values_for, call)
        return keys if self.tidied is None else in_order(keys)


def _call(function: KeyFunction, values: Mapping[str, object]) -> object:
    return function(**wanted_by(function, values))


def _named_by(function: KeyFunction, path: Path) -> frozenset[str]:
    """Return the path parameters that a key function names.

    Raises ``ConfigurationError`` for a function that is async, or has parameters that no request gives.
    """
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"key function {name_of(function)} is async: write a plain function, or call"
            " `await request_locks(scope).acquire(key)` in the application",
            code="key_function",
        )
    values = dict.fromkeys(path.names)
    try:
        wanted = wanted_by(function, values)
        signature_of(function).bind(
            **wanted_by(function, {**values, "scope": None, "environ": None})
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"key function {name_of(function)} cannot be called for {path.text}: {error}. It is given the"
            f" path parameters that it names, of {', '.join(sorted(path.names)) or 'none'}, and scope (ASGI)"
            " or environ (WSGI)",
            code="key_function",
        ) from error
    return frozenset(wanted)


def methods_of(given: Iterable[object] | None) -> frozenset[str] | None:
    """Return the methods of a rule or a view; ``None`` for all. Raises ``ConfigurationError`` for an unknown one."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"methods={given!r:.80} must be a list, such as [{'POST'!r}]")
    methods = frozenset(each.upper() if isinstance(each, str) else each for each in given)
    if unknown := methods - METHODS:
        raise ConfigurationError(
            f"method {next(iter(unknown))!r:.80} is unknown; available: {', '.join(sorted(METHODS))}. A"
            " rule without methods applies to all of them but WEBSOCKET"
        )
    if not methods:
        raise ConfigurationError(
            "methods is empty, so nothing would be locked: leave it out for all methods"
        )
    found = frozenset(map(str, methods))
    return found | {"HEAD"} if "GET" in found else found
