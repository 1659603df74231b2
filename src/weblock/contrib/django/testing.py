"""For the tests of Django projects: locks in memory, and views that must not overlap."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from unittest import mock

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.core.signals import setting_changed
from django.db import connections
from django.http import HttpRequest
from django.test import override_settings

from ...errors import ConfigurationError
from ...testing import serialized
from ...testing.sections import Sections, Watch
from .database import give_back_connections
from .settings import async_locks, locks

__all__ = ["assert_serialized", "assert_serialized_async", "memory_locks", "views"]

R = TypeVar("R")
_ENGINES: Final = "memory://of-a-test-"
_numbers: Final = itertools.count(1)


def memory_locks() -> override_settings:
    """Settings with a memory engine, which nobody has used, instead of each that there is.

    A decorator of tests and of their classes, and a ``with`` block. What shared an engine still
    does; all other options stay. Locks then serialize the threads and tasks of this process.
    """
    setting = getattr(settings, "WEBLOCK", None) or {"default": {}}
    engines: dict[str, str] = {}

    def in_memory(given: Mapping[str, Any]) -> dict[str, Any]:
        url = engines.setdefault(repr(given.get("URL")), f"{_ENGINES}{next(_numbers)}")
        kept = {name: given[name] for name in given if name != "REQUIRE_SCOPE"}
        return {**kept, "URL": url}

    return override_settings(WEBLOCK={alias: in_memory(setting[alias]) for alias in setting})


def _close_engines(*, setting: str, value: Any, enter: bool, **_facts: object) -> None:
    """Close engines: each has a thread, and a long test run would have thousands."""
    if setting != "WEBLOCK" or enter:
        return

    def is_over(engine: str) -> bool:
        return engine.startswith(_ENGINES) and repr(engine) not in repr(value)

    locks.close_where(is_over)
    async_locks.close_where(is_over)


setting_changed.connect(_close_engines, dispatch_uid="weblock.testing")


def assert_serialized(
    call: Callable[[], R],
    *,
    inside: str | Watch | None = None,
    times: int | None = None,
    pause: float = 0.1,
    limit: int = 1,
) -> list[R]:
    """Assert that requests of a test client, or to a live server, do not overlap.

    As ``weblock.testing.assert_serialized``. Unless ``inside`` names something else, no two of the
    requested views, or no more than ``limit``, may run at the same time, from the beginning of their
    transaction to its end.
    Raises ``ConfigurationError`` in a ``TestCase``, whose transaction other threads cannot share.
    """
    if any(each.in_atomic_block for each in connections.all(initialized_only=True)):
        raise ConfigurationError(
            "this test runs in a transaction, of which concurrent requests see nothing: use"
            " TransactionTestCase, or @pytest.mark.django_db(transaction=True)"
        )

    def call_and_close() -> R:
        try:
            return call()
        finally:
            give_back_connections()

    with _explained(inside):
        return serialized.assert_serialized(
            call_and_close, inside=inside or views(), times=times, pause=pause, limit=limit
        )


async def assert_serialized_async(
    call: Callable[[], Awaitable[R]],
    *,
    inside: str | Watch | None = None,
    times: int | None = None,
    pause: float = 0.1,
    limit: int = 1,
) -> list[R]:
    """Assert that requests of the async client, to async views, do not overlap.

    Synchronous views all run in one thread then: they cannot overlap, and the error says so.
    """
    try:
        with _explained(inside):
            return await serialized.assert_serialized_async(
                call, inside=inside or views(), times=times, pause=pause, limit=limit
            )
    finally:
        await sync_to_async(give_back_connections)()


@contextmanager
def _explained(inside: str | Watch | None) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        if inside is None:
            error.add_note(
                "A view that acquires its lock itself, where LockMiddleware does not see it, waits inside:"
                " name the code that must not overlap, as in inside='shop.orders.make_item'"
            )
        raise


def views(*names: str) -> Watch:
    """Watch the views with these names (``"shop:create_item"``), or all that are requested.

    Each is a section from before its transaction until after its COMMIT. Many requests at a time are inside a view
    that acquires its lock itself, which shows nothing.
    """

    @contextmanager
    def watch(sections: Sections) -> Iterator[None]:
        make_atomic = BaseHandler.make_view_atomic

        def make_watched(handler: BaseHandler, view: Callable[..., Any]) -> Callable[..., Any]:
            asynchronous = iscoroutinefunction(view)
            # To linger before COMMIT gives those a chance who were let in too early.
            atomic = make_atomic(handler, sections.lingering(view, asynchronous=asynchronous))
            watched = sections.noted(atomic, asynchronous=asynchronous)
            others = make_atomic(handler, view)

            def serve(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                match = request.resolver_match
                is_watched = not names or (match and match.view_name in names)
                return (watched if is_watched else others)(request, *args, **kwargs)

            return markcoroutinefunction(serve) if asynchronous else serve

        with mock.patch.object(BaseHandler, "make_view_atomic", make_watched):
            yield

    return watch
