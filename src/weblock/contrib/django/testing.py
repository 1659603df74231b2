"""What ``weblock.testing.django`` needs of Django."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol
from unittest import mock

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.http import HttpRequest
from django.test import override_settings

from ...errors import ConfigurationError
from .marks import locks_of
from .request import locks_of_request

_numbers: Final = itertools.count(1)

View = Callable[..., Any]


def memory_locks() -> override_settings:
    """Settings with a memory engine, which nobody has used, instead of each that there is.

    A decorator of tests and of their classes, and a ``with`` block. What shared an engine still
    does; all other options stay. Locks then serialize the threads and tasks of this process.
    """
    setting = getattr(settings, "WEBLOCK", None) or {"default": {}}
    engines: dict[str, str] = {}

    def in_memory(given: Mapping[str, Any]) -> dict[str, Any]:
        engine = repr((given.get("URL"), given.get("CACHE")))
        url = engines.setdefault(engine, f"memory://test-{next(_numbers)}")
        kept = {name: given[name] for name in given if name not in ("CACHE", "REQUIRE_SCOPE")}
        return {**kept, "URL": url}

    return override_settings(WEBLOCK={alias: in_memory(setting[alias]) for alias in setting})


def refuse_transaction_of_test() -> None:
    """Raises ``ConfigurationError`` inside a ``TestCase``, whose rows no other thread would see."""
    if any(each.in_atomic_block for each in connections.all(initialized_only=True)):
        raise ConfigurationError(
            "this test runs in a transaction, of which concurrent requests see nothing: use"
            " TransactionTestCase, or @pytest.mark.django_db(transaction=True)"
        )


def close_connections() -> None:
    """Gives back this thread's connections, but for those of a ``TestCase``."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


class Sections(Protocol):
    """What is told of views that are entered and left."""

    def noted(self, function: View, *, asynchronous: bool) -> View:
        """The function, each call of which is noted."""

    def lingering(self, function: View, *, asynchronous: bool) -> View:
        """The function, which takes a while longer."""


def watching_views(sections: Sections, names: tuple[str, ...]) -> AbstractContextManager[object]:
    """Has views noted, from before their transaction until after its COMMIT, by name or all."""
    make_atomic = BaseHandler.make_view_atomic

    def make_watched(handler: BaseHandler, view: View) -> View:
        asynchronous = iscoroutinefunction(view)
        # To linger before COMMIT gives those a chance who were let in too early.
        atomic = make_atomic(handler, sections.lingering(view, asynchronous=asynchronous))
        watched = sections.noted(atomic, asynchronous=asynchronous)

        def chosen(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if names and _name_of(request) not in names:
                return make_atomic(handler, view)(request, *args, **kwargs)
            _refuse_own_locks(request, view)
            return watched(request, *args, **kwargs)

        async def chosen_async(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            return await chosen(request, *args, **kwargs)

        return chosen_async if asynchronous else chosen

    return mock.patch.object(BaseHandler, "make_view_atomic", make_watched)


def _name_of(request: HttpRequest) -> str | None:
    return request.resolver_match.view_name if request.resolver_match else None


def _refuse_own_locks(request: HttpRequest, view: View) -> None:
    """A view that waits inside is entered by many at a time, which says nothing."""
    held = locks_of_request(request)
    if not all(held and held.has(lock) for lock in locks_of(view, request.method)):
        raise ConfigurationError(
            f"{_name_of(request) or view!r} takes its lock itself, because"
            " weblock.contrib.django.middleware.LockMiddleware is not in MIDDLEWARE: say what must not"
            " overlap, inside='shop.orders.make_item'"
        )
