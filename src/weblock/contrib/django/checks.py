"""What ``manage.py check`` reports about locks, before the first request would fail."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.core.checks import WARNING, CheckMessage, Error, Info, run_checks
from django.core.checks import Warning as Caution
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.urls import Resolver404, resolve
from django.utils import translation
from django.utils.module_loading import import_string
from django.views import View

from ..._adapting import terms_of
from ..._options import HoldOptions
from ...errors import ConfigurationError
from ..kit import Asked, Locked
from ..kit.guarding import DATABASE_GUARD, LEASE_GUARD, GuardKind
from ..kit.sql import TABLE
from .answers import locked_operations
from .database import guarded_databases, refuse_split_reads
from .middleware import LockMiddleware
from .settings import AliasSettings, aliases, current, locks
from .view_lock import (
    DEFAULT,
    MARK_OF_DECORATOR,
    RoutedView,
    Rules,
    ViewLock,
    class_of,
    decorated,
    locks_of,
    marks_of,
    routed_views,
)

MIDDLEWARE: Final = "weblock.contrib.django.middleware.LockMiddleware"

READERS: Final = (
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.auth.middleware.RemoteUserMiddleware",
    "django.contrib.auth.middleware.PersistentRemoteUserMiddleware",
    "django.contrib.sites.middleware.CurrentSiteMiddleware",
)
"""Django's own middleware that keeps rows on the request before its view is known."""

ENGINES: Final = "Set URL: file:// serializes the processes of one machine, redis:// those of many."


class MarkedView(NamedTuple):
    """A view that ``@lock`` marks."""

    routed: RoutedView
    lock: ViewLock
    atomic: bool
    """Whether it runs in a transaction that Django begins."""


def marked_views() -> Iterator[MarkedView]:
    """Return the views that ``@lock`` marks, for any method."""
    for routed in routed_views():
        methods = (locks_of(routed.view, method) for method in View.http_method_names)
        for lock in dict.fromkeys(lock for each in methods for lock in each):
            yield MarkedView(routed, lock, _is_atomic(routed.view))


def _is_atomic(view: object) -> bool:
    not_in = getattr(view, "_non_atomic_requests", ())
    databases = connections.settings.items()
    return any(each["ATOMIC_REQUESTS"] and name not in not_in for name, each in databases)


def _beneath(routed: RoutedView) -> Iterator[str]:
    """Return the names of the locked functions that a view calls where the middleware does not see them."""
    view = routed.view
    cls = class_of(
        view
    )  # Of @api_view: it has the name of its function, and says nothing else of it.
    if cls and not marks_of(view) and (cls.__module__, cls.__name__) in decorated:
        yield f"{cls.__module__}.{cls.__name__}"
    called: list[Any] = []
    if getattr(view, "__module__", None) == "ninja.operation":
        inside = routed.resolved.namespaces
        bound = (each for each in locked_operations if each.api)  # Their originals have no API.
        called += [each.view_func for each in bound if each.api.urls_namespace in inside]
    if admin := getattr(view, "model_admin", None):
        named = [*(admin.actions or ()), *(function for _, function in admin.admin_site.actions)]
        called += [each if callable(each) else getattr(admin, each, None) for each in named]
    for function in filter(marks_of, called):
        yield f"{function.__module__}.{function.__qualname__}"


def check_settings(**_kwargs: object) -> list[CheckMessage]:
    """Check that ``WEBLOCK`` is valid."""
    try:
        found = [message for alias in aliases() for message in _of_alias(alias)]
        return [*_other_names(), *found, *_mixed_guards()]
    except ConfigurationError as error:
        return [Error(error.message, id="weblock.E001")]


def check_deployment(**_kwargs: object) -> list[CheckMessage]:
    """Check that an engine excludes more than one process, where the application is to be deployed."""
    found: list[CheckMessage] = []
    with suppress(ConfigurationError):  # ``check_settings`` reports it.
        for alias in aliases():
            engine, scope = locks[alias].engine, locks[alias].scope
            if scope in ("none", "process"):
                what = "locks nothing" if scope == "none" else "serializes one process"
                text = f"WEBLOCK[{alias!r}] is on {engine}, which {what}."
                found.append(Caution(text, hint=ENGINES, id="weblock.W001"))
    return found


def check_middleware(**_kwargs: object) -> list[CheckMessage]:
    """Check that the middleware is installed, and last, if something needs it."""
    found = [number for number, path in enumerate(settings.MIDDLEWARE) if _is_ours(path)]
    if not found:
        missing: list[CheckMessage] = []
        hint = f"Put {MIDDLEWARE!r} last into MIDDLEWARE."
        if _readable_rules():
            text = "WEBLOCK has RULES, which do nothing without LockMiddleware."
            missing.append(Error(text, hint=hint, id="weblock.E002"))
        marked = list(marked_views())
        if refused := {each.routed.dotted for each in marked if each.atomic}:
            text = (
                f"@lock on {_some(refused)} is rejected at each request: with ATOMIC_REQUESTS, the"
            )
            text = f"{text} transaction begins before the lock."
            missing.append(Error(text, hint=hint, id="weblock.E003"))
        if served := {each.routed.dotted for each in marked if not each.atomic}:
            text = f"@lock on {_some(served)} acquires the lock inside the view, after other decorators."
            missing.append(Caution(text, hint=hint, id="weblock.W003"))
        return missing
    if found == [len(settings.MIDDLEWARE) - 1]:
        return []
    after = settings.MIDDLEWARE[found[-1] + 1 :]
    what = f"before {after[0]!r}" if after else "more than once"
    return [
        Caution(
            f"LockMiddleware is {what} in MIDDLEWARE.",
            hint="Put it last, once: middleware after it runs inside the lock, and if that is not"
            " async, requests under ASGI are rejected.",
            id="weblock.W002",
        )
    ]


def check_views(**_kwargs: object) -> list[CheckMessage]:
    """Check that each ``@lock`` has a key, its alias in the settings and its values in the URL."""
    found: list[CheckMessage] = []
    for routed in routed_views():
        # ``@lock`` without a key stands in the place of the view, or of a method.
        cls = class_of(routed.view)
        methods = (getattr(cls, name, None) for name in View.http_method_names)
        found += [
            Error(
                f"@lock is used without a key: {lock!r} serves the URL {routed.route!r}.",
                hint='Write @lock("create_item").',
                id="weblock.E008",
            )
            for view in (routed.view, *methods)
            if (lock := getattr(view, MARK_OF_DECORATOR, None))
        ]
    atomic = [routed for routed in routed_views() if _is_atomic(routed.view)]
    if late := {name for routed in atomic for name in _beneath(routed)}:
        text = f"@lock on {_some(late)} is rejected at each request: with ATOMIC_REQUESTS, the"
        hint = (
            "Put @lock above @api_view. For an operation of django-ninja or an action of the admin, write"
            " a rule for the view that calls it into RULES."
        )
        found.append(
            Error(f"{text} transaction begins before the lock.", hint=hint, id="weblock.E003")
        )
    known = _readable_aliases()
    warned: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for routed, lock, _ in marked_views():
        found += [
            _missing(f"lock({template!r}) of {routed.dotted}", name, routed)
            for template, name in routed.missing(lock.templates)
        ]
        if spelled := set(routed.spelled_in(lock.templates)) - warned[routed.dotted]:
            # Routers of REST framework have two URLs for each view.
            warned[routed.dotted] |= spelled
            what = f"@lock on {routed.dotted}, for {routed.route!r},"
            found += _spellings(what, sorted(spelled))
        if known and lock.alias not in known:
            text = (
                f"@lock on {routed.dotted} needs the alias {lock.alias!r}, which is not in WEBLOCK."
            )
            found.append(Error(text, hint=f"Available: {', '.join(known)}.", id="weblock.E005"))
    return found


def check_rules(**_kwargs: object) -> list[CheckMessage]:
    """Check that rules are about views that exist, and name only parts that their URLs have."""
    found: list[CheckMessage] = []
    everywhere = routed_views()
    for rule in (rule for rules in _readable_rules() for rule in rules):
        covered = [routed for routed in everywhere if rule.covers(routed.resolved)]
        if not covered:
            text = f"{rule.label}, {rule.about}, matches no view that a URL leads to, so it locks nothing."
            hint = (
                "Write the name of a view or a namespace as for reverse(), 'shop:item' or 'shop'; and a route"
                " as in the URL configuration, without the language of i18n_patterns."
            )
            found.append(Caution(text, hint=hint, id="weblock.W005"))
        for routed in covered:
            what = f"{rule.label}, which covers {routed.dotted} at {routed.route!r},"
            found += [_missing(what, name, routed) for _, name in routed.missing(rule.templates)]
            found += _spellings(what, routed.spelled_in(rule.templates))
    return found


def check_reads(**_kwargs: object) -> list[CheckMessage]:
    """Check that views read inside their locks what was committed, and name middleware that reads before."""
    found: list[CheckMessage] = []
    ours = [number for number, path in enumerate(settings.MIDDLEWARE) if _is_ours(path)]
    if not ours and not any(marked_views()):
        return found
    try:
        refuse_split_reads()
    except ConfigurationError as error:
        found.append(Error(f"{error.message}.", id="weblock.E011"))
    before = settings.MIDDLEWARE[: ours[-1]] if ours else settings.MIDDLEWARE
    if early := [path for path in before if path in READERS]:
        text = f"{', '.join(early)} reads rows before the lock of a view."
        hint = (
            "weblock reads rows on the request again inside the lock, with one query for each row."
        )
        found.append(Info(text, hint=hint, id="weblock.I001"))
    return found


def check_guard(databases: Sequence[str] | None = None, **_kwargs: object) -> list[CheckMessage]:
    """Check that the guarded databases have the table of fences."""
    guarded = {
        database
        for each in _guarded_aliases()
        for database in guarded_databases(each.guard.databases).intersection(databases or ())
    }
    return [
        Caution(
            f"the database {alias!r} has no table {TABLE}, which GUARD needs.",
            hint=f"Run manage.py migrate weblock --database={alias}, or name the databases in"
            " GUARD_DATABASES.",
            id="weblock.W007",
        )
        for alias in sorted(guarded)
        if TABLE not in connections[alias].introspection.table_names()
    ]


def check_guarded_locks(**_kwargs: object) -> list[CheckMessage]:
    """Check that locks that a database guards are exclusive: of others, each request would fail."""
    shared = {
        what
        for alias, what, guard, options in _described_locks()
        if current()[alias].guard.asked_by(guard) and terms_of(locks[alias], options).limit > 1
    }
    return [
        Error(
            f"{what} allows several holders (limit= or shared=), but the guard in the database needs an"
            " exclusive lock: each request is rejected.",
            hint='Leave out limit= and shared=, or use guard="lease" for this lock.',
            id="weblock.E009",
        )
        for what in sorted(shared)
    ]


def locked_in(app: object, asked: Asked | None) -> Iterator[Locked | ConfigurationError]:
    """List what the project locks, if the application is its handler: see ``kit.application``."""
    if isinstance(app, BaseHandler):
        yield from listed(asked)


def listed(asked: Asked | None) -> Iterator[Locked | ConfigurationError]:
    """List the views and rules that lock, and what the checks find; of a request, what it locks.

    Raises ``ConfigurationError`` for a request that no URL of the project matches.
    """
    if asked:
        try:
            with translation.override(translation.get_language_from_path(asked.path)):
                served = resolve(asked.path)
        except Resolver404 as error:
            raise ConfigurationError(
                f"no URL of the project matches {asked.path!r:.200}"
            ) from error
        for rules in _readable_rules():
            if first := next((each for each in rules if each.takes(asked.method, served)), None):
                yield _listed(f"{first.label}: {first.about}", first.lock)
        for lock in locks_of(served.func, asked.method):
            yield _listed(f"{served.view_name} at {served.route!r}", lock)
        return
    for routed, lock, _ in marked_views():
        yield _listed(f"{routed.dotted} at {routed.route!r}", lock)
    for rule in (rule for rules in _readable_rules() for rule in rules):
        yield _listed(f"{rule.label}: {rule.about}", rule.lock)
    for message in run_checks(tags=["weblock"]):
        if message.level >= WARNING and not message.is_silenced():
            text, code = f"{message.msg} {message.hint or ''}", str(message.id)
            yield ConfigurationError(text.rstrip(), code=code.removeprefix("weblock."))


def _listed(what: str, lock: ViewLock | None) -> Locked:
    if lock is None:
        return Locked(f"{what}, exempt")
    if lock.alias not in _readable_aliases():
        return Locked(what, lock.keys, lock.said)
    guard = DATABASE_GUARD if current()[lock.alias].guard.asked_by(lock.guard) else LEASE_GUARD
    by_middleware = any(map(_is_ours, settings.MIDDLEWARE))
    order = "after the middleware" if by_middleware else "after the decorators above @lock"
    return Locked(what, lock.keys, lock.said, locks[lock.alias], guard, order)


def _guarded_aliases() -> Iterator[AliasSettings]:
    """Return the aliases with locks that databases guard: all of them, or those that say so."""
    named = {alias for alias, _, guard, _ in _described_locks() if guard == DATABASE_GUARD}
    for alias in _readable_aliases():
        found = current()[alias]
        if found.guard.always or alias in named:
            yield found


def _described_locks() -> Iterator[tuple[str, str, GuardKind | None, HoldOptions]]:
    """Return the alias, the name, the guard and the options of each lock on a view and in a rule."""
    known = _readable_aliases()
    for routed, lock, _ in marked_views():
        if lock.alias in known:
            yield lock.alias, f"@lock on {routed.dotted}", lock.guard, lock.options
    for alias in known:
        for rule in current()[alias].rules or ():
            if rule.lock:
                yield alias, rule.label, rule.lock.guard, rule.lock.options


def _mixed_guards() -> Iterator[CheckMessage]:
    """Fences of different engines cannot be compared: each has rows of its own, by its namespace."""
    by_namespace: dict[object, str] = {}
    for found in _guarded_aliases():
        alias = found.alias
        first = by_namespace.setdefault(found.options.get("namespace"), alias)
        if current()[first].url != found.url:
            text = f"WEBLOCK[{first!r}] and WEBLOCK[{alias!r}] have two engines, but one namespace and a"
            yield Error(
                f"{text} GUARD: their fences would share one row.",
                hint="Give one of them another NAMESPACE.",
                id="weblock.E007",
            )


def _other_names() -> Iterator[CheckMessage]:
    """Find settings that look like ours where ``WEBLOCK`` itself is missing, so that none counts."""
    if hasattr(settings, "WEBLOCK"):
        return  # They may be what it is made of.
    for name in dir(settings):
        if name.startswith("WEBLOCK"):
            yield Caution(
                f"The setting {name} has no effect: locks are on {locks[DEFAULT].engine}.",
                hint='Write WEBLOCK = {"default": {"URL": "redis://...", ...}}.',
                id="weblock.W010",
            )


def _of_alias(alias: str) -> Iterator[CheckMessage]:
    try:
        _ = locks[alias].engine
    except ConfigurationError as error:
        yield Error(error.message, id="weblock.E001")
        return
    url = current()[alias].url
    databases = {_database(each) for each in ([url] if isinstance(url, str) else url or ())} - {
        None
    }
    for name, cache in settings.CACHES.items():
        there = cache.get("LOCATION") or ()
        locations = there if isinstance(there, list | tuple) else re.split("[;,]", str(there))
        if databases.intersection(map(_database, locations)):
            yield Caution(
                f"WEBLOCK[{alias!r}] and CACHES[{name!r}] share one database of Redis: cache.clear() deletes"
                " every lease.",
                hint="Give the locks their own database number, such as redis://localhost:6379/2.",
                id="weblock.W011",
            )


def _database(url: object) -> tuple[str, str] | None:
    """Return the server and the database that a URL of Redis names; ``None`` for any other."""
    try:
        parts = urlsplit(str(url))
        port = parts.port or 6379
    except ValueError:  # A port that is part of a password, say: not to be shown.
        return None
    if parts.scheme not in ("redis", "rediss", "unix"):
        return None
    asked = parse_qs(parts.query).get("db")
    if parts.scheme == "unix":
        return parts.path, asked[0] if asked else "0"
    host = parts.hostname or "localhost"
    server = "localhost" if host in ("127.0.0.1", "::1") else host
    return f"{server}:{port}", asked[0] if asked else parts.path.strip("/") or "0"


def _missing(what: str, name: str, routed: RoutedView) -> CheckMessage:
    there = ", ".join(sorted(routed.names)) or "nothing"
    return Error(
        f"{what} needs {name!r} from its URL.", hint=f"The URL has {there}.", id="weblock.E004"
    )


def _spellings(what: str, spellings: Iterable[tuple[str, str]]) -> Iterator[CheckMessage]:
    for template, name in spellings:
        yield Caution(
            f"{what} has the key {template!r}, which contains {name!r} as the URL spells it: '7',"
            " '07' and '+7' would be three locks for one row.",
            hint=f"Write {{{name}:int}}, {{{name}:uuid}} or {{{name}:lower}} in the key, or"
            f" <int:{name}> in the URL. {{{name}:str}} keeps each spelling as a separate key.",
            id="weblock.W006",
        )


def _some(names: set[str]) -> str:
    first, *others = sorted(names)
    return f"{first} (and {len(others)} more)" if others else first


def _readable_aliases() -> tuple[str, ...]:
    """Return the aliases; none if ``check_settings`` reports an error."""
    try:
        return tuple(current()[alias].alias for alias in aliases())
    except ConfigurationError:
        return ()


def _readable_rules() -> list[Rules]:
    found = (current()[alias].rules for alias in _readable_aliases())
    return [rules for rules in found if rules]


def _is_ours(path: str) -> bool:
    try:
        return import_string(path) is LockMiddleware
    except ImportError:
        return False  # Django says it.
