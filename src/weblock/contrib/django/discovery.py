"""The views that the project's URLs lead to, and what they lock."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from django.conf import settings as django_settings
from django.db import connections
from django.urls import ResolverMatch, URLPattern, URLResolver, get_resolver, get_urlconf
from django.urls.converters import StringConverter
from django.urls.resolvers import LocalePrefixPattern
from django.utils import translation
from django.views import View

from ...keys import KeyTemplate
from .view_lock import ViewLock, locks_of, undecorated_lock


@dataclass(frozen=True)
class RoutedView:
    """The target of a URL: a view, or a part of the project that is included there."""

    names: frozenset[str] = frozenset()
    """Names of the parts of its URL that the view is given."""
    spelled: frozenset[str] = frozenset()
    """Names of the parts that the view gets as the URL spells them, without any conversion."""
    namespaces: tuple[str | None, ...] = ()
    applications: tuple[str | None, ...] = ()
    """The namespaces that the applications have for themselves."""
    view: Any = None
    dotted: str = ""
    name: str | None = None
    patterns: tuple[Any, ...] = ()
    """The patterns of its URL, from the outside to the inside."""

    @property
    def route(self) -> str:
        """Its URL as the project has written it, without the language of ``i18n_patterns``."""
        return _joined(each for each in self.patterns if not isinstance(each, LocalePrefixPattern))

    @property
    def resolved(self) -> ResolverMatch:
        """Return what a request would be resolved to in the current language."""
        return ResolverMatch(
            *(self.view, (), {}, self.name),
            list(self.applications),
            list(self.namespaces),
            _joined(self.patterns),
        )

    def missing(self, templates: Iterable[KeyTemplate]) -> Iterator[tuple[str, str]]:
        """Return the key templates whose values the URL does not have, and these values."""
        for template in templates:
            wanted = {each.name for each in template.in_request().values() if each.kind == "path"}
            yield from ((template.text, each) for each in sorted(wanted - self.names))

    def spelled_in(self, templates: Iterable[KeyTemplate]) -> Iterator[tuple[str, str]]:
        """Return the key templates that lock a spelling instead of a value, and where."""
        for template in templates:
            sources = template.in_request()
            for name, converter in zip(template.names, template.converters, strict=True):
                source = sources[name]
                if source.kind == "path" and not converter and source.name in self.spelled:
                    yield template.text, source.name


class MarkedView(NamedTuple):
    """A view that ``@lock`` marks."""

    routed: RoutedView
    lock: ViewLock
    atomic: bool
    """Whether it runs in a transaction that Django begins."""


def routed_views() -> list[RoutedView]:
    """Return all views that the project's URLs lead to."""
    if not getattr(django_settings, "ROOT_URLCONF", None):
        return []
    return list(_below(get_resolver(get_urlconf()), RoutedView()))


def marked_views() -> Iterator[MarkedView]:
    """Return the views that ``@lock`` marks, for any method."""
    for routed in routed_views():
        methods = (locks_of(routed.view, method) for method in View.http_method_names)
        for lock in dict.fromkeys(lock for each in methods for lock in each):
            yield MarkedView(routed, lock, _is_atomic(routed.view))


def undecorated() -> Iterator[tuple[RoutedView, ViewLock]]:
    """Return the views, and methods of views, in whose place ``@lock`` without a key has put itself."""
    for routed in routed_views():
        cls = getattr(routed.view, "view_class", None) or getattr(routed.view, "cls", None)
        methods = (getattr(cls, name, None) for name in View.http_method_names)
        for lock in filter(None, map(undecorated_lock, (routed.view, *methods))):
            yield routed, lock


def _below(resolver: URLResolver, outer: RoutedView) -> Iterator[RoutedView]:
    for each in resolver.url_patterns:
        names = outer.names | set(each.pattern.regex.groupindex)
        spelled = outer.spelled | _spelled(each.pattern)
        patterns = (*outer.patterns, each.pattern)
        if isinstance(each, URLResolver):
            inner = replace(
                outer,
                patterns=patterns,
                names=names | set(each.default_kwargs),
                spelled=spelled - set(each.default_kwargs),
                namespaces=(*outer.namespaces, each.namespace),
                applications=(*outer.applications, each.app_name),
            )
            yield from _below(each, inner)
        elif isinstance(each, URLPattern):
            yield replace(
                outer,
                patterns=patterns,
                names=names | set(each.default_args),
                spelled=spelled - set(each.default_args),
                view=each.callback,
                dotted=each.lookup_str,
                name=each.name,
            )


def _spelled(pattern: Any) -> set[str]:
    """Return the parts that a pattern passes on as text that may spell one value in many ways.

    These are the groups of a regular expression, and ``<str:name>``, the default. A slug or a
    path is text on purpose.
    """
    converters = getattr(pattern, "converters", {})
    return {
        name
        for name in pattern.regex.groupindex
        if name not in converters or type(converters[name]) is StringConverter
    }


@functools.lru_cache(maxsize=1024)
def views_at(route: str | re.Pattern[str], resolver: URLResolver) -> ViewsAt:
    """Return the views at a route of a URL configuration, or at those that an expression matches."""
    every = list(_below(resolver, RoutedView()))
    with translation.override(
        None
    ):  # A route may be translated: what counts is how it was written.
        at = [
            each
            for each in every
            if (each.route == route if isinstance(route, str) else route.fullmatch(each.route))
        ]
    meant = [_identity(each.view) for each in at]
    return ViewsAt(at, [each.view for each in every if _identity(each.view) in meant])


class ViewsAt(NamedTuple):
    """What a route leads to."""

    at_route: Sequence[RoutedView]
    views: Sequence[object]
    """These views, at whatever URL they are: REST framework's routers add ``/items/7.json`` to ``/items/7/``."""


def _joined(patterns: Iterable[Any]) -> str:
    """Return the route of nested patterns, as ``ResolverMatch.route`` has it."""
    route = ""
    for each in map(str, patterns):
        route += each.removeprefix("^") if route else each
    return route


def _identity(view: Any) -> object:
    """Return what is equal for URLs that lead to one view, or to one class in the same way."""
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if cls is None:
        return view
    actions = getattr(view, "actions", None) or {}
    options = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", {})
    return cls, repr(sorted(actions.items())), repr(sorted(options.items()))


def _is_atomic(view: Any) -> bool:
    not_in = getattr(view, "_non_atomic_requests", ())
    databases = connections.settings.items()
    return any(each["ATOMIC_REQUESTS"] and alias not in not_in for alias, each in databases)
