"""Its views: the bounded create."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.contrib.django.naive import naive_lock
from tests.contrib.django.project.shop.models import Item
from weblock.contrib.django import lock

BOUND = 3


def create(request: HttpRequest) -> HttpResponse:
    """Adds an item while there is room."""
    if Item.objects.count() >= BOUND:
        return HttpResponse(status=422)
    Item.objects.create()
    return HttpResponse(status=201)


urlpatterns = [
    path("ours", lock("create_item")(create)),
    path("naive", naive_lock("create_item")(create)),
]
