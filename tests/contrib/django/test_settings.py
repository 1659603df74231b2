"""The setting WEBLOCK, and the locks by alias."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.db import connection
from django.test import override_settings

from tests.servers.postgres import shared_postgres
from weblock import ConfigurationError, Locks
from weblock.contrib.django import async_locks, locks
from weblock.contrib.django.apps import create_tables
from weblock.contrib.django.settings import aliases, url_of_database
from weblock.stores.postgresql.settings import parse


def test_locks_are_held_by_alias(url: str) -> None:
    """Each alias has locks of its own: a key of one is free in another."""
    with override_settings(WEBLOCK={"default": {"URL": url}, "b": {"URL": url, "NAMESPACE": "b"}}):
        with locks["default"].hold("key"), locks["b"].hold("key", wait=0):
            assert locks["default"].try_acquire("key") is None
        assert set(locks) == {"default", "b"}


async def test_both_apis_share_an_engine(url: str) -> None:
    """A key that a thread holds is taken for tasks too."""
    with override_settings(WEBLOCK={"default": {"URL": url}}), locks["default"].hold("key"):
        assert await async_locks["default"].try_acquire("key") is None


def test_without_a_setting_there_is_the_embedded_engine(settings: Any) -> None:
    """A project that sets nothing gets the engine of one machine."""
    del settings.WEBLOCK
    assert locks["default"].engine.startswith("file://")
    assert aliases() == ("default",)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("redis://localhost", "dict of aliases"),
        ({"URL": "redis://localhost"}, "dict of aliases"),
        ({"default": {"TIMEOUT": 5}}, "'TIMEOUT'"),
        ({"default": {"TTL": "soon"}}, r"WEBLOCK\['default'\]: ttl='soon'"),
        ({"default": {"URL": "nosuch://"}}, r"WEBLOCK\['default'\]: there is no engine"),
        (
            {"default": {"BUSY_VIEW": 429}},
            r"WEBLOCK\['default'\]\['BUSY_VIEW'\] is 429: give a function",
        ),
        ({"other": {}}, "no alias 'default'"),
        ({"default": {"URL": "django://nosuch"}}, r"names the database 'nosuch' in URL"),
        ({"default": {"GUARD": "both"}}, "'lease' or 'database'"),
        ({"default": {"GUARD": "database", "GUARD_DATABASES": ["no"]}}, "a list of 'default'"),
        ({"default": {"GUARD": "database", "GUARD_DATABASES": "lite"}}, "a list of 'default'"),
        ({"default": {"GUARD_WAIT": 5}}, "GUARD_WAIT without 'GUARD'"),
        ({"default": {"GUARD": "database", "GUARD_WAIT": 0}}, "GUARD_WAIT=0"),
    ],
)
def test_wrong_settings_are_refused(setting: object, message: str) -> None:
    """What cannot work is refused with a message that names it."""
    with override_settings(WEBLOCK=setting), pytest.raises(ConfigurationError, match=message):
        locks["default"]


def test_locks_are_kept_in_a_database_of_the_settings() -> None:
    """Address, user and password are Django's, and so are libpq's options; others are left out."""
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": "db.internal",
        "PORT": 5433,
        "NAME": "shop",
        "USER": "shop@eu",
        "PASSWORD": "a/b?c",
        "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 2},
    }
    url = url_of_database("django://default?table=t", {"default": database})
    settings = parse(url)
    assert settings.name == "postgresql://db.internal:5433/shop"
    assert settings.table == "t"
    assert settings.libpq["user"] == "shop@eu"
    assert settings.libpq["password"] == "a/b?c"
    assert settings.libpq["sslmode"] == "require"
    assert "pool" not in settings.libpq
    assert settings.create
    assert not parse(url_of_database("django://d?create=false", {"d": database})).create
    with pytest.raises(ConfigurationError, match=r"backends\.mysql': leases can be kept in Postgr"):
        url_of_database("django://x", {"x": {"ENGINE": "django.db.backends.mysql"}})


def test_a_database_of_the_settings_locks() -> None:
    """A project whose URL names its database locks there, with the table that was asked for."""
    server = shared_postgres()
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres"}
    database |= {"HOST": "127.0.0.1", "PORT": str(server.port)}
    url = url_of_database("django://default?create=true&table=django_lease", {"default": database})
    with Locks.from_url(url) as locks, locks.hold("key"):
        assert locks.inspect("key")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"URL": "carrier-pigeon://"}, "carrier-pigeon"),
        ({"URL": "redis://localhost/not-a-number"}, "jobs.*not-a-number"),
        ({"URL": "memory://", "WIAT": 5}, "'WIAT'"),
        ({"URL": "memory://", "TTL": -1}, "ttl=-1"),
    ],
)
@pytest.mark.parametrize("handler", [WSGIHandler, ASGIHandler])
def test_what_cannot_work_stops_the_server(
    handler: Any, given: Any, message: str, settings: Any
) -> None:
    """With the middleware, a mistake in any alias is found when the server starts, in WSGI and ASGI."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]
    settings.WEBLOCK = {"default": {"URL": "memory://"}, "jobs": given}
    with pytest.raises(ConfigurationError, match=message):
        handler()


def test_migrate_creates_the_table_of_the_engine(transactional_db: None, settings: Any) -> None:
    """Every migrate creates the table in the database that a URL names, and leaves one that exists."""
    settings.WEBLOCK = {
        "default": {"URL": "django://default?table=made_by_migrate&recovery=off"},
        "elsewhere": {"URL": "django://other?table=made_elsewhere"},
    }
    try:
        call_command("migrate", "weblock", verbosity=0)
        with locks["default"].hold("key"):
            call_command("migrate", "weblock", verbosity=0)
            assert locks["default"].inspect("key")
        assert "made_elsewhere" not in connection.introspection.table_names()
    finally:
        locks.close_where(lambda _engine: True)
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS made_by_migrate")


def test_a_url_keeps_the_table_out(transactional_db: None, settings: Any) -> None:
    """With ``create=false``, neither migrate nor the first caller creates the table."""
    settings.WEBLOCK = {"default": {"URL": "django://default?table=kept_out&create=false"}}
    create_tables(using="default")
    with pytest.raises(ConfigurationError, match="kept_out"):
        locks["default"].acquire("key")
    assert "kept_out" not in connection.introspection.table_names()
