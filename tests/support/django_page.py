"""The project behind docs/django.md, which the page need not show."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django
from django.conf import settings
from django.test.utils import override_settings
from django.urls import path


def project(apps: Sequence[str], middleware: Sequence[str]) -> Any:
    """Set up Django with SQLite, and return the model ``Item``, which belongs to a shop."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # The page runs in an event loop.
    database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "db.sqlite3",
        "OPTIONS": {"timeout": 30},
        "ATOMIC_REQUESTS": True,
    }
    settings.configure(
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", *apps],
        MIDDLEWARE=middleware,
        DATABASES={"default": database},
        ALLOWED_HOSTS=["*"],
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        SECRET_KEY="a fixed one",
        ROOT_URLCONF=(),
        WEBLOCK={"default": {"URL": "memory://docs", "WAIT": 0}},
    )
    django.setup()
    from django.db import connection, models

    class Shop(models.Model):
        class Meta:
            app_label = "shop"

    class Item(models.Model):
        shop = models.ForeignKey(Shop, models.CASCADE)

        class Meta:
            app_label = "shop"

    with connection.schema_editor() as editor:
        editor.create_model(Shop)
        editor.create_model(Item)
    Shop.objects.create(pk=7)
    return Item


def serve(view: Any, route: str = "shops/<int:pk>", **more: Any) -> override_settings:
    """Serve one view at ``route`` during a ``with`` block."""
    return override_settings(ROOT_URLCONF=(path(route, view, name="view"),), **more)


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Run ``work`` in a thread without an event loop and without locks."""
    from django.db import connections

    def run() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def post(url: str = "/shops/7", method: str = "post", *body: Any, **more: Any) -> Any:
    """Send a request, and return its response, even if the view raises."""
    from django.test import Client

    client = Client(raise_request_exception=False)
    return in_a_thread(lambda: getattr(client, method)(url, *body, **more))
