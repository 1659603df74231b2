"""Rules by view, namespace and route, for projects that cannot decorate their views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.http import HttpRequest
from django.urls import ResolverMatch, get_resolver, get_urlconf

from ..._options import HoldOptions
from ...errors import ConfigurationError
from ...keys import KeyTemplate
from ..kit.rules import methods_of
from .discovery import views_at
from .view_lock import ViewLock

_OPTIONS: Final = tuple(HoldOptions.__annotations__)
_SELECTORS: Final = ("view", "namespace", "route", "methods")
_FIELDS: Final = (*_SELECTORS, "key", "exempt", "guard", *_OPTIONS)


class Rules:
    """The rules of one alias, of which the first that matches a request counts."""

    def __init__(self, given: object, *, alias: str) -> None:
        """Read the rules. Raises ``ConfigurationError``, which names a rule that cannot work."""
        name = f"WEBLOCK[{alias!r}]['RULES']"
        self._rules = tuple(
            _view_rule(f"{name}.{label}", entry, alias) for label, entry in _entries(given, name)
        )

    def __iter__(self) -> Iterator[ViewRule]:
        return iter(self._rules)

    def find(self, request: HttpRequest) -> ViewLock | None:
        """Return what a request locks, given its view; ``None`` if nothing."""
        resolved = request.resolver_match
        assert resolved
        method = (request.method or "GET").upper()
        for rule in self._rules:
            if rule.takes(method, resolved):
                return rule.lock
        return None


@dataclass(frozen=True)
class ViewRule:
    """Requests whose URL leads to certain views lock what the rule says."""

    label: str
    about: str
    covers: Callable[[ResolverMatch], bool]
    methods: frozenset[str] | None
    lock: ViewLock | None

    @property
    def templates(self) -> tuple[KeyTemplate, ...]:
        """The templates of its keys."""
        return self.lock.templates if self.lock else ()

    def takes(self, method: str, resolved: ResolverMatch) -> bool:
        """Return whether it matches requests of this method to the view."""
        return (self.methods is None or method in self.methods) and self.covers(resolved)


def _entries(given: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(given, Mapping):
        yield from given.items()
    elif isinstance(given, list | tuple):
        yield from ((str(number), entry) for number, entry in enumerate(given))
    else:
        raise ConfigurationError(
            f"{name} is {given!r:.80}: give a list of rules, or a mapping of names to rules"
        )


def _view_rule(label: str, entry: Any, alias: str) -> ViewRule:
    if not isinstance(entry, Mapping):
        raise ConfigurationError(f"{label} is {entry!r:.80}: give a dict with view and key, say")
    if strange := [each for each in entry if each not in _FIELDS]:
        raise ConfigurationError(
            f"{label} has {strange[0]!r:.80}, which no rule has; there is {', '.join(_FIELDS)}"
        )
    options: Any = {name: entry[name] for name in _OPTIONS if name in entry}
    methods = entry.get("methods")
    try:
        return ViewRule(
            label,
            ", ".join(f"{name} {entry[name]!r}" for name in _SELECTORS if name in entry),
            _condition(entry),
            None if methods is None else methods_of(methods),
            _lock(entry, alias, options),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{label}: {error}") from error


def _lock(entry: Mapping[str, Any], alias: str, given: HoldOptions) -> ViewLock | None:
    key, exempt, guard = entry.get("key", ()), entry.get("exempt", False), entry.get("guard")
    keys = key if isinstance(key, list | tuple) else [key]
    if wrong := [each for each in keys if not (isinstance(each, str) or callable(each))]:
        raise ConfigurationError(
            f"key {wrong[0]!r:.80} must be a template, a function of the request, or a list of them"
        )
    if exempt is True and not (keys or given or guard):
        return None
    if exempt is not False or not keys:
        raise ConfigurationError("give either a key, or exempt=True and nothing else")
    return ViewLock.of(keys, given, guard, alias=alias)


def _condition(entry: Mapping[str, Any]) -> Callable[[ResolverMatch], bool]:
    """Whether a view is meant: by its name, by the namespace that it is in, at any depth, or by its route.

    The namespace of an application stands for all its instances, under whatever namespace.
    """
    match {name: entry[name] for name in _FIELDS[:3] if name in entry}:
        case {"view": str(view), **others} if view and not others:
            return lambda resolved: view in (resolved.view_name, _name_in_application(resolved))
        case {"namespace": str(namespace), **others} if namespace and not others:
            return lambda resolved: any(
                f"{each}:".startswith(f"{namespace}:")
                for each in (resolved.namespace, resolved.app_name)
            )
        case {"route": str() | re.Pattern() as route, **others} if not others:
            return partial(_is_exempt_at if entry.get("exempt") else _is_at, route)
    raise ConfigurationError(
        "give one of these: view, a name such as 'shop:item'; namespace, such as 'shop'; or route, as"
        " the URL configuration has it, such as 'shops/<int:shop>/items/', or a compiled regular"
        " expression of routes"
    )


def _is_at(route: str | re.Pattern[str], resolved: ResolverMatch) -> bool:
    """Return whether the view is the one at a route, by whatever URL it was reached."""
    views = views_at(route, get_resolver(get_urlconf())).views
    return any(each is resolved.func for each in views)


def _is_exempt_at(route: str | re.Pattern[str], resolved: ResolverMatch) -> bool:
    """Return whether the view was reached by this route: what is exempt is exempt there only."""
    return any(
        each.view is resolved.func and each.resolved.route == resolved.route
        for each in views_at(route, get_resolver(get_urlconf())).at_route
    )


def _name_in_application(resolved: ResolverMatch) -> str:
    return ":".join([*resolved.app_names, resolved.view_name.rpartition(":")[2]])
