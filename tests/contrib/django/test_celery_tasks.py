"""A locked task of Celery inside a view of Django that holds its key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient

from weblock.contrib.celery import WebLock
from weblock.contrib.django import lock, locks

from .requests import fetch

with_and_without = pytest.mark.parametrize(
    "middleware", [True, False], ids=["middleware", "decorator alone"]
)


@pytest.fixture
def tasks(url: str) -> Iterator[list[Any]]:
    """A task that waits for nothing, and one that is skipped if its key is busy; they run at once."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    web = WebLock(app, url)

    def keys() -> list[str]:
        return [info.key for info in locks["default"].list()]

    def task(**options: Any) -> Any:
        return app.task(shared=False, name=str(options), lock=["items", "own"], **options)(keys)

    yield [task(wait=0), task(on_busy="skip")]
    web.locks.close()
    app.close()


@with_and_without
async def test_a_task_has_the_key_of_its_view(
    middleware: bool, serve: Any, settings: Any, tasks: list[Any]
) -> None:
    """It runs under the lease of the view, in threads and in tasks, and releases only its own key."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:] if middleware else []

    def ran() -> HttpResponse:
        found = [*(task.delay().get() for task in tasks), *(task() for task in tasks)]
        assert found == [["items", "own"]] * 4
        return HttpResponse(locks["default"].list()[0].key)

    @lock("items")
    def view(request: HttpRequest) -> HttpResponse:
        return ran()

    @lock("items")
    async def async_view(request: HttpRequest) -> HttpResponse:
        return ran()

    serve(items=view, async_items=async_view)
    client = AsyncClient()
    in_tasks = [await client.post(path) for path in ("/items", "/async_items")]
    for response in [fetch("/items"), *in_tasks]:
        assert (response.status_code, response.content) == (200, b"items")
    assert locks["default"].list() == []
