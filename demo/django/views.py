"""The view that must not overlap itself."""

from __future__ import annotations

import time
from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse

from demo.django.models import Item
from demo.trace import section

BOUND: Final = 3


def create_item(request: HttpRequest) -> HttpResponse:
    """Makes an item, unless there are three already."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    with section():
        if Item.objects.count() >= BOUND:
            return JsonResponse({"detail": f"limit reached: {BOUND} items"}, status=422)
        # Some work: a payment, a call to another service.
        time.sleep(float(request.GET.get("work", "0.15")))
        item = Item.objects.create()
    return JsonResponse({"item": item.pk}, status=201)
