"""Its views: the bounded create."""

from __future__ import annotations

import os
import time
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.contrib.django.project.shop.models import Item
from weblock.contrib.django import lock

BOUND = 3


def create(request: HttpRequest) -> HttpResponse:
    if Item.objects.count() >= BOUND:
        return HttpResponse(status=422)
    Item.objects.create()
    return HttpResponse(status=201)


@lock("create_item", ttl=1)
def linger(request: HttpRequest) -> HttpResponse:
    signs = Path(settings.SIGNS)
    Item.objects.create()
    (signs / "inside").write_text(str(os.getpid()))
    while not (signs / "go on").exists():
        time.sleep(0.01)
    return HttpResponse(status=201)


urlpatterns = [
    path("linger", linger),
    path("ours", lock("create_item")(create)),
]
