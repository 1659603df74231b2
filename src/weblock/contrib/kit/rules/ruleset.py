"""The rules of an application, in their order.

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

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...._options import HoldOptions
from ....errors import ConfigurationError, StrangePath
from .rule import METHODS, Match, Rule

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
        _first_tidied(rules, [with_end, _other_form(with_end)]),
        _first_tidied(rules, [tidy, f"{tidy}/"], ignores_slash=True),
    ]


def tidied(path: str) -> str:
    """Return a path with single slashes and without a final slash."""
    return "/" + (_SLASHES.sub("/", path) if "//" in path else path).strip("/")


def _first(rules: Sequence[Rule], forms: Iterable[str]) -> Match | None:
    """Return the first rule that matches the first of the forms that any rule matches."""
    for form in forms:
        for rule in rules:
            if (parameters := rule.path.match(form)) is not None:
                return Match(rule, parameters)
    return None


def _first_tidied(
    rules: Sequence[Rule], forms: Iterable[str], *, ignores_slash: bool = False
) -> Match | None:
    for form in forms:
        for rule in rules:
            spelling = form + rule.path.end if ignores_slash else form
            if (parameters := rule.path.match_tidied(spelling)) is not None:
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
            f"the path {path!r:.100} can be read in two ways: {one} matches it as it is written, and"
            f" {two} matches it as another router might read it"
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
    if isinstance(rules, Mapping):
        entries = {f"{name}.{label}": entry for label, entry in rules.items()}
    elif isinstance(rules, list | tuple):
        entries = {f"{name}[{number}]": entry for number, entry in enumerate(rules)}
    else:
        raise ConfigurationError(
            f"{name} is {rules!r:.80}: give a list of rules, or a mapping of names to rules"
        )
    for label, entry in entries.items():
        yield label, entry if isinstance(entry, Rule) else _rule(label, entry)


def _rule(label: str, entry: object) -> Rule:
    if not isinstance(entry, Mapping):
        raise ConfigurationError(
            f"{label} is {entry!r:.80}: give a Rule, or a mapping with path and key"
        )
    if strange := [field for field in entry if field not in _FIELDS]:
        raise ConfigurationError(
            f"{label} has {strange[0]!r:.80}, which is not an option of a rule; available: {', '.join(_FIELDS)}"
        )
    fields: dict[str, Any] = dict(entry)
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
