"""The middleware: it acquires before the view's transaction begins, and releases after it ends.

``MIDDLEWARE += ["weblock.contrib.django.middleware.LockMiddleware"]``, as the last one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from ...errors import ConfigurationError, WeblockError
from . import settings
from .answers import aanswer_for, answer_for
from .database import refuse_split_reads
from .request import TaskLeases, ThreadLeases, locks_of_request
from .settings import LocksByAlias, async_locks, locks
from .view_lock import ViewLock, locks_of

View = Callable[..., Any]


@sync_and_async_middleware  # type: ignore[untyped-decorator] # Django has no types.
def LockMiddleware(get_response: Callable[[HttpRequest], Any]) -> _Layer:  # noqa: N802 - a class, to the settings
    """Holds what ``@lock`` marks and what ``RULES`` say, in WSGI and in ASGI."""
    return (_TaskLayer if iscoroutinefunction(get_response) else _ThreadLayer)(get_response)


class _Layer:
    _locks: LocksByAlias[Any]

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        # What cannot work is refused when the server starts. No engine is connected to yet.
        settings.rules()
        refuse_split_reads()
        for alias in self._locks:
            self._locks[alias]

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Respond to an error of a view: a lost lease, or a lock that the view acquired itself."""
        held = locks_of_request(request)
        if held:
            error = held.reason_of(error)
        return answer_for(held.lock_behind(error) if held else None, request, error)


class _ThreadLayer(_Layer):
    """The middleware in a chain of functions, as under WSGI."""

    _locks = locks

    def __call__(self, request: HttpRequest) -> Any:
        return ThreadLeases(request).run(partial(self._get_response, request))

    def process_view(
        self, request: HttpRequest, view: View, _args: Any, values: Mapping[str, object]
    ) -> HttpResponse | None:
        """Acquire what the view locks."""
        held = _held(request)
        try:
            wanted = _wanted(view, request)
            if not wanted:
                return None
            if isinstance(request, ASGIRequest):
                # A thread each, if not one for all, where the holder's view would have to run, too.
                raise ConfigurationError(
                    "weblock's LockMiddleware stands before middleware that is not async, so that under"
                    " ASGI requests would wait in threads, and maybe in the one that the holder needs:"
                    " put it last into MIDDLEWARE"
                )
            held.acquire(wanted, values)
        except WeblockError as error:
            if response := answer_for(held.lock_behind(error), request, error):
                return response
            raise
        held.show(wanted[-1], to_task=iscoroutinefunction(view))
        return None


class _TaskLayer(_Layer):
    """The middleware in a chain of coroutine functions, as under ASGI."""

    _locks = async_locks

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[Any]]) -> None:
        super().__init__(get_response)
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> Any:
        return await TaskLeases(request).run(partial(self._get_response, request))

    async def process_view(
        self, request: HttpRequest, view: View, _args: Any, values: Mapping[str, object]
    ) -> HttpResponse | None:
        """Acquire what the view needs."""
        held = _held(request)
        try:
            wanted = _wanted(view, request)
            if not wanted:
                return None
            await held.acquire(wanted, values)
        except WeblockError as error:
            if response := await aanswer_for(held.lock_behind(error), request, error):
                return response
            raise
        held.show(wanted[-1], to_task=iscoroutinefunction(view))
        return None


def _wanted(view: View, request: HttpRequest) -> tuple[ViewLock, ...]:
    """Return the locks that the rules of the settings and the view's decorators want."""
    marked = locks_of(view, request.method)
    if not (every := settings.rules()):
        return marked
    ruled = (rules.find(request) for rules in every)
    return (*(lock for lock in ruled if lock), *marked)


def _held(request: HttpRequest) -> Any:
    held = locks_of_request(request)
    assert held, "Django calls process_view inside the middleware"
    return held
