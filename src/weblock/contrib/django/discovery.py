"""The views that the project's URLs lead to, and what they lock: for checks and commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from django.conf import settings as django_settings
from django.db import connections
from django.http import HttpRequest
from django.urls import (
    Resolver404,
    ResolverMatch,
    URLPattern,
    URLResolver,
    get_resolver,
    resolve,
)
from django.urls.converters import IntConverter, SlugConverter, StringConverter, UUIDConverter
from django.urls.resolvers import LocalePrefixPattern, RoutePattern
from django.utils import translation
from django.views import View

from ...errors import ConfigurationError, WeblockError
from ...keys import KeyTemplate
from ..rules import Explanation, Verdict
from ..rules.explaining import path_and_query
from ..rules.overlap import ANYTHING, SEGMENT, Shape, may_meet, shape_of_regex
from . import settings
from .description import Lock, name_of
from .marks import locks_of


@dataclass(frozen=True)
class Place:
    """What a URL leads to: a view, or a part of the project that is included there."""

    names: frozenset[str] = frozenset()
    """What its URL gives the view."""
    spelled: frozenset[str] = frozenset()
    """Return those that the view gets as the URL spells them, without any conversion."""
    namespaces: tuple[str | None, ...] = ()
    applications: tuple[str | None, ...] = ()
    """The namespaces that the applications have for themselves."""
    view: Any = None
    dotted: str = ""
    name: str | None = None
    shape: Shape = ("/",)
    """What its paths look like, with ``LANGUAGE`` where they begin with one."""

    @property
    def resolved(self) -> ResolverMatch:
        """What a request would be resolved to."""
        return ResolverMatch(
            *(self.view, (), {}, self.name), list(self.applications), list(self.namespaces)
        )

    def meets(self, shape: Shape) -> list[bool]:
        """Whether a pattern of paths may be about it: one answer for each language, if it has any."""
        if LANGUAGE not in self.shape:
            return [may_meet(shape, self.shape)]
        rough = [_with(self.shape, SEGMENT, "/"), _with(self.shape)]
        if not any(may_meet(shape, each) for each in rough):
            return [False]  # Django knows a hundred languages.
        return [may_meet(shape, _with(self.shape, *each)) for each in _language_prefixes()]

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


LANGUAGE: Final = "<language>"
"""Stands for what ``i18n_patterns`` puts before a path."""

_PARAMETER: Final = re.compile(r"<[^>]+>")

_WITHOUT_SLASH: Final = (IntConverter, SlugConverter, StringConverter, UUIDConverter)


class Marked(NamedTuple):
    """A view that ``@lock`` marks."""

    place: Place
    lock: Lock
    atomic: bool
    """Whether it runs in a transaction that Django begins."""


def places() -> list[Place]:
    """All views that the project's URLs lead to."""
    if not getattr(django_settings, "ROOT_URLCONF", None):
        return []
    return list(_below(get_resolver(), Place()))


def marked_views() -> Iterator[Marked]:
    """Return the views that ``@lock`` marks, for any method."""
    for place in places():
        methods = (locks_of(place.view, method) for method in View.http_method_names)
        for lock in dict.fromkeys(lock for each in methods for lock in each):
            yield Marked(place, lock, _is_atomic(place.view))


def explain(method: str, target: str) -> Explanation:
    """Say what a request for ``target`` locks: which rules are about it, and what marks its view.

    ``target`` is a URL, or a path as a client sends it. A key that a function makes stands there with
    the function's name. Raises ``ConfigurationError`` where no URL of the project is meant.
    """
    path, query = path_and_query(target)
    request = HttpRequest()
    request.method, request.path, request.path_info = method.upper(), path, path
    request.META["QUERY_STRING"] = query
    try:
        with translation.override(translation.get_language_from_path(path)):
            found = request.resolver_match = resolve(path)
    except Resolver404 as error:
        raise ConfigurationError(f"no URL of the project matches {path!r:.200}") from error
    marks = locks_of(found.func, method)
    verdicts = [each for rules in settings.rules() for each in rules.verdicts(request)]
    verdicts += [Verdict("@lock", repr(each), f"marks {found.view_name}") for each in marks]
    ruled = [lock for rules in settings.rules() if (lock := rules.find(request))]
    try:
        keys = [key for lock in (*ruled, *marks) for key in _keys(lock, request, found.kwargs)]
    except WeblockError as error:
        return Explanation(request.method, path, tuple(verdicts), problem=str(error))
    return Explanation(request.method, path, tuple(verdicts), tuple(dict.fromkeys(keys)))


def _keys(lock: Lock, request: HttpRequest, values: dict[str, Any]) -> Iterator[str]:
    where = "" if lock.alias == settings.DEFAULT else f" of {lock.alias}"
    for key in replace(lock, functions=()).keys_of(request, values):
        yield f"{key}{where}"
    for function in lock.functions:
        yield f"{name_of(function)}(request){where}"


def _below(resolver: URLResolver, outer: Place) -> Iterator[Place]:
    for each in resolver.url_patterns:
        names = outer.names | set(each.pattern.regex.groupindex)
        spelled = outer.spelled | _spelled(each.pattern)
        shape = (*outer.shape, *_shape(each.pattern))
        if isinstance(each, URLResolver):
            inner = replace(
                outer,
                shape=shape,
                names=names | set(each.default_kwargs),
                spelled=spelled - set(each.default_kwargs),
                namespaces=(*outer.namespaces, each.namespace),
                applications=(*outer.applications, each.app_name),
            )
            yield from _below(each, inner)
        elif isinstance(each, URLPattern):
            yield replace(
                outer,
                shape=shape,
                names=names | set(each.default_args),
                spelled=spelled - set(each.default_args),
                view=each.callback,
                dotted=each.lookup_str,
                name=each.name,
            )


def _shape(pattern: Any) -> Shape:
    """What a part of a path looks like that a pattern matches."""
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
    """What the paths below ``i18n_patterns`` begin with."""
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
