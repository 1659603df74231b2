"""A handler that must not overlap, in whatever weblock is installed: python smoke.py FRAMEWORK URL.

It runs with nothing but weblock and the framework, so it needs neither pytest nor an HTTP client.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import weblock

BOUND = 3
REQUESTS = 8
PATIENCE = 60.0

urlpatterns: list[Any] = []
"""Django's, for it wants a module that has them."""


class Shop:
    """Items up to a bound. Two callers at once would both find room for the last one."""

    def __init__(self) -> None:
        self.items = 0

    def create_item(self) -> int:
        """Return the status of the response."""
        found = self.items
        if found >= BOUND:
            return 422
        time.sleep(0.05)  # Longer than a request needs to get here: without the lock they overlap.
        self.items = found + 1
        return 201


def core(url: str) -> list[int]:
    """Threads that call a serialized function."""
    shop = Shop()
    with weblock.Locks.from_url(url, wait=PATIENCE) as locks:
        create_item = locks.serialized("create_item")(shop.create_item)
        with ThreadPoolExecutor(REQUESTS) as pool:
            return [each.result() for each in [pool.submit(create_item) for _ in range(REQUESTS)]]


def threads(url: str) -> list[int]:
    """Sixteen threads that want one key again and again. Without the GIL they run side by side."""
    rounds, inside, sections = 100, 0, 0

    def section() -> None:
        nonlocal inside, sections
        for _ in range(rounds):
            with locks.hold("create_item", wait=PATIENCE):
                inside += 1
                alone = inside == 1
                sections += 1
                inside -= 1
                if not alone:
                    raise AssertionError("two threads were inside at once")

    with weblock.Locks.from_url(url) as locks, ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(section) for _ in range(16)]:
            done.result()
    if sections != 16 * rounds:
        raise AssertionError(f"{sections} sections were counted, not {16 * rounds}")
    return core(url)


def fastapi(url: str) -> list[int]:
    """Requests to a FastAPI application whose route locks."""
    from fastapi import Depends, FastAPI
    from fastapi.responses import Response

    from weblock.contrib.fastapi import install, lock

    app, shop = FastAPI(), Shop()
    install(app, url)

    @app.post(
        "/items",
        dependencies=[Depends(lock("create_item", wait=PATIENCE))],
        response_model=None,
    )
    def create_item() -> Response:
        return Response(status_code=shop.create_item())

    async def requests() -> list[int]:
        return await asyncio.gather(*(_post(app, "/items") for _ in range(REQUESTS)))

    return asyncio.run(requests())


async def _post(app: Any, path: str) -> int:
    status = 0
    ended = asyncio.Event()
    unread = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if unread:
            return unread.pop()
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    try:
        await app(scope, receive, send)
    finally:
        ended.set()
    return status


def django(url: str) -> list[int]:
    """Requests to a Django view that locks, after a look at what else the application carries."""
    import django
    from django.conf import settings
    from django.http import HttpResponse
    from django.test import Client
    from django.urls import path

    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.staticfiles",
            "weblock.contrib.django",
        ],
        MIDDLEWARE=["weblock.contrib.django.middleware.LockMiddleware"],
        ROOT_URLCONF=__name__,
        STATIC_URL="/static/",
        TEMPLATES=[
            {"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}
        ],
        WEBLOCK={"default": {"URL": url, "WAIT": PATIENCE}},
    )
    django.setup()
    _look_at_django_files()

    from weblock.contrib.django import lock

    shop = Shop()

    @lock("create_item")
    def create_item(_request: Any) -> HttpResponse:
        return HttpResponse(status=shop.create_item())

    urlpatterns.append(path("items", create_item))

    def post(_number: int) -> int:
        return Client().post("/items").status_code

    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(post, range(REQUESTS)))


def _look_at_django_files() -> None:
    from django.contrib.staticfiles import finders
    from django.db.migrations.loader import MigrationLoader
    from django.template.loader import get_template

    assert finders.find("weblock/locks.css"), "the static files are missing"
    for page in ("locks", "release"):
        get_template(f"admin/weblock/{page}.html")
    assert ("weblock", "0001_initial") in MigrationLoader(None).disk_migrations


def main(framework: str, url: str) -> None:
    """Has several requests at once create items, and fails if the bound did not hold."""
    statuses = {"core": core, "threads": threads, "fastapi": fastapi, "django": django}[framework](
        url
    )
    wanted = {201: BOUND, 422: REQUESTS - BOUND}
    if Counter(statuses) != wanted:
        raise SystemExit(f"{framework} on {url.partition('?')[0]}: {statuses}, not {wanted}")


if __name__ == "__main__":
    main(*sys.argv[1:])
