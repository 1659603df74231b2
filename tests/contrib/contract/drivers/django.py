"""``@lock`` on views behind ``LockMiddleware``, with a database of SQLite: in WSGI, and async in ASGI."""

from __future__ import annotations

import asyncio
import io
import os
from contextlib import ExitStack
from typing import Any, ClassVar, Self
from unittest import mock

import django
from asgiref.sync import iscoroutinefunction, sync_to_async

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.contrib.django.project.settings")
django.setup()

from django.core.handlers.asgi import ASGIHandler  # noqa: E402 - Django has to be set up before
from django.core.handlers.wsgi import WSGIHandler  # noqa: E402
from django.db import connections, models, transaction  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils.decorators import sync_and_async_middleware  # noqa: E402

from tests.contrib.contract.driver import (  # noqa: E402
    ROUTES,
    Driver,
    OverAsgi,
    OverWsgi,
    in_angles,
    some,
)
from tests.contrib.contract.promises import LEAVES_QUEUE, STREAM, THREADS  # noqa: E402
from weblock.contrib.django import async_locks, lock, locks, request_locks  # noqa: E402

from .wsgi import OWN_THREAD  # noqa: E402

LITE = "lite"
PATHS: dict[str, list[Any]] = {
    **{in_angles(route)[1:]: keys for route, keys in ROUTES.items()},
    "some/<int:item_id>": [lambda request: some(**request.resolver_match.kwargs)],
    "orders/<int:item_id>": ["item:{item_id}"],
    "rows/<int:item_id>": ["item:{item_id}"],
}
STREAMED_LATER = (
    "Django makes a stream when the view has returned. The work of the view is committed by then,"
    " and the lock is released"
)


class Row(models.Model):
    """A row that the middleware of the project reads before the lock."""

    number = models.IntegerField()

    class Meta:  # noqa: D106 - Django documents it
        app_label = "contract"
        db_table = "row"
        managed = False


@sync_and_async_middleware
def read_a_row(get_response: Any) -> Any:
    def read(request: HttpRequest) -> None:
        if request.path.startswith("/rows"):
            request.row = Row.objects.using(LITE).get()  # type: ignore[attr-defined]

    def serve(request: HttpRequest) -> Any:
        read(request)
        return get_response(request)

    async def aserve(request: HttpRequest) -> Any:
        await sync_to_async(read)(request)
        return await get_response(request)

    return aserve if iscoroutinefunction(get_response) else serve


class Project(Driver):
    """A project whose database is SQLite, under the alias ``lite``."""

    folder = "django"
    atomic_requests: bool

    def __enter__(self) -> Self:
        there = {"NAME": str(self.site.database), "ATOMIC_REQUESTS": self.atomic_requests}
        here = {"URL": self.site.url, "WAIT": self.site.wait}
        # Only the lock of ``orders`` says more.
        guard = {"GUARD": "lease", "GUARD_DATABASES": [LITE]}
        with ExitStack() as stack:
            stack.enter_context(mock.patch.dict(connections.databases[LITE], there))
            # Django never closes a database in memory, which other tests may have here.
            stack.callback(connections.__setitem__, LITE, connections[LITE])
            del connections[LITE]
            stack.callback(connections[LITE].close)
            stack.enter_context(
                override_settings(
                    ROOT_URLCONF=tuple(self._route(*each) for each in PATHS.items()),
                    WEBLOCK={"default": {**here, **guard}},
                    MIDDLEWARE=[
                        f"{__name__}.read_a_row",
                        "weblock.contrib.django.middleware.LockMiddleware",
                    ],
                )
            )
            self._stack = stack.pop_all()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        for each in (locks, async_locks):
            each.close_where(lambda _engine: True)
        super().__exit__(*error)
        self._stack.close()

    def _route(self, route: str, keys: list[Any]) -> Any:
        name = route.partition("/")[0]
        options: Any = {"guard": "database", "renew": False} if name == "orders" else {}
        view = lock(*keys, **options)(getattr(self, name, self.items))
        if name == "again":
            view = transaction.non_atomic_requests(using=LITE)(view)
        return path(route, view)

    def add_order(self) -> None:
        with connections[LITE].cursor() as cursor:
            cursor.execute("INSERT INTO orders DEFAULT VALUES")

    def items(self, request: Any, **_: object) -> Any:
        self.site.handle(request.weblock)
        transaction.on_commit(self.site.commit, using=LITE)
        return HttpResponse("done")

    def acquire(self, key: str) -> Any:
        return request_locks().acquire(key, wait=0)

    def rows(self, request: Any, **_: object) -> Any:
        return HttpResponse(str(request.row.number))


class Wsgi(Project, OverWsgi):
    """Sync views with ``ATOMIC_REQUESTS``, in WSGI."""

    name = "Django on WSGI"
    atomic_requests = True
    exempt: ClassVar = {
        THREADS: OWN_THREAD,
        STREAM: STREAMED_LATER,
        LEAVES_QUEUE: "Django does not tell it to a sync view, so the wait ends after `wait`",
    }

    def application(self) -> Any:
        return WSGIHandler()

    def end(self) -> None:
        connections.close_all()

    def orders(self, request: Any, **_: object) -> HttpResponse:
        self.site.handle(request.weblock)
        self.add_order()
        return HttpResponse("done")


class Handler(ASGIHandler):
    """Django leaves the file of a request's body open if the server cancels the request."""

    async def read_body(self, receive: Any) -> Any:
        (await super().read_body(receive)).close()
        return io.BytesIO()


class Asgi(Project, OverAsgi):
    """Async views in ASGI, which commit in ``atomic()``."""

    name = "Django on ASGI"
    atomic_requests = False
    exempt: ClassVar = {STREAM: STREAMED_LATER}

    def application(self) -> Any:
        return Handler()

    async def items(self, request: Any, **_: object) -> HttpResponse:
        await sync_to_async(self.site.handle)(request.weblock)
        await sync_to_async(self._commit)()
        return HttpResponse("done")

    def _commit(self) -> None:
        try:
            with transaction.atomic(using=LITE):
                transaction.on_commit(self.site.commit, using=LITE)
        finally:  # Django does not, if the server cancels the request.
            connections[LITE].close()

    async def orders(self, request: Any, **_: object) -> HttpResponse:
        await asyncio.to_thread(self.site.handle, request.weblock)
        await sync_to_async(transaction.atomic(using=LITE)(self.add_order))()
        return HttpResponse("done")
