"""What to lock for a request, and how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse

from ..._options import HoldOptions, Options
from ...errors import ConfigurationError, LockTimeout
from ...keys import KeyTemplate
from ..request_values import Headers, keys_made_by, request_values

Keys = str | Iterable[str]
KeyFunction = Callable[[HttpRequest], Keys | Awaitable[Keys]]
"""Makes a key, or several, of a request. It may be a coroutine function."""

BusyView = Callable[[HttpRequest, LockTimeout], HttpResponse | Awaitable[HttpResponse]]
"""Answers a request that did not get its lock. It may be a coroutine function."""


@dataclass(frozen=True, repr=False)
class Lock:
    """A description of what to lock: equal for equal arguments, and hashable."""

    templates: tuple[KeyTemplate, ...]
    functions: tuple[KeyFunction, ...]
    alias: str
    busy_view: BusyView | None
    options: tuple[tuple[str, Any], ...]

    @classmethod
    def of(
        cls,
        keys: Iterable[str | KeyFunction],
        alias: str,
        busy_view: BusyView | None,
        given: HoldOptions,
    ) -> Lock:
        """Raises ``ConfigurationError`` for what cannot work, at once and not at a request."""
        keys = tuple(keys)
        if not keys:
            raise TypeError("name at least one key: lock('create_item')")
        Options().of_call(given)
        templates = tuple(KeyTemplate.parse(key) for key in keys if isinstance(key, str))
        for template in templates:
            template.in_request()
        functions = tuple(key for key in keys if not isinstance(key, str))
        return cls(templates, functions, alias, busy_view, tuple(sorted(given.items())))

    def __repr__(self) -> str:
        keys = [repr(each.text) for each in self.templates]
        keys += [name_of(each) for each in self.functions]
        options = [f"{name}={value!r}" for name, value in self.options]
        alias = [] if self.alias == "default" else [f"alias={self.alias!r}"]
        return f"lock({', '.join([*keys, *alias, *options])})"

    def keys_of(self, request: HttpRequest, values: Mapping[str, object]) -> list[str]:
        """The keys for a request. ``values`` has what of its URL the view is given."""
        keys = [_filled(template, request, values) for template in self.templates]
        for function in self.functions:
            keys += keys_made_by(function, call(function, request))
        return keys

    async def akeys_of(self, request: HttpRequest, values: Mapping[str, object]) -> list[str]:
        """Return the keys, from a task."""
        keys = [_filled(template, request, values) for template in self.templates]
        for function in self.functions:
            keys += keys_made_by(function, await acall(function, request))
        return keys


def name_of(function: Callable[..., Any]) -> str:
    """How messages call a function of the project's."""
    return str(getattr(function, "__qualname__", None) or repr(function))


def call(function: Callable[..., Any], *args: object) -> Any:
    """Calls a function or a coroutine function."""
    return (async_to_sync(function) if iscoroutinefunction(function) else function)(*args)


async def acall(function: Callable[..., Any], *args: object) -> Any:
    """Call it from a task, a function in the request's thread: it may use the database."""
    return await (function if iscoroutinefunction(function) else sync_to_async(function))(*args)


def query_of(request: HttpRequest) -> str:
    """The query string as it was sent."""
    query: str = request.META.get("QUERY_STRING", "")
    return query


def headers_of(request: HttpRequest) -> Headers:
    """The values of a header by its name, of which servers make one."""
    headers = request.headers
    return lambda name: [headers[name]] if name in headers else []


def _filled(template: KeyTemplate, request: HttpRequest, values: Mapping[str, object]) -> str:
    found = request_values(
        template, path=values, query=query_of(request), headers=headers_of(request)
    )
    for name, source in template.in_request().items():
        if source.kind == "path" and name not in found:
            there = ", ".join(map(repr, values)) or "nothing"
            raise ConfigurationError(
                f"lock({template.text!r}) wants {source.name!r} of the URL, which gives the view"
                f" {there}: {request.path!r:.100}"
            )
    return template.fill(found)
