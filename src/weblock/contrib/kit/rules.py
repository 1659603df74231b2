"""Which requests lock what: the rules of an application by URL, in their order.

Routers differ in how they read a path: some read several slashes as one, ignore a final slash, or take
more spellings of a number. A rule cannot know which router is behind it. So a path is matched twice:

1. as it is written, below ``root_path``, as Starlette reads it;
2. tidied: with single slashes, and with every spelling of a typed value; once with its final slash, and
   once as a router reads it that ignores final slashes.

Where all find the same rule, the request holds its keys. Where they find different rules, or one of them
finds none, the request is refused with 400 (``StrangePath``) before anything runs. So it is if the path has
what no client sends by itself and routers treat differently: control characters, bytes that are not UTF-8,
and dot segments. Two rules that differ only in their final slash are not taken for different: the path as
it is written decides.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Unpack

from ..._options import HoldOptions
from ...errors import ConfigurationError, StrangePath
from ...keys import CheckedKey, in_order, signature_of
from .idempotency import refuse_safe
from .once import Idempotent, RuleOnce
from .paths import Path, path_of
from .spec import Headers, KeyFunction, LockSpec, name_of, request_values, wanted_by

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
        keys = keys_in(key)
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
            call = partial(_call, path=path, request=request)
            keys += self.rule.lock.made_of(values_for, call)
        return keys if self.tidied is None else in_order(keys)


def _call(
    function: KeyFunction, path: Mapping[str, object], request: Mapping[str, object]
) -> object:
    return function(**wanted_by(function, {**path, **request}))


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
            f"key function {name_of(function)} cannot be called for {path.text}: {error}. It is"
            " given the path parameters that it names, of"
            f" {', '.join(sorted(path.names)) or 'none'}, and scope (ASGI) or environ (WSGI)",
            code="key_function",
        ) from error
    return frozenset(wanted)


def keys_in(key: object) -> Sequence[str | KeyFunction]:
    """Return what the ``key`` of a rule names. Raises ``ConfigurationError``."""
    keys: Sequence[Any] = key if isinstance(key, list | tuple) else [key]
    if not all(isinstance(each, str) or callable(each) for each in keys):
        raise ConfigurationError(
            f"key={key!r:.80} must be a template such as 'shop:{{shop}}', a function that returns a"
            " key, or a list of them"
        )
    return keys


def entries_of(rules: object, name: str) -> Mapping[str, object]:
    """Return rules of a list, or of a mapping by their names, each with what errors call it.

    Raises ``ConfigurationError``.
    """
    if isinstance(rules, Mapping):
        return {f"{name}.{label}": entry for label, entry in rules.items()}
    if isinstance(rules, list | tuple):
        return {f"{name}[{number}]": entry for number, entry in enumerate(rules)}
    raise ConfigurationError(
        f"{name} is {rules!r:.80}: give a list of rules, or a mapping of names to rules"
    )


def fields_of(label: str, entry: object, known: Sequence[str], *, remedy: str) -> dict[str, Any]:
    """Return the fields of a rule that was given as plain data. Raises ``ConfigurationError``."""
    if not isinstance(entry, Mapping):
        raise ConfigurationError(f"{label} is {entry!r:.80}: {remedy}")
    if strange := [field for field in entry if field not in known]:
        raise ConfigurationError(
            f"{label} has {strange[0]!r:.80}, which is not an option of a rule; available:"
            f" {', '.join(known)}"
        )
    return dict(entry)


def methods_of(given: Iterable[object] | None) -> frozenset[str] | None:
    """Return the methods of a rule or a view; ``None`` for all. Raises ``ConfigurationError`` for an unknown one."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"methods={given!r:.80} must be a list, such as [{'POST'!r}]")
    methods = frozenset(each.upper() if isinstance(each, str) else each for each in given)
    if unknown := methods - METHODS:
        raise ConfigurationError(
            f"method {next(iter(unknown))!r:.80} is unknown; available:"
            f" {', '.join(sorted(METHODS))}. A rule without methods applies to all of them but"
            " WEBSOCKET"
        )
    if not methods:
        raise ConfigurationError(
            "methods is empty, so nothing would be locked: leave it out for all methods"
        )
    found = frozenset(map(str, methods))
    return found | {"HEAD"} if "GET" in found else found


_OPTIONS: Final = tuple(HoldOptions.__annotations__)
_FIELDS: Final = ("path", "regex", "key", "methods", "exempt", "idempotent", *_OPTIONS)

_PLAIN: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[ -.0-~]+)+").fullmatch
"""Matches a path in ASCII that is tidy already, and has no final slash."""

_SLASHES: Final = re.compile("/{2,}")

_REFUSED: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ufffd\ud800-\udfff]" + r"|(?<![^/])\.{1,2}(?![^/])"
).search
"""Finds control characters, what stands for bytes that are not UTF-8, and dot segments."""


class RuleSet:
    """Rules, of which the first that matches a request counts."""

    __slots__ = ("_by_method", "_for_other_methods", "_rules", "named")

    def __init__(self, rules: object = (), *, name: str = "rules") -> None:
        """``rules`` are ``Rule`` objects, or mappings of what ``Rule`` takes.

        They stand in a list, in a mapping by their names, or in JSON. ``name`` is what errors call
        the whole. Raises ``ConfigurationError``, which names the rule that cannot work, also where
        one stands behind another that matches all its requests.
        """
        named = tuple(_named(rules, name))
        for number, (label, rule) in enumerate(named):
            for before, other in named[:number]:
                if other.hides(rule):
                    raise ConfigurationError(
                        f"{label}, {rule!r}, can never match: {before}, {other!r}, precedes it"
                        " and matches all its requests. Put the narrower one first"
                    )
        self.named = named
        """The rules, each with what errors call it."""
        self._rules = tuple(rule for _, rule in named)
        self._by_method = {method: self._for(method) for method in METHODS}
        self._for_other_methods = self._for("")

    def _for(self, method: str) -> tuple[Rule, ...]:
        return tuple(rule for rule in self._rules if rule.takes(method))

    def __repr__(self) -> str:
        return f"RuleSet({list(self._rules)!r})"

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def find(self, method: str, path: str, *, root_path: str = "") -> Match | None:
        """Return what a request locks; ``None`` if nothing.

        ``path`` and ``root_path`` are as ASGI has them, decoded; ``method`` is ``WEBSOCKET`` for
        a websocket. Raises ``StrangePath`` for a path that routers may read in different ways.
        """
        rules = self._by_method.get(method.upper(), self._for_other_methods)
        if not rules:
            return None
        # Most paths are plain, and ``decided`` takes twice as long for them.
        if not root_path and _PLAIN(path):
            for form in (path, f"{path}/"):
                for rule in rules:
                    if (parameters := rule.path.match(form)) is not None:
                        return None if rule.exempt else Match(rule, parameters)
                    if rule.path.is_alike:
                        continue
                    if rule.path.match_tidied(path + rule.path.end) is not None:
                        return agreed(decided(rules, path, ""), path)
            return None
        if found := _REFUSED(path):
            raise StrangePath(
                f"the path {path!r:.100} has {found[0]!r}, which routers interpret differently"
            )
        return agreed(decided(rules, path, root_path), path)


def decided(rules: Sequence[Rule], path: str, root_path: str) -> list[Match | None]:
    """Return what matches a path in each reading; the first is the path as it is written."""
    routed = path
    if root_path and path.startswith(root_path):
        rest = path[len(root_path) :]
        routed = rest if rest[:1] in ("", "/") else path  # As Starlette computes it.
    readings = [_first(rules, [routed, _other_form(routed)]), *_of_tidied(rules, routed)]
    if root_path and routed == path and root_path in path:
        # Litestar removes the root path wherever it stands, with all that is before it.
        readings += filter(None, _of_tidied(rules, path.split(root_path, maxsplit=1)[-1]))
    return readings


def _of_tidied(rules: Sequence[Rule], path: str) -> list[Match | None]:
    """Return the match of the tidied path, and its match for a router that ignores final slashes."""
    tidy = tidied(path)
    with_end = tidy + "/" * (path[-1:] == "/" != tidy)
    return [
        _first(rules, [with_end, _other_form(with_end)], is_tidy=True),
        _first(rules, [tidy, f"{tidy}/"], is_tidy=True, ignores_slash=True),
    ]


def tidied(path: str) -> str:
    """Return a path with single slashes and without a final slash."""
    return "/" + (_SLASHES.sub("/", path) if "//" in path else path).strip("/")


def _first(
    rules: Sequence[Rule],
    forms: Iterable[str],
    *,
    is_tidy: bool = False,
    ignores_slash: bool = False,
) -> Match | None:
    """Return the first rule that matches the first of the forms that any rule matches."""
    for form in forms:
        for rule in rules:
            if is_tidy:
                parameters = rule.path.match_tidied(form + rule.path.end * ignores_slash)
            else:
                parameters = rule.path.match(form)
            if parameters is not None:
                return Match(rule, parameters)
    return None


def _other_form(path: str) -> str:
    """Return the path without its final slash, or with one."""
    return path[:-1] if path[-1:] == "/" else f"{path}/"


def agreed(readings: Sequence[Match | None], path: str) -> Match | None:
    """Return the match that counts; ``None`` if nothing is locked. Raises ``StrangePath``."""
    if not any(each and not each.rule.exempt for each in readings):
        return None
    written, *others = readings
    for other in others:
        if written and other and written.rule.path.bare == other.rule.path.bare:
            if other.rule is written.rule and other.parameters != written.parameters:
                written.tidied = other.parameters
            continue
        one, two = (repr(each.rule) if each else "no rule" for each in (written, other))
        raise StrangePath(
            f"the path {path!r:.100} can be read in two ways: {one} matches it as it is written,"
            f" and {two} matches it as another router might read it"
        )
    return None if written is None or written.rule.exempt else written


# Rules from plain data: TOML, JSON in the environment, a framework's settings.


def _named(rules: object, name: str) -> Iterator[tuple[str, Rule]]:
    """Return the rules, each with its name for errors. Raises ``ConfigurationError``."""
    if isinstance(rules, str):
        try:
            rules = json.loads(rules)
        except ValueError as error:
            raise ConfigurationError(f"{name} is not JSON: {error}") from error
    for label, entry in entries_of(rules, name).items():
        yield label, entry if isinstance(entry, Rule) else _rule(label, entry)


def _rule(label: str, entry: object) -> Rule:
    fields = fields_of(label, entry, _FIELDS, remedy="give a Rule, or a mapping with path and key")
    for field in ("wait", "max_hold"):
        if fields.get(field) == math.inf:  # TOML has no null.
            fields[field] = None
    if ("path" in fields) == ("regex" in fields):
        raise ConfigurationError(f"{label}: give either path or regex")
    try:
        path = fields.pop("path") if "path" in fields else re.compile(fields.pop("regex"))
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"{label}: regex cannot be read: {error}") from error
    try:
        return Rule(path, **fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{label}: {error.message}", code=error.code) from error
