"""``idempotent_app`` in Django: ``gunicorn tests.e2e.idempotent_django:app``. PostgreSQL has ``ATOMIC_REQUESTS``."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import django
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from sqlalchemy import make_url

from .idempotent_app import DATABASE, TTL, die_at, work

URL = make_url(DATABASE)
POSTGRESQL = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": URL.host,
    "PORT": URL.port,
    "USER": URL.username,
    "PASSWORD": URL.password,
    "ATOMIC_REQUESTS": True,
}
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"transaction_mode": "IMMEDIATE"}}

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {**(SQLITE if URL.drivername == "sqlite" else POSTGRESQL), "NAME": URL.database}
    },
    INSTALLED_APPS=["weblock.contrib.django"],
    MIDDLEWARE=[
        "tests.e2e.idempotent_django.dying",
        "weblock.contrib.django.middleware.LockMiddleware",
    ],
    ROOT_URLCONF=__name__,
    WEBLOCK={"default": {"URL": os.environ.get("ENGINE", "noop://"), "TTL": TTL}},
)
django.setup()

from weblock.contrib.django import idempotent  # noqa: E402 - the settings come first


def dying(get_response: Callable[[HttpRequest], HttpResponse]) -> Any:
    """Die when the work is committed, and before the response."""

    def serve(request: HttpRequest) -> HttpResponse:
        with connection.execute_wrapper(_sent):
            response = get_response(request)
        if response.status_code == 201:
            die_at("response")
        return response

    return serve


def _sent(execute: Any, sql: str, *more: Any) -> Any:
    done = execute(sql, *more)
    if "INSERT INTO weblock_answer" in sql:
        die_at("commit")
    return done


@idempotent(caller=lambda request: request.headers["X-User"], wait=1)
def orders(request: HttpRequest) -> HttpResponse:
    """Make an order."""
    work()
    with connection.cursor() as cursor:
        sql = "INSERT INTO order_of_someone (text) VALUES (%s) RETURNING id"
        cursor.execute(sql, [request.GET["text"]])
        return JsonResponse({"id": cursor.fetchone()[0]}, status=201)


urlpatterns = [
    path("orders", orders),
    path("openapi.json", lambda _request: HttpResponse()),
]

from django.core.wsgi import get_wsgi_application  # noqa: E402

_django = get_wsgi_application()


def app(environ: Any, start_response: Any) -> Iterator[bytes]:
    """Serve a request, or die with half of the response sent."""
    for chunk in _django(environ, start_response):
        if environ["REQUEST_METHOD"] == "POST":
            yield chunk[:5]
            die_at("sending")
            yield chunk[5:]
        else:
            yield chunk
