"""How long the way of a request through the middleware is: calls and changes of file, which no noise moves."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client

from tests.support.way import Way
from weblock.contrib.django import lock

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="coverage or a debugger follows each call"
)

bounded = pytest.mark.parametrize(
    ("locks_it", "calls", "changes"),
    [(True, 90, 66), (False, 16, 11)],
    ids=["locked", "unlocked"],
)


def view(request: HttpRequest, pk: str) -> HttpResponse:
    return HttpResponse()


async def async_view(request: HttpRequest, pk: str) -> HttpResponse:
    """The same, for tasks."""
    return HttpResponse()


@pytest.fixture(autouse=True)
def only_ours(settings: Any) -> None:
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]


@bounded
def test_a_thread_goes_no_detour(locks_it: bool, calls: int, changes: int, serve: Any) -> None:
    """Under WSGI, a locked request takes at most 90 calls and 66 changes of file, another 16 and 11."""
    serve(item__pk=lock("item:{pk}")(view) if locks_it else view)
    client = Client()
    for _ in range(3):  # Until all that is done once has been done.
        way = Way()
        with way.noted():
            assert client.get("/item/7").status_code == 200
    assert way.calls <= calls
    assert way.changes <= changes


@bounded
async def test_a_task_goes_no_detour(locks_it: bool, calls: int, changes: int, serve: Any) -> None:
    """Under ASGI, no more than under WSGI."""
    serve(item__pk=lock("item:{pk}")(async_view) if locks_it else async_view)
    client = AsyncClient()
    for _ in range(3):
        way = Way()
        with way.noted():
            assert (await client.get("/item/7")).status_code == 200
    assert way.calls <= calls
    assert way.changes <= changes
