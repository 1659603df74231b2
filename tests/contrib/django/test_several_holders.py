"""``limit=`` and ``shared=`` of a view's lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse

from weblock import Lease
from weblock.contrib.django import lock, locks

from .requests import fetch, urls

pytestmark = pytest.mark.django_db(transaction=True)


def answer(lease: Lease) -> HttpResponse:
    return HttpResponse("shared" if lease.shared else str(lease.limit))


@lock("x", shared=True)
def reads(request: HttpRequest) -> HttpResponse:
    return answer(request.weblock)  # type: ignore[attr-defined]


@lock("x", shared=True)
@lock("x")
def outside(request: HttpRequest) -> HttpResponse:
    """A view whose outer decorator lets others in, and whose inner one does not."""
    return answer(request.weblock)  # type: ignore[attr-defined]


@lock("x")
@lock("x", limit=3)
def inside(request: HttpRequest) -> HttpResponse:
    return answer(request.weblock)  # type: ignore[attr-defined]


def test_of_two_locks_of_one_key_the_stricter_counts(settings: Any, url: str) -> None:
    """Whichever of two decorators names it; a view with a shared lock runs beside another reader."""
    settings.WEBLOCK = {"default": {"URL": url, "WAIT": 0}}
    settings.ROOT_URLCONF = urls(reads=reads, outside=outside, inside=inside)
    found = [fetch(f"/{name}", "get").content for name in ("reads", "outside", "inside")]
    assert found == [b"shared", b"1", b"1"]
    with ThreadPoolExecutor(1) as reader:
        lease = reader.submit(locks["default"].acquire, "x", shared=True).result()
        codes = [fetch(f"/{name}", "get").status_code for name in ("reads", "outside", "inside")]
        assert codes == [200, 409, 409]
        reader.submit(lease.release).result()
