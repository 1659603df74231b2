"""A project on a database that the other tests do not have, where a holder is followed by another.

``python -m tests.contrib.django.stale_elsewhere sqlite3 PATH``, or ``mysql PORT``. Prints the outcomes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections, transaction


def configure(vendor: str, where: str) -> None:
    database: dict[str, Any] = {"ENGINE": f"django.db.backends.{vendor}"}
    if vendor == "mysql":
        import pymysql

        pymysql.install_as_MySQLdb()
        database |= {"HOST": "127.0.0.1", "PORT": int(where), "USER": "root", "NAME": "shop"}
        database["OPTIONS"] = {"isolation_level": "repeatable read"}
    else:
        database |= {"NAME": where, "OPTIONS": {"timeout": 0.05}}
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=["weblock.contrib.django"],
        WEBLOCK={"default": {"URL": "memory://", "GUARD": "database", "GUARD_WAIT": 0.1}},
        ROOT_URLCONF=(),
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()
    call_command("migrate", "weblock", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE item (id INTEGER)")


def story(atomic: str) -> str:
    """What becomes of a holder that sleeps after it has counted, in one transaction, or with its write in one."""
    from django.http import HttpRequest, HttpResponse

    from weblock.contrib.django import lock, locks

    followed: list[int] = []

    def add(_request: HttpRequest) -> HttpResponse:
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM item")
            (count,) = cursor.fetchone()
            sleep()
            with transaction.atomic():
                cursor.execute("INSERT INTO item (id) VALUES (%s)", [count])
        return HttpResponse(status=201)

    def sleep() -> None:
        if followed:
            return
        followed.append(1)
        assert locks["default"].force_release("key")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(follow).result()

    def follow() -> None:
        try:
            outcomes.append(locked(HttpRequest()).status_code)
        finally:
            connections.close_all()

    outcomes: list[int] = []
    locked = lock("key")(transaction.atomic(add) if atomic == "atomic" else add)
    response = locked(HttpRequest())
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), COUNT(DISTINCT id) FROM item")
        items, different = cursor.fetchone()
    return f"{response.status_code} {outcomes} stale {items - different}"


def refused(commits: Callable[[Any], object]) -> str:
    from django.http import HttpRequest, HttpResponse

    from weblock import ConfigurationError
    from weblock.contrib.django import lock

    def run(_request: HttpRequest) -> HttpResponse:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO item (id) VALUES (1000)")
            commits(cursor)
        return HttpResponse(status=201)

    try:
        lock("key")(transaction.atomic(run))(HttpRequest())
    except ConfigurationError as error:
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM item WHERE id >= 1000")
            return f"{error}; items {cursor.fetchone()[0]}"
    return "it was not checked"


if __name__ == "__main__":
    vendor = sys.argv[1]
    configure(*sys.argv[1:])
    for each in ("atomic", "steps"):
        sys.stdout.write(f"{each}: {story(each)}\n")
    steps: list[Callable[[Any], object]] = [
        lambda cursor: cursor.execute("CREATE TABLE other (id INTEGER)"),
        lambda cursor: cursor.execute("SET autocommit = 1"),
    ]
    for step in steps if vendor == "mysql" else ():
        sys.stdout.write(f"{refused(step)}\n")
