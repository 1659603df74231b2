"""What a request locks: what decorators have marked, and what rules say of the views that URLs lead to.

The middleware knows a locked view by its mark, before the view runs. Rules are for projects that cannot
decorate their views. They are about views, which Django has resolved already: no path is matched here.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch, URLPattern, URLResolver, get_resolver, get_urlconf
from django.urls.converters import StringConverter
from django.urls.resolvers import LocalePrefixPattern
from django.utils import translation
from django.utils.functional import SimpleLazyObject

from ..._options import HoldOptions
from ...errors import ConfigurationError, LockTimeout
from ...keys import CheckedKey, KeyTemplate, signature_of
from ..kit import LockSpec, methods_of, name_of, request_values
from ..kit.rules import entries_of, fields_of, keys_in

DEFAULT: Final = "default"
"""The alias of locks that name none."""

Keys = str | Iterable[str] | None
R = TypeVar("R", bound=HttpRequest)
"""A project may have a type of its own for requests with a user, say."""

KeyFunction = Callable[[R], Keys | Awaitable[Keys]]
"""Makes a key, or several, from a request, or ``None`` to lock nothing. It may be a coroutine function."""

BusyView = Callable[[R, LockTimeout], HttpResponse | Awaitable[HttpResponse | None] | None]
"""Responds to a request that did not get its lock, if it is not ``None``. It may be a coroutine function."""


Call = Callable[..., Awaitable[Any]]
"""Calls a function or a coroutine function of the project: ``in_thread`` or ``in_task``."""


async def in_thread(function: Callable[..., Any], *args: object) -> Any:
    """Call it from a thread, in a coroutine that never suspends."""
    return (async_to_sync(function) if iscoroutinefunction(function) else function)(*args)


async def in_task(function: Callable[..., Any], *args: object) -> Any:
    """Call it from a task, a function in the request's thread: it may use the database."""
    return await (function if iscoroutinefunction(function) else sync_to_async(function))(*args)


@dataclass(frozen=True, repr=False)
class ViewLock(LockSpec):
    """A description of what a view locks."""

    alias: str = DEFAULT
    """``guard=None`` is what this alias's ``GUARD`` says."""
    busy_view: BusyView[Any] | None = None

    @functools.cached_property
    def named(self) -> frozenset[str]:
        """The arguments of the view that its key templates name."""
        sources = (source for each in self.templates for source in each.sources.values())
        return frozenset(source.name for source in sources if source.kind == "path")

    def takes(self, method: str | None) -> bool:
        """Return whether requests by this method lock; ``None`` is any."""
        return not (self.methods and method) or method.upper() in self.methods

    async def keys_of(
        self,
        request: HttpRequest,
        values: Mapping[str, object],
        call: Call,
        given: Iterable[object] = (),
    ) -> tuple[CheckedKey, ...]:
        """Return the keys of a request.

        ``values`` are the view's arguments from the URL, and ``given`` all of them, once it is called.

        Raises ``ConfigurationError`` for a part of the URL that it lacks.
        """
        match = request.resolver_match
        text = values.get("object_id")  # None on a page that adds a row.
        if text is not None and match and (admin := getattr(match.func, "model_admin", None)):
            pk = await call(_pk_of_admin, request, admin, str(text))
            values = {**values, "object_id": pk}
        made: dict[Any, object] = {}
        if functions := self.functions:
            with rest_user(request, given):
                for function in functions:
                    made[function] = await call(function, request)
        headers = request.headers  # Servers join the values of one that was sent several times.
        values_for = partial(
            request_values,
            path=values,
            query=request.META.get("QUERY_STRING", ""),
            headers=lambda name: [headers[name]] if name in headers else [],
            of_view=True,
        )
        return self.made_of(values_for, made.__getitem__)


def _pk_of_admin(request: HttpRequest, admin: Any, object_id: str) -> object:
    """Return the primary key of the row that a page of the admin is about.

    Its URL has the key as quoted text, or the value of another field. What is no row stays text.
    """
    from django.contrib.admin.options import TO_FIELD_VAR
    from django.contrib.admin.utils import unquote

    text = unquote(object_id)
    field = request.POST.get(TO_FIELD_VAR, request.GET.get(TO_FIELD_VAR))
    if field and admin.to_field_allowed(request, field):
        row = admin.get_object(request, text, field)
        return text if row is None else row.pk
    try:
        found: object = admin.opts.pk.to_python(text)
    except (ValidationError, ValueError):
        return text
    return found


def refuse_key_functions(lock: ViewLock) -> ViewLock:
    """Return the lock. Raises ``ConfigurationError`` for a key function that no request can be passed to."""
    for function in lock.functions:
        try:
            signature = signature_of(function)
        except ValueError:  # Some functions in C have none.
            continue
        try:
            signature.bind(None)
        except TypeError as error:
            raise ConfigurationError(
                f"key function {name_of(function)}{signature} is called with the request alone ({error}):"
                " read parts of the URL from request.resolver_match.kwargs",
                code="key_function",
            ) from error
    return lock


# Marks.

_MARK: Final = "weblock_locks"


def mark(view: Callable[..., Any], lock: ViewLock) -> None:
    """Notes that ``view`` runs under ``lock``.

    ``functools.wraps`` carries the mark through other decorators, and ``as_view`` from ``dispatch``
    to the view.
    """
    setattr(view, _MARK, (lock, *marks_of(view)))


def marks_of(view: object) -> tuple[ViewLock, ...]:
    """Return the locks that ``view`` itself is marked with, the outermost decorator's first."""
    found: tuple[ViewLock, ...] = getattr(view, _MARK, ())
    return found


def locks_of(view: Callable[..., Any], method: str | None) -> tuple[ViewLock, ...]:
    """Return the locks of ``view``, and of the methods of its class that serve ``method``.

    These are ``dispatch``, and the handler or the action, each as the class and as its bases define it.
    """
    found: dict[ViewLock, None] = {}
    called = [view]
    while isinstance(called[-1], partial):
        called.append(called[-1].func)
    if not inspect.isroutine(called[-1]):
        called.append(type(called[-1]).__call__)
    for each in called:
        marks = marks_of(each)
        if cls := class_of(each):
            name = _handler(cls, getattr(each, "actions", None), (method or "get").lower())
            marks += _marks_of_methods(cls, name)
        for lock in marks:
            if not lock.methods or lock.takes(method):
                found[lock] = None
    return tuple(found)


def class_of(view: object) -> type | None:
    """Return the class of a class-based view, of Django or of REST framework."""
    found: type | None = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return found


def _handler(cls: type, actions: dict[str, str] | None, method: str) -> str:
    """Return the name of the method or viewset action that serves ``method``."""
    for each in (method, "get") if method == "head" else (method,):
        name = actions.get(each, "") if actions else each
        if hasattr(cls, name):
            return name
    return ""


@functools.lru_cache(maxsize=1024)
def _marks_of_methods(cls: type, handler: str) -> tuple[ViewLock, ...]:
    """Return the locks of ``dispatch`` and of a handler, outer ones first.

    A method that overrides a locked one may call it by ``super()``, when its transaction has begun
    already. So the locks of all its definitions count. ``partial_update`` of Django REST framework
    calls ``update``.
    """
    names = ["dispatch", handler, *(["update"] if handler == "partial_update" else [])]
    methods = (vars(base).get(name) for name in names for base in cls.__mro__)
    return tuple(dict.fromkeys(lock for each in methods for lock in marks_of(each)))


# Views of Django REST framework.


def is_rest(request: HttpRequest) -> bool:
    """Return whether a view of REST framework serves the request."""
    match = request.resolver_match
    cls = class_of(match.func) if match else None
    return hasattr(cls, "handle_exception") and hasattr(cls, "finalize_response")


def rest_view(request: HttpRequest) -> Any:
    """Return a view of REST framework for the request, as it is before it runs.

    It permits everything, so that ``APIView.initial`` only settles what renderers, handlers and key functions
    read: the renderer, the version and the user.
    """
    match = request.resolver_match
    assert match
    made: Any = match.func
    view = made.cls(**made.initkwargs)
    if actions := getattr(made, "actions", None):
        view.action_map = actions
        for method, action in actions.items():
            setattr(view, method, getattr(view, action))
    view.setup(request, *match.args, **match.kwargs)
    view.check_permissions = view.check_throttles = lambda _request: None
    view.perform_content_negotiation = partial(view.perform_content_negotiation, force=True)
    return view


@contextmanager
def rest_user(request: HttpRequest, given: Iterable[object]) -> Iterator[None]:
    """Let key functions read ``request.user`` as a view of REST framework will find it.

    Reading it authenticates, and raises what the view's authentication raises. Afterwards the request
    is as before: the view authenticates again, and would take this user for the one of a session. A view that
    has begun has a request of its own among what it is ``given``, with its user.
    """
    if not is_rest(request):
        yield
        return
    before = {name: vars(request).get(name) for name in ("user", "auth")}

    def put(values: Mapping[str, object]) -> None:
        for name, value in values.items():
            if value is not None:
                setattr(request, name, value)
            elif name in vars(request):
                delattr(request, name)

    def authenticate() -> object:
        from rest_framework.request import Request  # Only projects that use it have it.
        from rest_framework.views import APIView

        put(before)
        try:
            # By their own types, so that what is lazy is not read.
            begun: Any = next((each for each in given if issubclass(type(each), Request)), None)
            if begun is not None:
                user: object = begun.user
                # It does not authenticate again, so the user that it has put there stays.
                before.update({name: vars(request).get(name) for name in before})
                return user
            view = rest_view(request)
            own = view.initialize_request(request, *view.args, **view.kwargs)
            APIView.initial(view, own, *view.args, **view.kwargs)
            return own.user
        finally:
            put(lazily)

    lazily = {**before, "user": SimpleLazyObject(authenticate)}
    put(lazily)
    try:
        yield
    finally:
        put(before)


# The views that URLs lead to.


@dataclass(frozen=True)
class RoutedView:
    """The target of a URL, by the parts of the URL configuration that lead to it, from the outside."""

    parts: tuple[Any, ...]

    @property
    def view(self) -> Any:
        """The view."""
        return self.parts[-1].callback

    @property
    def dotted(self) -> str:
        """The path of the view in the project's code."""
        return str(self.parts[-1].lookup_str)

    @property
    def names(self) -> set[str]:
        """The names of the parts of its URL that the view is given."""
        return {
            name for each in self.parts for name in (*each.pattern.regex.groupindex, *_set_by(each))
        }

    @property
    def route(self) -> str:
        """Its URL as the project has written it, without the language of ``i18n_patterns``."""
        patterns = (each.pattern for each in self.parts)
        return _joined(each for each in patterns if not isinstance(each, LocalePrefixPattern))

    @property
    def resolved(self) -> ResolverMatch:
        """What a request would be resolved to in the current language."""
        resolvers = self.parts[:-1]
        return ResolverMatch(
            *(self.view, (), {}, self.parts[-1].name),
            [each.app_name for each in resolvers],
            [each.namespace for each in resolvers],
            _joined(each.pattern for each in self.parts),
        )

    def missing(self, templates: Iterable[KeyTemplate]) -> Iterator[tuple[str, str]]:
        """Return the key templates whose values the URL does not have, and these values."""
        for template in templates:
            wanted = {each.name for each in template.in_request().values() if each.kind == "path"}
            yield from ((template.text, each) for each in sorted(wanted - self.names))

    def spelled_in(self, templates: Iterable[KeyTemplate]) -> Iterator[tuple[str, str]]:
        """Return the key templates that lock a spelling instead of a value, and where.

        A URL may spell one value in many ways in the groups of a regular expression, and in
        ``<str:name>``, the default. A slug or a path is text on purpose.
        """
        spelled: set[str] = set()
        for each in self.parts:
            converters = getattr(each.pattern, "converters", {})
            for name in each.pattern.regex.groupindex:
                if name not in converters or type(converters[name]) is StringConverter:
                    spelled.add(name)
            spelled -= set(_set_by(each))
        for template in templates:
            sources = template.in_request()
            for name, converter in zip(template.names, template.converters, strict=True):
                source = sources[name]
                if source.kind == "path" and not converter and source.name in spelled:
                    yield template.text, source.name


def _set_by(part: Any) -> Mapping[str, object]:
    """Return the values that a part of the URL configuration gives to the view by itself."""
    found: Mapping[str, object] = (
        part.default_kwargs if isinstance(part, URLResolver) else part.default_args
    )
    return found


def _joined(patterns: Iterable[Any]) -> str:
    """Return the route of nested patterns, as ``ResolverMatch.route`` has it."""
    route = ""
    for each in map(str, patterns):
        route += each.removeprefix("^") if route else each
    return route


def routed_views() -> list[RoutedView]:
    """Return all views that the project's URLs lead to."""
    if not getattr(django_settings, "ROOT_URLCONF", None):
        return []
    return list(_below(get_resolver(get_urlconf()), ()))


def _below(resolver: URLResolver, outer: tuple[Any, ...]) -> Iterator[RoutedView]:
    for each in resolver.url_patterns:
        if isinstance(each, URLResolver):
            yield from _below(each, (*outer, each))
        elif isinstance(each, URLPattern):
            yield RoutedView((*outer, each))


@functools.lru_cache(maxsize=1024)
def views_at(
    route: str | re.Pattern[str], resolver: URLResolver
) -> Sequence[tuple[RoutedView, bool]]:
    """Return the views at a route, or at those that an expression matches, by all their URLs.

    Each with whether this URL is at the route. URLs that lead to one class in the same way lead to one
    view. Options are compared, not shown: a queryset is executed when it is shown.
    """
    every: list[tuple[RoutedView, object, bool]] = []
    # A route or an option may be translated: what counts is how it was written.
    with translation.override(None):
        for each in _below(resolver, ()):
            view = each.view
            options = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", {})
            cls = class_of(view)
            meant = (cls, getattr(view, "actions", None) or {}, options) if cls else view
            is_there = (
                each.route == route if isinstance(route, str) else bool(route.fullmatch(each.route))
            )
            every.append((each, meant, is_there))
        there = [meant for _, meant, is_there in every if is_there]
        return [(each, is_there) for each, meant, is_there in every if meant in there]


# Rules.

_OPTIONS: Final = tuple(HoldOptions.__annotations__)
_SELECTORS: Final = ("view", "namespace", "route", "methods")
_FIELDS: Final = (*_SELECTORS, "key", "exempt", "guard", *_OPTIONS)


@dataclass(frozen=True)
class ViewRule:
    """Requests whose URL leads to certain views lock what the rule says."""

    label: str
    about: str
    covers: Callable[[ResolverMatch], bool]
    methods: frozenset[str] | None
    lock: ViewLock | None


def rules_of(given: object, *, alias: str) -> tuple[ViewRule, ...]:
    """Read the rules of an alias. Raises ``ConfigurationError``, which names a rule that cannot work."""
    rules: list[ViewRule] = []
    for label, entry in entries_of(given, f"WEBLOCK[{alias!r}]['RULES']").items():
        fields = fields_of(
            label, entry, _FIELDS, remedy="give a dict with, for example, view and key"
        )
        about = ", ".join(f"{name} {fields[name]!r}" for name in _SELECTORS if name in fields)
        try:
            methods = methods_of(fields.get("methods"))
            rules.append(ViewRule(label, about, _condition(fields), methods, _lock(fields, alias)))
        except ConfigurationError as error:
            raise ConfigurationError(f"{label}: {error.message}", code=error.code) from error
    return tuple(rules)


def matching(
    rules: Iterable[ViewRule], method: str | None, resolved: ResolverMatch
) -> ViewRule | None:
    """Return the rule that counts for a request: the first that matches it."""
    for rule in rules:
        if (not rule.methods or (method or "GET").upper() in rule.methods) and rule.covers(
            resolved
        ):
            return rule
    return None


def _lock(entry: Mapping[str, Any], alias: str) -> ViewLock | None:
    given: Any = {name: entry[name] for name in _OPTIONS if name in entry}
    keys, exempt, guard = (
        keys_in(entry.get("key", ())),
        entry.get("exempt", False),
        entry.get("guard"),
    )
    if exempt is True and not (keys or given or guard):
        return None
    if exempt is not False or not keys:
        raise ConfigurationError("give either a key, or exempt=True and nothing else")
    return refuse_key_functions(ViewLock.of(keys, given, guard, alias=alias))


def _condition(entry: Mapping[str, Any]) -> Callable[[ResolverMatch], bool]:
    """Whether a view is meant: by its name, by the namespace that it is in, at any depth, or by its route.

    The namespace of an application stands for all its instances, under whatever namespace.
    """
    match {name: entry[name] for name in _FIELDS[:3] if name in entry}:
        case {"view": str(view), **others} if view and not others:
            return lambda resolved: (
                view
                in (
                    resolved.view_name,
                    ":".join([*resolved.app_names, resolved.view_name.rpartition(":")[2]]),
                )
            )
        case {"namespace": str(namespace), **others} if namespace and not others:
            return lambda resolved: any(
                f"{each}:".startswith(f"{namespace}:")
                for each in (resolved.namespace, resolved.app_name)
            )
        case {"route": str() | re.Pattern() as route, **others} if not others:

            def is_at(resolved: ResolverMatch) -> bool:
                """Whether it is a view at the route, by whatever URL; what is exempt is exempt there only.

                REST framework's routers add ``/items/7.json`` to ``/items/7/``.
                """
                return any(
                    each.view is resolved.func
                    and (
                        not entry.get("exempt")
                        or (is_there and each.resolved.route == resolved.route)
                    )
                    for each, is_there in views_at(route, get_resolver(get_urlconf()))
                )

            return is_at
    raise ConfigurationError(
        "give one of these: view, a name such as 'shop:item'; namespace, such as 'shop'; or route, as"
        " the URL configuration has it, such as 'shops/<int:shop>/items/', or a compiled regular"
        " expression of routes"
    )
