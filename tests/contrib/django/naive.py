"""What everybody writes first, and what is wrong with each."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from tests.support.waiting import PATIENCE
from weblock.contrib.django import async_locks, locks

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def naive_lock(key: str) -> Decorator:
    """Holds ``key`` around a view, wherever the view's transaction begins and ends."""

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def held(*args: Any, **kwargs: Any) -> Any:
            with locks["default"].hold(key, wait=PATIENCE):
                return view(*args, **kwargs)

        return held

    return decorate


def naive_lock_until_commit(key: str) -> Decorator:
    """The next try: it releases after the COMMIT, but acquires inside the transaction still."""

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def held(*args: Any, **kwargs: Any) -> Any:
            lease = locks["default"].acquire(key, wait=PATIENCE)
            transaction.on_commit(lease.release)
            return view(*args, **kwargs)

        return held

    return decorate


class NaiveMiddleware(MiddlewareMixin):
    """Waits in ``process_view``, in the one thread that Django has for what is not async."""

    def process_view(self, request: Any, *_view: object) -> None:
        """Acquires before the view's transaction, as it should."""
        request.lease = None
        request.lease = locks["default"].acquire("report", wait=0.5)

    def process_response(self, request: Any, response: HttpResponse) -> HttpResponse:
        """Releases after it."""
        if request.lease:
            request.lease.release()
        return response


def naive_async_middleware(get_response: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Holds a lock until it is cancelled, which is not when the view's thread has ended."""

    async def serve(request: HttpRequest) -> Any:
        async with async_locks["default"].hold("report"):
            return await get_response(request)

    return serve


naive_async_middleware.sync_capable = False  # type: ignore[attr-defined]
naive_async_middleware.async_capable = True  # type: ignore[attr-defined]
