"""What ``manage.py check`` reports about locks, before the first request would fail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from django.conf import settings
from django.core.checks import WARNING, CheckMessage, Error, run_checks
from django.core.checks import Warning as Caution
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.urls import Resolver404, resolve
from django.utils import translation
from django.utils.module_loading import import_string
from django.views import View

from ...errors import ConfigurationError
from ...stores.redis.settings import parse
from ..kit import Asked, Locked
from ..kit.guarding import DATABASE_GUARD, LEASE_GUARD
from ..kit.sql import TABLE
from .database import guarded_databases, refuse_split_reads
from .middleware import LockMiddleware
from .settings import AliasSettings, aliases, current, locks
from .view_lock import (
    DEFAULT,
    RoutedView,
    ViewLock,
    ViewRule,
    locks_of,
    matching,
    routed_views,
)

MIDDLEWARE: Final = "weblock.contrib.django.middleware.LockMiddleware"


class Place(NamedTuple):
    """A URL whose view locks, by ``@lock`` or by a rule."""

    what: str
    lock: ViewLock
    routed: RoutedView


def marked() -> list[Place]:
    """Return the views that ``@lock`` marks, for any method."""
    return [
        Place(f"@lock on {routed.dotted}", lock, routed)
        for routed in routed_views()
        for lock in dict.fromkeys(
            lock for method in View.http_method_names for lock in locks_of(routed.view, method)
        )
    ]


def _readable() -> dict[str, AliasSettings]:
    """Return the settings by alias; none if ``check_settings`` reports an error."""
    try:
        return {alias: current()[alias] for alias in aliases() if locks[alias].engine}
    except ConfigurationError:
        return {}


def _rules() -> list[ViewRule]:
    return [rule for alias in _readable().values() for rule in alias.rules]


def _is_atomic(view: object) -> bool:
    not_in = getattr(view, "_non_atomic_requests", ())
    databases = connections.settings.items()
    return any(each["ATOMIC_REQUESTS"] and name not in not_in for name, each in databases)


def _some(names: set[str]) -> str:
    first, *others = sorted(names)
    return f"{first} (and {len(others)} more)" if others else first


def _is_ours(path: str) -> bool:
    try:
        return import_string(path) is LockMiddleware
    except ImportError:
        return False  # Django says it.


def check_settings(**_kwargs: object) -> list[CheckMessage]:
    """Check that ``WEBLOCK`` is valid, and that its locks are where nothing else deletes them."""
    found: list[CheckMessage] = []
    try:
        for alias in aliases():
            _ = locks[alias].engine
            found += _caches_beside(alias)
    except ConfigurationError as error:
        return [Error(error.message, id="weblock.E001")]
    if not hasattr(settings, "WEBLOCK"):  # Else they may be what it is made of.
        found += [
            Caution(
                f"The setting {name} has no effect: locks are on {locks[DEFAULT].engine}.",
                hint='Write WEBLOCK = {"default": {"URL": "redis://...", ...}}.',
                id="weblock.W010",
            )
            for name in dir(settings)
            if name.startswith("WEBLOCK")
        ]
    by_namespace: dict[object, AliasSettings] = {}
    for guarded in _guarded():
        first = by_namespace.setdefault(guarded.options.get("namespace"), guarded)
        if first.url != guarded.url:
            text = (
                f"WEBLOCK[{first.alias!r}] and WEBLOCK[{guarded.alias!r}] have two engines, but one"
            )
            found.append(
                Error(
                    f"{text} namespace and a GUARD: their fences would share one row.",
                    hint="Give one of them another NAMESPACE.",
                    id="weblock.E007",
                )
            )
    return found


def _caches_beside(alias: str) -> Iterator[CheckMessage]:
    url = current()[alias].url
    ours = {_database(each) for each in ([url] if isinstance(url, str) else url or ())} - {None}
    for name, cache in settings.CACHES.items():
        there = cache.get("LOCATION") or ()
        locations = there if isinstance(there, list | tuple) else re.split("[;,]", str(there))
        if ours.intersection(map(_database, locations)):
            yield Caution(
                f"WEBLOCK[{alias!r}] and CACHES[{name!r}] share one database of Redis: cache.clear() deletes"
                " every lease.",
                hint="Give the locks their own database number, such as redis://localhost:6379/2.",
                id="weblock.W011",
            )


def _database(url: object) -> tuple[str, int] | None:
    """Return the server and the database that a URL of Redis names; ``None`` for any other."""
    text, _, query = str(url).partition("?")
    named = [each for each in query.split("&") if each.startswith("db=")]
    try:  # The other options may be those of redis-py.
        found = parse("?".join([text, *named[:1]]))
    except (ConfigurationError, KeyError):
        return None
    address = found.addresses[0]
    if address.host in ("127.0.0.1", "::1"):
        address = address._replace(host="localhost")
    server = str(address)
    return server if found.scheme == "unix" else server.lower(), found.db


def check_deployment(**_kwargs: object) -> list[CheckMessage]:
    """Check that an engine excludes more than one process, where the application is to be deployed."""
    return [
        Caution(
            f"WEBLOCK[{alias!r}] is on {locks[alias].engine}, which"
            f" {'locks nothing' if locks[alias].scope == 'none' else 'serializes one process'}.",
            hint="Set URL: file:// serializes the processes of one machine, redis:// those of many.",
            id="weblock.W001",
        )
        for alias in _readable()
        if locks[alias].scope in ("none", "process")
    ]


def check_middleware(**_kwargs: object) -> list[CheckMessage]:
    """Check that the middleware is installed, and last, if something needs it; and where reads go."""
    found: list[CheckMessage] = []
    places, hint = marked(), f"Put {MIDDLEWARE!r} last into MIDDLEWARE."
    ours = [number for number, path in enumerate(settings.MIDDLEWARE) if _is_ours(path)]
    if ours or places:
        try:
            refuse_split_reads()
        except ConfigurationError as error:
            found.append(Error(f"{error.message}.", id="weblock.E011"))
    if ours and ours != [len(settings.MIDDLEWARE) - 1]:
        after = settings.MIDDLEWARE[ours[-1] + 1 :]
        what = f"before {after[0]!r}" if after else "more than once"
        hint = (
            "Put it last, once: middleware after it runs inside the lock, and if that is not async,"
            " requests under ASGI are rejected."
        )
        text = f"LockMiddleware is {what} in MIDDLEWARE."
        found.append(Caution(text, hint=hint, id="weblock.W002"))
    if ours:
        return found
    if _rules():
        text = "WEBLOCK has RULES, which do nothing without LockMiddleware."
        found.append(Error(text, hint=hint, id="weblock.E002"))
    if refused := {each.what for each in places if _is_atomic(each.routed.view)}:
        text = (
            f"{_some(refused)} is rejected at each request: with ATOMIC_REQUESTS, the transaction begins"
            " before the lock."
        )
        found.append(Error(text, hint=hint, id="weblock.E003"))
    if served := {each.what for each in places if not _is_atomic(each.routed.view)}:
        text = f"{_some(served)} acquires the lock inside the view, after other decorators."
        found.append(Caution(text, hint=hint, id="weblock.W003"))
    return found


def check_views(**_kwargs: object) -> list[CheckMessage]:
    """Check that what ``@lock`` and rules say of the views can work."""
    found: list[CheckMessage] = []
    everywhere, known, places = routed_views(), _readable(), marked()
    for rule in _rules():
        covered = [routed for routed in everywhere if rule.covers(routed.resolved)]
        if not covered:
            text = f"{rule.label}, {rule.about}, matches no view that a URL leads to, so it locks nothing."
            hint = (
                "Write the name of a view or a namespace as for reverse(), 'shop:item' or 'shop'; and a route"
                " as in the URL configuration, without the language of i18n_patterns."
            )
            found.append(Caution(text, hint=hint, id="weblock.W005"))
        if rule.lock:
            places += [Place(rule.label, rule.lock, routed) for routed in covered]
    told: set[tuple[str, str, str]] = set()
    for what, lock, routed in places:
        if known and lock.alias not in known:
            text = f"{what} needs the alias {lock.alias!r}, which is not in WEBLOCK."
            found.append(Error(text, hint=f"Available: {', '.join(known)}.", id="weblock.E005"))
        where = f"{what}, for {routed.route!r},"
        for template, name in routed.missing(lock.templates):
            there = ", ".join(sorted(routed.names)) or "nothing"
            text = f"{where} has the key {template!r}, which needs {name!r} from its URL."
            found.append(Error(text, hint=f"The URL has {there}.", id="weblock.E004"))
        for template, name in routed.spelled_in(lock.templates):
            # Routers of REST framework have two URLs for each view.
            if (what, template, name) in told:
                continue
            told.add((what, template, name))
            found.append(
                Caution(
                    f"{where} has the key {template!r}, which contains {name!r} as the URL spells it: '7',"
                    " '07' and '+7' would be three locks for one row.",
                    hint=f"Write {{{name}:int}}, {{{name}:uuid}} or {{{name}:lower}} in the key, or"
                    f" <int:{name}> in the URL. {{{name}:str}} keeps each spelling as a separate key.",
                    id="weblock.W006",
                )
            )
    return found


def _guarded() -> list[AliasSettings]:
    """Return the aliases with locks that databases guard: all of them, or those that say so."""
    every = [*(each.lock for each in marked()), *(each.lock for each in _rules())]
    named = {lock.alias for lock in every if lock and lock.guard == DATABASE_GUARD}
    return [each for alias, each in _readable().items() if each.guards or alias in named]


def check_guard(databases: Sequence[str] | None = None, **_kwargs: object) -> list[CheckMessage]:
    """Check that the guarded databases have the table of fences."""
    guarded = {name for each in _guarded() for name in guarded_databases(each.guard_databases)}
    return [
        Caution(
            f"the database {alias!r} has no table {TABLE}, which GUARD needs.",
            hint=f"Run manage.py migrate weblock --database={alias}, or name the databases in"
            " GUARD_DATABASES.",
            id="weblock.W007",
        )
        for alias in sorted(guarded.intersection(databases or ()))
        if TABLE not in connections[alias].introspection.table_names()
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
        for alias in _readable().values():
            if first := matching(alias.rules, asked.method, served):
                yield _listed(f"{first.label}: {first.about}", first.lock)
        for lock in locks_of(served.func, asked.method):
            yield _listed(f"{served.view_name} at {served.route!r}", lock)
        return
    for _, lock, routed in marked():
        yield _listed(f"{routed.dotted} at {routed.route!r}", lock)
    for rule in _rules():
        yield _listed(f"{rule.label}: {rule.about}", rule.lock)
    for message in run_checks(tags=["weblock"]):
        if message.level >= WARNING and not message.is_silenced():
            text, code = f"{message.msg} {message.hint or ''}", str(message.id)
            yield ConfigurationError(text.rstrip(), code=code.removeprefix("weblock."))


def _listed(what: str, lock: ViewLock | None) -> Locked:
    if lock is None:
        return Locked(f"{what}, exempt")
    own = _readable().get(lock.alias)
    if own is None:
        return Locked(what, lock.keys, lock.said)
    guard = DATABASE_GUARD if own.guards_lock(lock.guard) else LEASE_GUARD
    by_middleware = any(map(_is_ours, settings.MIDDLEWARE))
    order = "after the middleware" if by_middleware else "after the decorators above @lock"
    return Locked(what, lock.keys, lock.said, locks[lock.alias], guard, order)
