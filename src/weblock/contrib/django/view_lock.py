"""What a view locks, and the mark on the view by which the middleware knows it before the view runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse

from ...errors import ConfigurationError, LockTimeout
from ...keys import CheckedKey, KeyTemplate
from ..kit import LockSpec
from ..kit.values import Headers, request_values

DEFAULT: Final = "default"
"""The alias of locks that name none."""

Keys = str | Iterable[str]
KeyFunction = Callable[[HttpRequest], Keys | Awaitable[Keys]]
"""Makes a key, or several, from a request. It may be a coroutine function."""

BusyView = Callable[[HttpRequest, LockTimeout], HttpResponse | Awaitable[HttpResponse]]
"""Responds to a request that did not get its lock. It may be a coroutine function."""


@dataclass(frozen=True, repr=False)
class ViewLock(LockSpec):
    """A description of what a view locks."""

    alias: str = DEFAULT
    """``guard=None`` is what this alias's ``GUARD`` says."""
    busy_view: BusyView | None = None

    def keys_of(self, request: HttpRequest, values: Mapping[str, object]) -> tuple[CheckedKey, ...]:
        """Return the keys of a request. ``values`` are the view's arguments from the URL."""
        return self.made_of(
            lambda template: values_for(template, request, values),
            lambda function: call(function, request),
        )

    async def akeys_of(
        self, request: HttpRequest, values: Mapping[str, object]
    ) -> tuple[CheckedKey, ...]:
        """Return the keys, from a task."""
        made = {function: await acall(function, request) for function in self.functions}
        return self.made_of(
            lambda template: values_for(template, request, values), made.__getitem__
        )


def call(function: Callable[..., Any], *args: object) -> Any:
    """Call a function or a coroutine function."""
    return (async_to_sync(function) if iscoroutinefunction(function) else function)(*args)


async def acall(function: Callable[..., Any], *args: object) -> Any:
    """Call it from a task, a function in the request's thread: it may use the database."""
    return await (function if iscoroutinefunction(function) else sync_to_async(function))(*args)


def query_of(request: HttpRequest) -> str:
    """Return the query string as it was sent."""
    query: str = request.META.get("QUERY_STRING", "")
    return query


def headers_of(request: HttpRequest) -> Headers:
    """Return a function from the name of a header to its values, which servers join into one."""
    headers = request.headers
    return lambda name: [headers[name]] if name in headers else []


def values_for(
    template: KeyTemplate, request: HttpRequest, values: Mapping[str, object]
) -> Mapping[str, object]:
    """Return what a request has for a template. Raises ``ConfigurationError`` for a part its URL lacks."""
    found = request_values(
        template, path=values, query=query_of(request), headers=headers_of(request)
    )
    for name, source in template.in_request().items():
        if source.kind == "path" and name not in found:
            there = ", ".join(map(repr, values)) or "nothing"
            raise ConfigurationError(
                f"lock({template.text!r}) needs {source.name!r} of the URL, which gives the view"
                f" {there}: {request.path!r:.100}"
            )
    return found


_MARK: Final = "weblock_locks"
_MARK_OF_DECORATOR: Final = "weblock_decorator"


def mark(view: Callable[..., Any], lock: ViewLock) -> None:
    """Notes that ``view`` runs under ``lock``.

    ``functools.wraps`` carries the mark through other decorators, and ``as_view`` from ``dispatch``
    to the view.
    """
    setattr(view, _MARK, (lock, *marks_of(view)))


def mark_decorator(decorate: Callable[..., Any], lock: ViewLock) -> None:
    """Mark ``decorate`` as a decorator, which serves no requests."""
    setattr(decorate, _MARK_OF_DECORATOR, lock)


def undecorated_lock(view: object) -> ViewLock | None:
    """The lock of a decorator that stands where a view should, as ``@lock`` without a key makes it."""
    found: ViewLock | None = getattr(view, _MARK_OF_DECORATOR, None)
    return found


def marks_of(view: object) -> tuple[ViewLock, ...]:
    """Return the locks that ``view`` itself is marked with, the outermost decorator's first."""
    found: tuple[ViewLock, ...] = getattr(view, _MARK, ())
    return found


def locks_of(view: Callable[..., Any], method: str | None) -> tuple[ViewLock, ...]:
    """Return the locks of ``view``, and of the methods of its class that serve ``method``.

    These are ``dispatch``, and the handler or the action, each as the class and as its bases define it.
    """
    found: dict[ViewLock, None] = {}
    for each in _called(view):
        found.update(dict.fromkeys(marks_of(each)))
        cls = getattr(each, "view_class", None) or getattr(each, "cls", None)
        if cls is not None:
            name = _handler(cls, getattr(each, "actions", None), (method or "get").lower())
            found.update(dict.fromkeys(_marks_of_methods(cls, name)))
    return tuple(found)


def _called(view: Any) -> Iterator[object]:
    """Return the view, the function of a ``partial``, and the ``__call__`` of an object."""
    yield view
    while isinstance(view, functools.partial):
        view = view.func
        yield view
    if not inspect.isroutine(view):
        yield type(view).__call__


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
