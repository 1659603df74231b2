"""The views that the project's URLs lead to, what they lock, and what rules by path miss of them."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from django.conf import settings as django_settings
from django.db import connections
from django.urls import (
    Resolver404,
    ResolverMatch,
    URLPattern,
    URLResolver,
    get_resolver,
    get_urlconf,
    resolve,
)
from django.urls.converters import IntConverter, SlugConverter, StringConverter, UUIDConverter
from django.urls.resolvers import LocalePrefixPattern, RoutePattern
from django.utils.regex_helper import normalize
from django.views import View

from ...keys import KeyTemplate
from ..rules import Rule, RuleSet
from ..rules.overlap import ANYTHING, SEGMENT, Shape, may_meet, shape_of_regex
from ..rules.ruleset import decided
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
    route: str = ""
    """Its URL, as the project has written it."""
    patterns: tuple[Any, ...] = ()
    """The patterns of its URL, from the outside to the inside."""
    shape: Shape = ("/",)
    """The shape of its paths, with ``LANGUAGE`` where they begin with a language."""

    @property
    def resolved(self) -> ResolverMatch:
        """Return what a request would be resolved to."""
        return ResolverMatch(
            *(self.view, (), {}, self.name), list(self.applications), list(self.namespaces)
        )

    def meets(self, shape: Shape) -> list[bool]:
        """Return whether a pattern may match its paths, once for each language."""
        if LANGUAGE not in self.shape:
            return [may_meet(shape, self.shape)]
        rough = [_with(self.shape, SEGMENT, "/"), _with(self.shape)]
        if not any(may_meet(shape, each) for each in rough):
            return [False]  # Django knows a hundred languages.
        return [may_meet(shape, _with(self.shape, *each)) for each in _language_prefixes()]

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


LANGUAGE: Final = "<language>"
"""Stands for the prefix that ``i18n_patterns`` adds to a path."""

_PARAMETER: Final = re.compile(r"<[^>]+>")

_WITHOUT_SLASH: Final = (IntConverter, SlugConverter, StringConverter, UUIDConverter)


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
        shape = (*outer.shape, *_shape(each.pattern))
        if isinstance(each, URLResolver):
            inner = replace(
                outer,
                route=f"{outer.route}{each.pattern}",
                shape=shape,
                patterns=(*outer.patterns, each.pattern),
                names=names | set(each.default_kwargs),
                spelled=spelled - set(each.default_kwargs),
                namespaces=(*outer.namespaces, each.namespace),
                applications=(*outer.applications, each.app_name),
            )
            yield from _below(each, inner)
        elif isinstance(each, URLPattern):
            yield replace(
                outer,
                route=f"{outer.route}{each.pattern}",
                shape=shape,
                patterns=(*outer.patterns, each.pattern),
                names=names | set(each.default_args),
                spelled=spelled - set(each.default_args),
                view=each.callback,
                dotted=each.lookup_str,
                name=each.name,
            )


def _shape(pattern: Any) -> Shape:
    """Return the shape of the part of a path that a pattern matches."""
    if isinstance(pattern, LocalePrefixPattern):
        return (LANGUAGE,)
    if not isinstance(pattern, RoutePattern):
        return shape_of_regex(str(pattern))
    literals = _PARAMETER.split(str(pattern))
    shape = [*literals[0]]
    for converter, literal in zip(pattern.converters.values(), literals[1:], strict=True):
        shape += [SEGMENT if type(converter) in _WITHOUT_SLASH else ANYTHING, *literal]
    return tuple(shape)


def _language_prefixes() -> list[str]:
    """Return the prefixes of paths below ``i18n_patterns``."""
    languages = [f"{language}/" for language, _ in django_settings.LANGUAGES]
    if any(
        isinstance(each.pattern, LocalePrefixPattern) and not each.pattern.prefix_default_language
        for each in get_resolver().url_patterns
    ):
        default = f"{django_settings.LANGUAGE_CODE}/"
        return ["", *(each for each in languages if each != default)]
    return languages


def _with(shape: Shape, *prefix: str) -> Shape:
    place = shape.index(LANGUAGE)
    return (*shape[:place], *prefix, *shape[place + 1 :])


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


class Gap(NamedTuple):
    """A URL of a view that rules by path do not cover, although they cover another URL of that view.

    Routers of Django REST framework make such URLs: ``/items/7.json`` beside ``/items/7/``.
    """

    rule: Rule
    covered: str
    """A path of the view that the rule is about."""
    path: str
    """A path of the same view that no rule is about."""
    match: ResolverMatch
    """What the path is resolved to."""


_VALUES: Final = ("7", "77777777-7777-7777-7777-777777777777", "a")

_SUFFIXES: Final = ("json", ".json", "7", "a")
"""Values for the parts of a URL that other URLs of the view do not have."""

_METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET")


def gaps(rules: RuleSet, is_ruled: Callable[[str, ResolverMatch], bool]) -> Iterator[Gap]:
    """Return the URLs whose view is locked at another URL only.

    ``is_ruled`` says whether another rule decides about a request of a method to a view.
    """
    by_view: defaultdict[object, list[RoutedView]] = defaultdict(list)
    for routed in routed_views():
        by_view[_identity(routed.view)].append(routed)
    for view, group in by_view.items():
        found: set[str] = set()
        # Few views have several URLs and a rule: to resolve paths takes long in a large project.
        may_have_gaps = len(group) > 1 and any(
            True in routed.meets(rule.path.shape) for routed in group for rule in rules
        )
        for value in _VALUES if may_have_gaps else ():
            reached: dict[str, tuple[str, ResolverMatch]] = {}
            for path, match in _reached(view, group, value):
                reached.setdefault(match.route, (path, match))
            for method in _METHODS:
                about = [rule for rule in rules if rule.takes(method)]
                covering = {
                    route: next(filter(None, decided(about, path, "")), None)
                    for route, (path, _) in reached.items()
                }
                locked = [each for each in covering.items() if each[1] and not each[1].rule.exempt]
                for route, (path, match) in reached.items():
                    is_free = covering[route] is None and not is_ruled(method, match)
                    if locked and is_free and route not in found:
                        found.add(route)
                        covered, rule = locked[0]
                        assert rule
                        yield Gap(rule.rule, reached[covered][0], path, match)


def _identity(view: Any) -> object:
    """Return what is equal for URLs that lead to one view, or to one class in the same way."""
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if cls is None:
        return view
    actions = getattr(view, "actions", None) or {}
    options = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", {})
    return cls, repr(sorted(actions.items())), repr(sorted(options.items()))


def _reached(
    view: object, group: Sequence[RoutedView], value: str
) -> Iterator[tuple[str, ResolverMatch]]:
    """Return a path for each URL of a view that has one with this value, and what it leads to."""
    common = frozenset.intersection(*(routed.names for routed in group))
    for routed, suffix in itertools.product(group, _SUFFIXES):
        values = {each: value if each in common else suffix for each in routed.names}
        normalized = [normalize(each.regex.pattern.removeprefix("^")) for each in routed.patterns]
        for forms in itertools.product(*normalized):
            numbered = {each: value for _, names in forms for each in names}
            path = "/" + "".join(form for form, _ in forms) % {**numbered, **values}
            try:
                match = resolve(path)
            except Resolver404:
                continue
            if _identity(match.func) == view:
                yield path, match


def _is_atomic(view: Any) -> bool:
    not_in = getattr(view, "_non_atomic_requests", ())
    databases = connections.settings.items()
    return any(each["ATOMIC_REQUESTS"] and alias not in not_in for alias, each in databases)
