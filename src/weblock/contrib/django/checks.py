"""What ``manage.py check`` says of locks, before the first request finds it out."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution
from django.db import connections
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.module_loading import import_string
from django.views import View

from ..._core.attempts import Attempts
from ..._options import Options
from ...errors import ConfigurationError
from .description import Lock
from .gunicorn import worker_timeout
from .marks import locks_of
from .middleware import LockMiddleware
from .registry import locks
from .settings import aliases, of_alias, rules

MIDDLEWARE: Final = "weblock.contrib.django.middleware.LockMiddleware"

ENGINES: Final = "Set URL: file:// serializes the processes of one machine, redis:// those of many."


def check_settings(**_kwargs: object) -> list[CheckMessage]:
    """``WEBLOCK`` makes locks, which reach beyond one process where that counts."""
    found: list[CheckMessage] = []
    for alias in _aliases(found):
        try:
            scope = locks[alias].scope
        except ConfigurationError as error:
            found.append(Error(str(error), id="weblock.E001"))
            continue
        except ImportError as error:
            found.append(Error(f"WEBLOCK[{alias!r}]: {error}", id="weblock.E001"))
            continue
        if scope in ("none", "process") and not settings.DEBUG:
            engine = locks[alias].engine
            what = "locks nothing" if scope == "none" else "serializes one process"
            text = f"WEBLOCK[{alias!r}] is on {engine}, which {what}, and DEBUG is off."
            found.append(Caution(text, hint=ENGINES, id="weblock.W001"))
    return found


def check_middleware(**_kwargs: object) -> list[CheckMessage]:
    """The middleware is there, and last, for what needs it."""
    places = [number for number, path in enumerate(settings.MIDDLEWARE) if _is_ours(path)]
    if not places:
        return list(_without_middleware())
    if places == [len(settings.MIDDLEWARE) - 1]:
        return []
    after = settings.MIDDLEWARE[places[-1] + 1 :]
    what = f"before {after[0]!r}" if after else "more than once"
    return [
        Caution(
            f"LockMiddleware stands {what} in MIDDLEWARE.",
            hint="Put it last, once: what follows it runs inside the lock, and if it is not"
            " async, requests under ASGI are refused.",
            id="weblock.W002",
        )
    ]


def check_views(**_kwargs: object) -> list[CheckMessage]:
    """What the keys of ``@lock`` want of a URL is there."""
    found: list[CheckMessage] = []
    for marked in _marked_views():
        for template in marked.lock.templates:
            wanted = {
                source.name for source in template.in_request().values() if source.kind == "path"
            }
            if missing := sorted(wanted - marked.given):
                text = f"lock({template.text!r}) of {marked.view} wants {missing[0]!r} of its URL."
                there = ", ".join(sorted(marked.given)) or "nothing"
                found.append(Error(text, hint=f"The URL gives {there}.", id="weblock.E004"))
    return found


def check_waits(**_kwargs: object) -> list[CheckMessage]:
    """No request waits for longer than gunicorn lets its worker live."""
    limit = worker_timeout()
    if limit is None:
        return []
    waits = {f"WAIT of WEBLOCK[{alias!r}]": _wait(alias) for alias in _aliases([])}
    waits |= {
        f"wait of @lock on {marked.view}": dict(marked.lock.options)["wait"]
        for marked in _marked_views()
        if "wait" in dict(marked.lock.options)
    }
    longest = {what: _longest(wait) for what, wait in waits.items()}
    return [
        Caution(
            f"{what} is {'without end' if wait == inf else f'{wait:g} s'}, but gunicorn kills a"
            f" worker that is busy for {limit:g} s.",
            hint="Wait for less, raise gunicorn's timeout, or give it a worker class that is not sync.",
            id="weblock.W004",
        )
        for what, wait in longest.items()
        if wait >= limit
    ]


def _longest(wait: Any) -> float:
    """Seconds for which a request waits at most."""
    checked = Options(wait=wait).of_call({})[1]
    if isinstance(checked, Attempts):
        return sum(checked.pauses())
    return inf if checked is None else checked


def _without_middleware() -> Iterator[CheckMessage]:
    hint = f"Put {MIDDLEWARE!r} last into MIDDLEWARE."
    try:
        ruled = bool(rules())
    except (ConfigurationError, ImportError):
        ruled = False  # check_settings says it.
    if ruled:
        text = "WEBLOCK has RULES, which do nothing without LockMiddleware."
        yield Error(text, hint=hint, id="weblock.E002")
    marked = list(_marked_views())
    if refused := {each.view for each in marked if each.atomic}:
        text = f"@lock on {_some(refused)} is refused at each request: with ATOMIC_REQUESTS, the"
        yield Error(f"{text} transaction begins before the lock.", hint=hint, id="weblock.E003")
    if served := {each.view for each in marked if not each.atomic}:
        text = f"@lock on {_some(served)} takes the lock inside the view, after other decorators."
        yield Caution(text, hint=hint, id="weblock.W003")


def _some(names: set[str]) -> str:
    first, *others = sorted(names)
    return f"{first} (and {len(others)} more)" if others else first


def _aliases(found: list[CheckMessage]) -> tuple[str, ...]:
    try:
        return aliases()
    except ConfigurationError as error:
        found.append(Error(str(error), id="weblock.E001"))
        return ()


def _wait(alias: str) -> Any:
    try:
        return of_alias(alias).options.get("wait", Options().of_call({})[1])
    except (ConfigurationError, ImportError):
        return 0  # check_settings says it.


def _is_ours(path: str) -> bool:
    try:
        return import_string(path) is LockMiddleware
    except ImportError:
        return False  # Django says it.


class _Marked(NamedTuple):
    """A view that ``@lock`` marks."""

    view: str
    given: set[str]
    """What its URL gives it."""
    lock: Lock
    atomic: bool
    """Whether it runs in a transaction that Django begins."""


def _marked_views() -> Iterator[_Marked]:
    if not getattr(settings, "ROOT_URLCONF", None):
        return
    for name, given, view in _views(get_resolver(), set()):
        methods = (locks_of(view, method) for method in View.http_method_names)
        for lock in dict.fromkeys(lock for each in methods for lock in each):
            yield _Marked(name, given, lock, _is_atomic(view))


def _is_atomic(view: Any) -> bool:
    not_in = getattr(view, "_non_atomic_requests", ())
    databases = connections.settings.items()
    return any(each["ATOMIC_REQUESTS"] and alias not in not_in for alias, each in databases)


def _views(resolver: URLResolver, outer: set[str]) -> Iterator[tuple[str, set[str], Any]]:
    for each in resolver.url_patterns:
        given = outer | set(each.pattern.regex.groupindex)
        if isinstance(each, URLResolver):
            yield from _views(each, given | set(each.default_kwargs))
        elif isinstance(each, URLPattern):
            yield each.lookup_str, given | set(each.default_args), each.callback
