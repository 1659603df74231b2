"""The application in Django: at most three items, with the lock and without.

``scripts/demo --framework django`` shows it in several workers. It runs by itself, too:
``uvicorn demo.django:application --workers 4``. ``DEMO_LOCK=off`` takes the lock away, and
nothing else.
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from demo.shop import WORK, LimitReached, add_item, open_shop

LOCKED = os.environ.get("DEMO_LOCK", "on") == "on"

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["weblock.contrib.django"],
    MIDDLEWARE=["weblock.contrib.django.middleware.LockMiddleware"],
    WEBLOCK={
        "default": {
            "URL": os.environ.get("DEMO_ENGINE", "file://"),
            "NAMESPACE": os.environ.get("DEMO_NAMESPACE", "demo"),
            "TTL": float(os.environ.get("DEMO_TTL", "10")),
        }
    },
)
django.setup()
open_shop()

from weblock.contrib.django import lock  # noqa: E402  # It reads the settings.


def create_item(request: HttpRequest) -> JsonResponse:
    """Count the items, work, and add one, unless there are three already."""
    try:
        return JsonResponse(add_item(float(request.GET.get("work", WORK))), status=201)
    except LimitReached as error:
        return JsonResponse({"detail": str(error)}, status=422)


view = lock("create_item")(create_item) if LOCKED else create_item
urlpatterns = [path("items", require_POST(view))]
application = get_asgi_application()
