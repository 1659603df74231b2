"""The views that the project's URLs lead to, and what they lock: for ``manage.py check``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connections
from django.urls import ResolverMatch, URLPattern, URLResolver, get_resolver
from django.urls.converters import StringConverter
from django.views import View

from ...keys import KeyTemplate
from .description import Lock
from .marks import locks_of


@dataclass(frozen=True)
class Place:
    """Where URLs lead to: a view, or a part of the project that is included there."""

    names: frozenset[str] = frozenset()
    """What its URL gives the view."""
    spelled: frozenset[str] = frozenset()
    """Those of them that the view is given as the URL spells them, for nothing has converted them."""
    namespaces: tuple[str | None, ...] = ()
    applications: tuple[str | None, ...] = ()
    """The namespaces that the applications have for themselves."""
    view: Any = None
    dotted: str = ""
    name: str | None = None

    @property
    def resolved(self) -> ResolverMatch:
        """What a request would be resolved to."""
        return ResolverMatch(
            *(self.view, (), {}, self.name), list(self.applications), list(self.namespaces)
        )

    def missing(self, templates: Iterable[KeyTemplate]) -> Iterator[tuple[str, str]]:
        """The key templates that want something which the URL does not give, and what they want."""
        for template in templates:
            wanted = {each.name for each in template.in_request().values() if each.kind == "path"}
            yield from ((template.text, each) for each in sorted(wanted - self.names))

    def spelled_in(self, templates: Iterable[KeyTemplate]) -> Iterator[tuple[str, str]]:
        """The key templates that lock a spelling instead of a value, and of which part of the URL."""
        for template in templates:
            sources = template.in_request()
            for name, converter in zip(template.names, template.converters, strict=True):
                source = sources[name]
                if source.kind == "path" and not converter and source.name in self.spelled:
                    yield template.text, source.name


class Marked(NamedTuple):
    """A view that ``@lock`` marks."""

    place: Place
    lock: Lock
    atomic: bool
    """Whether it runs in a transaction that Django begins."""


def places() -> list[Place]:
    """All views that the project's URLs lead to."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    return list(_below(get_resolver(), Place()))


def marked_views() -> Iterator[Marked]:
    """Those of them that ``@lock`` marks, for whatever method."""
    for place in places():
        methods = (locks_of(place.view, method) for method in View.http_method_names)
        for lock in dict.fromkeys(lock for each in methods for lock in each):
            yield Marked(place, lock, _is_atomic(place.view))


def _below(resolver: URLResolver, outer: Place) -> Iterator[Place]:
    for each in resolver.url_patterns:
        names = outer.names | set(each.pattern.regex.groupindex)
        spelled = outer.spelled | _spelled(each.pattern)
        if isinstance(each, URLResolver):
            inner = replace(
                outer,
                names=names | set(each.default_kwargs),
                spelled=spelled - set(each.default_kwargs),
                namespaces=(*outer.namespaces, each.namespace),
                applications=(*outer.applications, each.app_name),
            )
            yield from _below(each, inner)
        elif isinstance(each, URLPattern):
            yield replace(
                outer,
                names=names | set(each.default_args),
                spelled=spelled - set(each.default_args),
                view=each.callback,
                dotted=each.lookup_str,
                name=each.name,
            )


def _spelled(pattern: Any) -> set[str]:
    """What a pattern hands over as text that may spell one value in many ways.

    That is what a regular expression has found, and ``<str:name>``, which is the default. A slug or a
    path is text on purpose.
    """
    converters = getattr(pattern, "converters", {})
    return {
        name
        for name in pattern.regex.groupindex
        if name not in converters or type(converters[name]) is StringConverter
    }


def _is_atomic(view: Any) -> bool:
    not_in = getattr(view, "_non_atomic_requests", ())
    databases = connections.settings.items()
    return any(each["ATOMIC_REQUESTS"] and alias not in not_in for alias, each in databases)
