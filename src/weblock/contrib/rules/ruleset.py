"""The rules of an application, in their order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ...errors import ConfigurationError
from .mapping import named_rules
from .rule import METHODS, Match, Rule

_SLASHES: Final = re.compile("/{2,}")

_PLAIN: Final = re.compile("(?:/[ -.0-~]+)+").fullmatch
"""Matches a path in ASCII without an empty segment, whose slashes and digits all routers read alike."""


class RuleSet:
    """Rules, of which the first that matches a request counts."""

    __slots__ = ("_by_method", "_for_other_methods", "_rules", "named")

    def __init__(self, rules: object = (), *, name: str = "rules") -> None:
        """``rules`` are ``Rule`` objects, or mappings of what ``Rule`` takes.

        They stand in a list, in a mapping by their names, or in JSON. ``name`` is what errors call
        the whole. Raises ``ConfigurationError``, which names the rule that cannot work, also where
        one stands behind another that matches all its requests.
        """
        named = list(named_rules(rules, name))
        _refuse_hidden(named)
        self.named = tuple(named)
        """The rules, each with what errors call it."""
        self._rules = tuple(rule for _, rule in named)
        self._by_method = {method: self._for(method) for method in METHODS}
        self._for_other_methods = self._for("")

    def _for(self, method: str) -> tuple[tuple[Rule, ...], bool]:
        """Return the rules for a method, and whether routers read a plain path alike for all of them."""
        rules = tuple(rule for rule in self._rules if rule.takes(method))
        return rules, not any(rule.path.is_lenient for rule in rules)

    def __repr__(self) -> str:
        return f"RuleSet({list(self._rules)!r})"

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def find(self, method: str, path: str, *, root_path: str = "") -> Match | None:
        """What a request locks; ``None`` if nothing.

        ``path`` and ``root_path`` are as ASGI has them, decoded; ``method`` is ``WEBSOCKET`` for
        a websocket.
        """
        rules, alike = self._by_method.get(method.upper(), self._for_other_methods)
        if not rules:
            return None
        # Most paths are plain, and ``decided`` takes nearly three times as long for them.
        if not root_path and _PLAIN(path):
            found = _undoubted(rules, path)
            if found is None and alike:
                found = _undoubted(rules, f"{path}/")
            if found or alike:
                return None if found is None or found.rule.exempt else found
        certain, doubtful = decided(rules, path, root_path)
        if certain and not certain.rule.exempt:
            return replace(certain, others=doubtful) if doubtful else certain
        return replace(doubtful[0], others=doubtful[1:]) if doubtful else None


def decided(
    rules: Sequence[Rule], path: str, root_path: str
) -> tuple[Match | None, tuple[Match, ...]]:
    """Return the rule that matches a path, and others that match it as another router reads it."""
    ways, normal = readings(path, root_path)
    certain = _certain(rules, ways[:1])
    is_as_written = certain is not None
    if certain:
        others = rules[: rules.index(certain.rule)]
    else:  # Nothing says that a router asks for this one first.
        certain = _certain(rules, ways[1:])
        others = [rule for rule in rules if certain is None or rule is not certain.rule]
    doubtful = [*_doubtful(others, (*normal, *ways))]
    if path.endswith("\n"):
        below = [each for each in _below_mounts(rules, path) if each != certain]
        if certain is None and below:
            certain, *below = below
        doubtful += below
    if certain:
        doubtful += _read_otherwise(rules, certain, ways[0], normal if is_as_written else ways)
    return certain, tuple(doubtful)


def _undoubted(rules: Iterable[Rule], path: str) -> Match | None:
    """Return the first rule that matches a plain path, unless it may be meant for one before that."""
    for rule in rules:
        if (parameters := rule.path.match(path)) is not None:
            return Match(rule, parameters)
        if rule.path.is_lenient:
            return None
    return None


def _certain(rules: Iterable[Rule], ways: Iterable[str]) -> Match | None:
    """Return the first rule that matches the first reading that any rule matches."""
    for way in ways:
        for rule in rules:
            if (parameters := rule.path.match(way)) is not None:
                return Match(rule, parameters)
    return None


def _doubtful(rules: Iterable[Rule], ways: Iterable[str]) -> Iterator[Match]:
    """Return the rules that may also match, if the router behind reads the path otherwise."""
    for rule in rules:
        for way in () if rule.exempt else ways:
            if (parameters := rule.path.match_doubtful(way)) is not None:
                yield Match(rule, parameters)
                break


def _read_otherwise(
    rules: Iterable[Rule], certain: Match, routed: str, ways: Iterable[str]
) -> Iterator[Match]:
    """Return what a router would lock that reads the path otherwise than Starlette's.

    A slash at the end alone does not lead to another rule, for there may be rules for both; but the
    same rule may make another key of it.
    """
    for way in ways:
        if way != routed:
            is_bare = routed and way.rstrip("/") == routed.rstrip("/")
            found = _certain([certain.rule] if is_bare else rules, [way])
            if found and found != certain and not found.rule.exempt:
                yield found


def _below_mounts(rules: Iterable[Rule], path: str) -> Iterator[Match]:
    """Return the match for a path from which a mount of Starlette has not removed its own part.

    That happens if the path ends with a newline: ``POST /shops/items%0A`` comes to the route
    ``/{shop}/items`` that is mounted at ``/shops``, with "shops" for its shop.
    """
    for rule in rules:
        for below in () if rule.exempt else rule.path.below_mounts:
            if (parameters := below.match(path)) is not None:
                yield Match(rule, parameters)
                break


class Readings(NamedTuple):
    """The ways to read a path, of which the first is Starlette's."""

    ways: tuple[str, ...]
    normal: tuple[str, ...]
    """The ways of lenient routers, which read several slashes as one and ignore the last."""


def readings(path: str, root_path: str) -> Readings:
    """Return how routers may read a path."""
    if not root_path and path[:1] == "/" and path[-1] != "/" and "//" not in path:
        return Readings((path, f"{path}/"), (path,))  # Most are read alike by all.
    routed = _routed(path, root_path)
    normal = [_single_slashes(routed)]
    # Litestar takes the root path off wherever it stands, with all that is before it.
    if root_path and (rest := path.split(root_path, maxsplit=1)[-1]) != routed:
        normal.append(_single_slashes(rest))
    ways = [routed, path]
    for way in normal:
        ways += way, "/" if way == "/" else f"{way}/"
    return Readings(tuple(dict.fromkeys(ways)), tuple(normal))


def _single_slashes(path: str) -> str:
    return "/" + (_SLASHES.sub("/", path) if "//" in path else path).strip("/")


def _routed(path: str, root_path: str) -> str:
    """Return the path below ``root_path``, as Starlette computes it."""
    if not root_path or not path.startswith(root_path):
        return path
    rest = path[len(root_path) :]
    return rest if rest[:1] in ("", "/") else path


def _refuse_hidden(named: Iterable[tuple[str, Rule]]) -> None:
    earlier: list[tuple[str, Rule]] = []
    for name, rule in named:
        for before, other in earlier:
            if other.hides(rule):
                raise ConfigurationError(
                    f"{name}, {rule!r}, can never match: {before}, {other!r}, stands before it and"
                    " matches all its requests. Put the narrower one first"
                )
        earlier.append((name, rule))
