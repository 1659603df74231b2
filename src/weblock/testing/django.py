"""For the tests of Django projects: locks in memory, and views that must not overlap."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from asgiref.sync import sync_to_async

from ..contrib.django.commits import give_back_connections
from ..contrib.django.testing import memory_locks, refuse_transaction_of_test, watching_views
from . import serialized
from .sections import Sections, Watch

__all__ = ["assert_serialized", "assert_serialized_async", "memory_locks", "views"]

R = TypeVar("R")


def views(*names: str) -> Watch:
    """Watch the views with these names (``"shop:create_item"``), or all that are requested."""

    def watch(sections: Sections) -> AbstractContextManager[object]:
        return watching_views(sections, names)

    return watch


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
    refuse_transaction_of_test()

    def call_and_close() -> R:
        try:
            return call()
        finally:
            give_back_connections()

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
        return await serialized.assert_serialized_async(
            call, inside=inside or views(), times=times, pause=pause, limit=limit
        )
    finally:
        await sync_to_async(give_back_connections)()
