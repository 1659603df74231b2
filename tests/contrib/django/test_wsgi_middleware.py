"""``LockMiddleware`` of WSGI around a Django project whose settings nobody may touch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from wsgiref.validate import validator

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse

from tests.contrib.gateway import Gateway
from weblock import Locks
from weblock.contrib.wsgi import LockMiddleware, Rule

from .requests import urls


@pytest.mark.django_db  # When a request ends, Django looks after connections, also those of earlier tests.
def test_django_by_the_middleware(settings: Any, url: str) -> None:
    """A view runs under its lock; a path that is not UTF-8 gets 400, and a busy key 409."""

    def item(request: HttpRequest, pk: str) -> HttpResponse:
        return HttpResponse(locks.list()[0].key, content_type="text/plain")

    settings.ROOT_URLCONF = urls(item__pk=item)
    settings.MIDDLEWARE = []
    rules = [Rule("/item/{pk}", key="item:{pk}", wait=0)]
    with Locks.from_url(url) as locks:
        layer = LockMiddleware(validator(WSGIHandler()), locks, rules)
        assert Gateway(layer, path="/item/7").serve().text == b"item:7"
        odd = Gateway(layer, PATH_INFO="/item/\xff").serve()
        assert (odd.status, locks.list()) == (400, [])
        with locks.hold("item:7"), ThreadPoolExecutor(1) as thread:
            assert thread.submit(Gateway(layer, path="/item/7").serve).result().status == 409
